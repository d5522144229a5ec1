#include "dims.h"

#include <algorithm>
#include <cctype>

#include "failure.h"

namespace relaxc_runtime {

struct Dim::Node {
  enum Kind { kNumber, kName, kAdd, kSub, kMul, kDiv, kMod, kMin, kMax, kNegative } kind;
  int64_t number = 0;
  std::string name;
  std::vector<std::shared_ptr<const Node>> operands;
};

namespace {

using Node = Dim::Node;
using NodePtr = std::shared_ptr<const Node>;

constexpr size_t kMaxLength = 500;

bool begins_name(char each) { return std::isalpha(static_cast<unsigned char>(each)) || each == '_' || (each & 0x80); }
bool in_name(char each) { return begins_name(each) || std::isdigit(static_cast<unsigned char>(each)); }

/// Python's grammar: sums of products of factors; a function takes at least two arguments.
class Parser {
 public:
  Parser(const std::string& text, std::set<std::string>* names) : text_(text), names_(names) {}

  NodePtr whole() {
    NodePtr found = sum();
    if (peek() != '\0') fail();
    return found;
  }

 private:
  [[noreturn]] void fail() const {
    corrupt("the symbolic dim " + in_quotes(text_) + " is no integer expression over names, + - * // % min max");
  }

  char peek() {
    while (place_ < text_.size() && text_[place_] == ' ') ++place_;
    return place_ < text_.size() ? text_[place_] : '\0';
  }

  bool take(const char* word) {
    peek();
    if (text_.compare(place_, std::char_traits<char>::length(word), word)) return false;
    place_ += std::char_traits<char>::length(word);
    return true;
  }

  static NodePtr node(Node::Kind kind, std::vector<NodePtr> operands) {
    return std::make_shared<Node>(Node{kind, 0, {}, std::move(operands)});
  }

  NodePtr sum() {
    NodePtr left = product();
    while (true) {
      if (take("+")) left = node(Node::kAdd, {left, product()});
      else if (take("-")) left = node(Node::kSub, {left, product()});
      else return left;
    }
  }

  NodePtr product() {
    NodePtr left = factor();
    while (true) {
      if (take("//")) left = node(Node::kDiv, {left, factor()});
      else if (take("%")) left = node(Node::kMod, {left, factor()});
      else if (take("*")) left = node(Node::kMul, {left, factor()});
      else return left;
    }
  }

  NodePtr factor() {
    if (take("-")) return node(Node::kNegative, {factor()});
    if (take("(")) {
      NodePtr inner = sum();
      if (!take(")")) fail();
      return inner;
    }
    if (std::isdigit(static_cast<unsigned char>(peek()))) return number();
    if (begins_name(peek())) return named();
    fail();
  }

  NodePtr number() {
    Node found{Node::kNumber, 0, {}, {}};
    for (; place_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[place_])); ++place_)
      if (__builtin_mul_overflow(found.number, 10, &found.number) || __builtin_add_overflow(found.number, text_[place_] - '0', &found.number))
        fail();
    if (found.number >= int64_t{1} << 62 || (place_ < text_.size() && in_name(text_[place_]))) fail();
    return std::make_shared<Node>(std::move(found));
  }

  NodePtr named() {
    size_t start = place_;
    while (place_ < text_.size() && in_name(text_[place_])) ++place_;
    std::string name = text_.substr(start, place_ - start);
    bool least = name == "min" || name == "Min", most = name == "max" || name == "Max";
    if (!least && !most) {
      names_->insert(name);
      return std::make_shared<Node>(Node{Node::kName, 0, name, {}});
    }
    if (!take("(")) fail();
    std::vector<NodePtr> operands{sum()};
    while (take(",")) operands.push_back(sum());
    if (!take(")") || operands.size() < 2) fail();
    return node(least ? Node::kMin : Node::kMax, std::move(operands));
  }

  const std::string& text_;
  std::set<std::string>* names_;
  size_t place_ = 0;
};

using Value = std::optional<int64_t>;

/// As Python has them: the quotient rounded down, the rest with the sign of the divisor.
Value divided(int64_t left, int64_t right, bool rest) {
  if (!right || (right == -1 && left == INT64_MIN)) return {};
  int64_t quotient = left / right, remainder = left % right;
  if (remainder && (remainder < 0) != (right < 0)) --quotient, remainder += right;
  return rest ? remainder : quotient;
}

