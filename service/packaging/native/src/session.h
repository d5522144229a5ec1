// A loaded artifact.
#pragma once
#include <relaxc/runtime.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "manifest.h"
#include "programs.h"
#include "tensors.h"

namespace relaxc_runtime {

/// An output of a run: memory that belongs to the caller alone.
struct Output {
  std::string name, dtype;
  std::vector<int64_t> shape;
  void* data = nullptr;
  std::shared_ptr<const void> owner;
};

class Session {
 public:
  /// Open the artifact. Whatever is wrong with it is raised before its code is loaded.
  Session(const std::string& path, const relaxc_options& options);

  const Manifest& manifest() const { return manifest_; }
  const Target& target() const { return manifest_.parts[place_].target; }
  int threads() const { return threads_; }
  std::vector<Output> run(const relaxc_tensor* inputs, size_t count);
  /// Have the state of before the first run.
  void reset();

 private:
  using Extent = std::pair<uintptr_t, uintptr_t>;

  void choose_device(const char* asked);
  void load_program(const std::string& path, const std::map<std::string, Section>& sections, const File& file);
  std::vector<Output> run(Program& program, const relaxc_tensor* inputs, size_t count);
  std::vector<const relaxc_tensor*> by_spec(const relaxc_tensor* inputs, size_t count) const;
  tvm::ffi::Tensor tensor_of(Program& program, const relaxc_tensor& input, const TensorSpec& spec) const;
  Output output_of(const TensorSpec& spec, const tvm::ffi::Tensor& tensor, std::vector<Extent>* taken) const;
  void adopt(const tvm::ffi::Array<tvm::ffi::Any>& results, std::vector<Extent> taken);
  bool on_host() const { return device_.device_type == kDLCPU; }

  Manifest manifest_;
  size_t place_ = 0;
  int threads_ = 1;
  DLDevice device_{kDLCPU, 0};
  std::vector<tvm::ffi::Tensor> weights_, first_, state_;  // first_: the values in `initial`, the last of the artifact's weights
  std::mutex stepping_;                                    // held by who reads or changes the state
  tvm::ffi::Any library_, tail_;
  bool has_tail_ = false;
  std::unique_ptr<Programs> programs_;
};

}  // namespace relaxc_runtime
