// relaxc's runtime in C++17: a session over relaxc/runtime.h, with exceptions for its errors. Header only.
//
//   relaxc::Session session("model.so");
//   std::vector<float> pixels(1 * 3 * 224 * 224);
//   relaxc::Result result = session.run({relaxc::input("x", {1, 3, 224, 224}, pixels.data())});
//   const float* scores = result[0].data<float>();
#ifndef RELAXC_RUNTIME_HPP_
#define RELAXC_RUNTIME_HPP_

#include <relaxc/runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace relaxc {

/// What relaxc raises on purpose. `code()` is as `relaxc --json` has it: `artifact-corrupt`, `input-shape`.
class Error : public std::runtime_error {
 public:
  Error(relaxc_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  relaxc_status status() const noexcept { return status_; }
  const char* code() const noexcept { return relaxc_status_name(status_); }

 private:
  relaxc_status status_;
};

inline void check(relaxc_status status) {
  if (status != RELAXC_OK) throw Error(status, relaxc_error_message());
}

/// The name of a C++ type's dtype; float16 and bfloat16, which C++17 has no types for, are given by name.
template <typename T>
constexpr const char* dtype_of() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  else if constexpr (std::is_same_v<T, float>) return "float32";
  else if constexpr (std::is_same_v<T, double>) return "float64";
  else {
    static_assert(std::is_integral_v<T>, "name the dtype");
    constexpr bool is_signed = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return is_signed ? "int8" : "uint8";
    else if constexpr (sizeof(T) == 2) return is_signed ? "int16" : "uint16";
    else if constexpr (sizeof(T) == 4) return is_signed ? "int32" : "uint32";
    else return is_signed ? "int64" : "uint64";
  }
}

/// A tensor of the signature: each dim a size, a name or an expression over names.
struct Spec {
  std::string name, dtype;
  std::vector<std::string> shape;
};

/// An input: a row-major array that the caller keeps alive until the run has ended. An empty name means by its place.
struct Input {
  std::string name, dtype;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

template <typename T>
Input input(std::string name, std::vector<int64_t> shape, const T* data) {
  return {std::move(name), dtype_of<T>(), std::move(shape), data};
}

/// An output, in the memory of its result.
class Output {
 public:
  explicit Output(const relaxc_tensor& tensor) : tensor_(tensor) {}
  std::string name() const { return tensor_.name; }
  std::string dtype() const { return tensor_.dtype; }
  std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.rank}; }
  int64_t size() const {
    int64_t count = 1;
    for (size_t axis = 0; axis < tensor_.rank; ++axis) count *= tensor_.shape[axis];
    return count;
  }
  void* raw() const { return tensor_.data; }
  /// Its elements, which are of the type T. Throws Error where they are not.
  template <typename T>
  T* data() const {
    if (dtype() != dtype_of<T>()) throw Error(RELAXC_INPUT_TYPE, "output '" + name() + "' is " + dtype() + ", not " + dtype_of<T>());
    return static_cast<T*>(tensor_.data);
  }

 private:
  relaxc_tensor tensor_;
};

/// The outputs of a run, in the model's order.
class Result {
 public:
  explicit Result(relaxc_result* result) : result_(result, relaxc_result_free) {}
  size_t size() const { return relaxc_result_count(result_.get()); }
  Output operator[](size_t index) const {
    relaxc_tensor tensor{};
    check(relaxc_result_tensor(result_.get(), index, &tensor));
    return Output(tensor);
  }
  Output operator[](const std::string& name) const {
    for (size_t index = 0; index < size(); ++index)
      if ((*this)[index].name() == name) return (*this)[index];
    throw Error(RELAXC_INPUT_NAME, "there is no output '" + name + "'");
  }

 private:
  std::unique_ptr<relaxc_result, decltype(&relaxc_result_free)> result_;
};

/// How an artifact is opened; see relaxc_options.
struct Options {
  int32_t threads = 0;
  std::string device, sha256;
};

/// An open artifact.
class Session {
 public:
  explicit Session(const std::string& path, const Options& options = {}) : session_(nullptr, relaxc_close) {
    relaxc_options given{};
    given.size = sizeof given;
    given.threads = options.threads;
    given.device = options.device.empty() ? nullptr : options.device.c_str();
    given.sha256 = options.sha256.empty() ? nullptr : options.sha256.c_str();
    relaxc_session* opened = nullptr;
    check(relaxc_open(path.c_str(), &given, &opened));
    session_.reset(opened);
  }

  std::vector<Spec> inputs() const { return specs(relaxc_input_count(get()), relaxc_input); }
  std::vector<Spec> outputs() const { return specs(relaxc_output_count(get()), relaxc_output); }
  std::string target() const { return relaxc_target(get()); }
  int32_t threads() const { return relaxc_threads(get()); }
  std::string manifest() const { return relaxc_manifest(get()); }
  relaxc_session* get() const { return session_.get(); }
  /// Have the state of before the first run, where the model keeps any.
  void reset() const { check(relaxc_reset(get())); }

  Result run(const std::vector<Input>& inputs) const {
    std::vector<relaxc_tensor> tensors;
    tensors.reserve(inputs.size());
    for (const Input& each : inputs)
      tensors.push_back({each.name.empty() ? nullptr : each.name.c_str(), each.dtype.c_str(), each.shape.size(),
                         each.shape.data(), const_cast<void*>(each.data)});
    relaxc_result* result = nullptr;
    check(relaxc_run(get(), tensors.data(), tensors.size(), &result));
    return Result(result);
  }

 private:
  template <typename Read>
  std::vector<Spec> specs(size_t count, Read read) const {
    std::vector<Spec> found;
    for (size_t index = 0; index < count; ++index) {
      relaxc_spec spec{};
      check(read(get(), index, &spec));
      found.push_back({spec.name, spec.dtype, {spec.shape, spec.shape + spec.rank}});
    }
    return found;
  }

  std::unique_ptr<relaxc_session, decltype(&relaxc_close)> session_;
};

}  // namespace relaxc
#endif  // RELAXC_RUNTIME_HPP_
