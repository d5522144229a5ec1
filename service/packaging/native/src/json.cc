#include "json.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "failure.h"

namespace relaxc_runtime {
namespace {

namespace ffi = tvm::ffi;

constexpr int kMaxDepth = 100;

/// The parser calls itself for each level: text that is nested too deep would end the stack.
bool is_deep(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (size_t place = 0; place < text.size(); ++place) {
    char each = text[place];
    if (in_string) {
      if (each == '\\') ++place;
      if (each == '"') in_string = false;
    } else if (each == '"') {
      in_string = true;
    } else if (each == '[' || each == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (each == ']' || each == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Json Json::parse(const std::string& text, const std::string& where) {
  if (is_deep(text)) corrupt(where + " is nested too deep");
  try {
    static const ffi::Function parser = ffi::Function::GetGlobalRequired("ffi.json.Parse");
    return Json(parser(ffi::String(text)), where);
  } catch (const ffi::Error& error) {
    corrupt(where + " is not JSON: " + error.message());
  }
}

bool Json::is_null() const { return value_ == nullptr; }
bool Json::is_text() const { return value_.as<ffi::String>().has_value(); }
bool Json::is_integer() const { return value_.type_index() == kTVMFFIInt; }

std::string Json::text() const {
  auto found = value_.as<ffi::String>();
  if (!found) corrupt(where_ + " is not of type str");
  std::string text(found->data(), found->size());
  if (text.find('\0') != std::string::npos) corrupt(where_ + " has a NUL in it");
  return text;
}

int64_t Json::integer() const {
  if (!is_integer()) corrupt(where_ + " is not of type int");
  return value_.cast<int64_t>();
}

std::vector<Json> Json::items() const {
  auto found = value_.as<ffi::Array<ffi::Any>>();
  if (!found) corrupt(where_ + " is not of type list");
  std::vector<Json> items;
  items.reserve(found->size());
  for (const ffi::Any& item : *found) items.push_back(Json(item, where_ + "[" + std::to_string(items.size()) + "]"));
  return items;
}

std::vector<std::string> Json::texts() const {
  std::vector<std::string> texts;
  for (const Json& item : items()) texts.push_back(item.text());
  return texts;
}

std::vector<std::pair<std::string, Json>> Json::fields() const {
  auto found = value_.as<ffi::Map<ffi::Any, ffi::Any>>();
  if (!found) corrupt(where_ + " is not a JSON object");
  std::vector<std::pair<std::string, Json>> fields;
  for (const auto& [key, value] : *found) {
    std::string name = Json(key, "a name in " + where_).text();
    fields.emplace_back(name, Json(value, where_ + "." + name));
  }
  return fields;
}

std::optional<Json> Json::find(const std::string& name) const {
  auto found = value_.as<ffi::Map<ffi::Any, ffi::Any>>();
  if (!found) corrupt(where_ + " is not a JSON object");
  auto value = found->Get(ffi::String(name));
  if (!value) return std::nullopt;
  return Json(*value, where_ + "." + name);
}

Json Json::operator[](const std::string& name) const {
  auto found = find(name);
  if (!found) corrupt(where_ + " has no field " + in_quotes(name));
  return *found;
}

}  // namespace relaxc_runtime
