// Symbolic dims: expressions, and sizes found from the shapes of real inputs; as service/runtime/dims.py does.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace relaxc_runtime {

using Sizes = std::map<std::string, int64_t>;

/// A size, a name or an integer expression over names with + - * // % min max.
class Dim {
 public:
  explicit Dim(int64_t size);
  /// Throws artifact-corrupt for what is no such expression.
  explicit Dim(const std::string& text);

  const std::string& text() const { return text_; }
  bool is_size() const { return names_.empty() && size_.has_value(); }
  int64_t size() const { return *size_; }
  bool is_name() const { return is_name_; }
  const std::set<std::string>& names() const { return names_; }
  /// Nothing for a division by zero, a name without a size, and what no int64 holds.
  std::optional<int64_t> evaluate(const Sizes& sizes) const;

  struct Node;

 private:
  std::string text_;
  std::optional<int64_t> size_;
  bool is_name_ = false;
  std::set<std::string> names_;
  std::shared_ptr<const Node> root_;
};

struct Bounds {
  int64_t minimum = 1;
  std::optional<int64_t> maximum;
  bool hold(int64_t size) const { return minimum <= size && (!maximum || size <= *maximum); }
  std::string text() const;
};

/// What the sizes of a call must satisfy, `n % 2 == 0`, and who needs it.
class Condition {
 public:
  /// Throws artifact-corrupt for what is no comparison of two dims by == != >= <= > or <.
  Condition(const std::string& text, const std::string& why);

  /// Whether it is known to hold of these sizes.
  bool holds(const Sizes& sizes) const;
  /// What is wrong with them.
  std::string broken_by(const Sizes& sizes) const;

 private:
  std::string text_, why_, relation_;
  std::vector<Dim> sides_;
};

struct TensorSpec {
  std::string name, dtype;
  std::vector<Dim> shape;
  std::string text() const;
};

struct Signature {
  std::vector<TensorSpec> inputs, outputs;
  std::map<std::string, Bounds> bounds;
  std::set<std::string> constants;
  std::vector<Condition> conditions;
  std::vector<TensorSpec> state;     // what a session keeps between runs
  std::vector<std::string> initial;  // of these, what does not begin with 0
};

/// `[1, 3]`.
std::string shape_text(const std::vector<int64_t>& shape);

/// Return the size of every symbolic dim, from the shapes of the inputs in their order. Throws input-shape.
Sizes bind_dims(const Signature& signature, const std::vector<std::vector<int64_t>>& shapes);

}  // namespace relaxc_runtime
