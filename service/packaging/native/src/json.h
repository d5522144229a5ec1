// JSON of untrusted files, read strictly: the field, and its type, or artifact-corrupt with the field's path.
// The text is parsed by libtvm_ffi.so, which has a JSON reader.
#pragma once
#include <tvm/ffi/any.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace relaxc_runtime {

class Json {
 public:
  static Json parse(const std::string& text, const std::string& where);

  const std::string& where() const { return where_; }
  bool is_null() const;
  bool is_text() const;
  bool is_integer() const;
  std::string text() const;
  int64_t integer() const;
  std::vector<Json> items() const;
  std::vector<std::pair<std::string, Json>> fields() const;
  /// A field of an object. Throws where there is none.
  Json operator[](const std::string& name) const;
  std::optional<Json> find(const std::string& name) const;
  std::vector<std::string> texts() const;

 private:
  Json(tvm::ffi::Any value, std::string where) : value_(std::move(value)), where_(std::move(where)) {}
  tvm::ffi::Any value_;
  std::string where_;
};

}  // namespace relaxc_runtime