Value applied(Node::Kind kind, int64_t left, int64_t right) {
  int64_t found;
  switch (kind) {
    case Node::kAdd: return __builtin_add_overflow(left, right, &found) ? Value() : found;
    case Node::kSub: return __builtin_sub_overflow(left, right, &found) ? Value() : found;
    case Node::kMul: return __builtin_mul_overflow(left, right, &found) ? Value() : found;
    case Node::kDiv: return divided(left, right, false);
    case Node::kMod: return divided(left, right, true);
    case Node::kMin: return std::min(left, right);
    case Node::kMax: return std::max(left, right);
    default: return {};
  }
}

Value value_of(const Node& node, const Sizes& sizes) {
  if (node.kind == Node::kNumber) return node.number;
  if (node.kind == Node::kName) {
    auto found = sizes.find(node.name);
    return found == sizes.end() ? Value() : found->second;
  }
  Value left = value_of(*node.operands[0], sizes);
  if (node.kind == Node::kNegative) return left ? applied(Node::kSub, 0, *left) : Value();
  for (size_t index = 1; left && index < node.operands.size(); ++index) {
    Value right = value_of(*node.operands[index], sizes);
    left = right ? applied(node.kind, *left, *right) : Value();
  }
  return left;
}

struct Row {
  std::string name;
  size_t axis;
  const Dim* dim;
  int64_t size;
};

[[noreturn]] void wrong(const std::string& name, size_t axis, int64_t size, const std::string& wanted, const std::string& given = "") {
  throw Failure(RELAXC_INPUT_SHAPE, "input " + in_quotes(name) + ": axis " + std::to_string(axis) + given + " has size " +
                                        std::to_string(size) + ", it must be " + wanted);
}

std::string value_text(Value value) { return value ? std::to_string(*value) : "undefined"; }

/// The value of `lacking` at which the dim, taken as linear in it, has this size.
int64_t solved(const Row& row, const std::string& lacking, Sizes sizes) {
  auto at = [&](int64_t value) { return sizes[lacking] = value, row.dim->evaluate(sizes); };
  Value at_zero = at(0), at_one = at(1), slope, offset;
  if (at_zero && at_one) slope = applied(Node::kSub, *at_one, *at_zero), offset = applied(Node::kSub, row.size, *at_zero);
  if (slope && *slope && offset) {
    Value found = divided(*offset, *slope, false), rest = divided(*offset, *slope, true);
    if (found && *found >= 0 && rest == 0 && at(*found) == row.size) return *found;
  }
  wrong(row.name, row.axis, row.size, row.dim->text() + " for some " + lacking);
}

/// Check the expressions whose names have sizes, solve one that lacks a single name; what is left to do.
std::vector<Row> bind_expressions(const std::vector<Row>& rows, Sizes& sizes) {
  std::vector<Row> left;
  for (const Row& row : rows) {
    std::vector<std::string> unknown;
    for (const std::string& name : row.dim->names())
      if (!sizes.count(name)) unknown.push_back(name);
    if (unknown.empty()) {
      Value value = row.dim->evaluate(sizes);
      if (value != row.size) {
        std::string used;
        for (const std::string& name : row.dim->names()) used += (used.empty() ? "" : ", ") + name + " = " + std::to_string(sizes[name]);
        wrong(row.name, row.axis, row.size, row.dim->text() + " = " + value_text(value) + " (" + used + ")");
      }
    } else if (unknown.size() == 1) {
      sizes[unknown[0]] = solved(row, unknown[0], sizes);
    } else {
      left.push_back(row);
    }
  }
  // What is left are dims of several names that nothing else fixes: the compiled code checks these.
  return left.size() == rows.size() ? std::vector<Row>() : left;
}

}  // namespace

Dim::Dim(int64_t size) : text_(std::to_string(size)), size_(size) {}

Dim::Dim(const std::string& text) : text_(text) {
  if (text.size() > kMaxLength) corrupt("a symbolic dim has " + std::to_string(text.size()) + " characters, more than 500");
  root_ = Parser(text_, &names_).whole();
  is_name_ = root_->kind == Node::kName;
}

std::optional<int64_t> Dim::evaluate(const Sizes& sizes) const { return size_ ? size_ : value_of(*root_, sizes); }

