// The programs of a session: one for each call that goes on at a time.
#pragma once
#include <tvm/ffi/any.h>
#include <tvm/ffi/function.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace relaxc_runtime {

/// A virtual machine with its memory: one call at a time has it.
struct Program {
  tvm::ffi::Any machine;
  tvm::ffi::Function main;
  std::map<std::string, std::pair<size_t, std::shared_ptr<void>>> copies;  // of inputs, which the next call overwrites
};

/// The function of a module. Throws where it has none.
tvm::ffi::Function function_of(const tvm::ffi::Any& module, const char* name, bool with_imports = true);

/// Up to `most` programs of a library, made when they are needed; calls beyond wait, and are served as they came.
class Programs {
 public:
  Programs(tvm::ffi::Any library, DLDevice device, int most);

  /// A program that no other call has, the one that was given back last if there is one. Who takes it gives it back.
  std::unique_ptr<Program> take();
  void give(std::unique_ptr<Program> program);

 private:
  std::unique_ptr<Program> made() const;

  tvm::ffi::Any library_;
  DLDevice device_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<std::unique_ptr<Program>> free_;
  int made_ = 0, most_;
  uint64_t arrived_ = 0, served_ = 0;  // calls, so that who came first is first
};

}  // namespace relaxc_runtime