std::string Bounds::text() const { return std::to_string(minimum) + ".." + (maximum ? std::to_string(*maximum) : ""); }

Condition::Condition(const std::string& text, const std::string& why) : text_(text), why_(why) {
  const char* const marks = "=!<>";
  size_t begin = text.find_first_of(marks), end = text.find_first_not_of(marks, begin);
  if (begin != std::string::npos && end != std::string::npos) relation_ = text.substr(begin, end - begin);
  static const std::set<std::string> relations{"==", "!=", ">=", "<=", ">", "<"};
  if (!relations.count(relation_) || text.find_first_of(marks, end) != std::string::npos)
    corrupt("the condition " + in_quotes(text) + " is no comparison of two dims");
  sides_ = {Dim(text.substr(0, begin)), Dim(text.substr(end))};
}

bool Condition::holds(const Sizes& sizes) const {
  Value left = sides_[0].evaluate(sizes), right = sides_[1].evaluate(sizes);
  if (!left || !right) return false;
  switch (relation_[0]) {
    case '=': return *left == *right;
    case '!': return *left != *right;
    case '>': return relation_.size() == 2 ? *left >= *right : *left > *right;
    default: return relation_.size() == 2 ? *left <= *right : *left < *right;
  }
}

std::string Condition::broken_by(const Sizes& sizes) const {
  std::set<std::string> names = sides_[0].names();
  names.insert(sides_[1].names().begin(), sides_[1].names().end());
  std::string found;
  for (const std::string& name : names) {
    auto size = sizes.find(name);
    found += (found.empty() ? "" : ", ") + name + " is " + (size == sizes.end() ? "None" : std::to_string(size->second));
  }
  return why_ + ": " + text_ + " must hold, and " + found;
}

std::string TensorSpec::text() const {
  std::string dims;
  for (const Dim& dim : shape) dims += (dims.empty() ? "" : ", ") + dim.text();
  return name + ": " + dtype + "[" + dims + "]";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

Sizes bind_dims(const Signature& signature, const std::vector<std::vector<int64_t>>& shapes) {
  Sizes sizes;
  std::map<std::string, std::string> seen;
  std::vector<Row> later;
  for (size_t index = 0; index < signature.inputs.size(); ++index) {
    const TensorSpec& spec = signature.inputs[index];
    const std::vector<int64_t>& shape = shapes[index];
    if (shape.size() != spec.shape.size())
      throw Failure(RELAXC_INPUT_SHAPE, "input " + in_quotes(spec.name) + " has " + std::to_string(shape.size()) + " dims " + shape_text(shape) +
                                            ", it takes " + std::to_string(spec.shape.size()) + ": " + spec.text());
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const Dim& dim = spec.shape[axis];
      int64_t size = shape[axis];
      if (dim.is_size()) {
        if (size != dim.size()) wrong(spec.name, axis, size, dim.text(), " of " + shape_text(shape));
      } else if (dim.is_name()) {
        auto [known, is_new] = sizes.try_emplace(dim.text(), size);
        if (known->second != size)
          throw Failure(RELAXC_INPUT_SHAPE, "input " + in_quotes(spec.name) + ": axis " + std::to_string(axis) + " of " + shape_text(shape) +
                                                " has size " + std::to_string(size) + ", but " + dim.text() + " is " +
                                                std::to_string(known->second) + " in input " + in_quotes(seen[dim.text()]));
        if (is_new) seen[dim.text()] = spec.name;
      } else {
        later.push_back({spec.name, axis, &dim, size});
      }
    }
  }
  while (!later.empty()) later = bind_expressions(later, sizes);
  for (const Condition& condition : signature.conditions)
    if (!condition.holds(sizes)) throw Failure(RELAXC_INPUT_SHAPE, condition.broken_by(sizes));
  for (const auto& [name, size] : sizes) {
    auto bounds = signature.bounds.find(name);
    if (bounds == signature.bounds.end() || bounds->second.hold(size)) continue;
    std::string where = seen.count(name) ? " of input " + in_quotes(seen[name]) : "";
    throw Failure(RELAXC_INPUT_SHAPE, "dim " + in_quotes(name) + where + " is " + std::to_string(size) + ", outside its bounds " +
                                          bounds->second.text());
  }
  return sizes;
}

}  // namespace relaxc_runtime
