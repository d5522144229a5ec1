#include "programs.h"

#include <tvm/ffi/string.h>

#include "failure.h"

namespace relaxc_runtime {
namespace {

namespace ffi = tvm::ffi;

constexpr int kPooled = 2;  // VirtualMachine.POOLED_ALLOCATOR

}  // namespace

ffi::Function function_of(const ffi::Any& module, const char* name, bool with_imports) {
  static const ffi::Function getter = ffi::Function::GetGlobalRequired("ffi.ModuleGetFunction");
  ffi::Any found = getter(module, ffi::String(name), with_imports);
  if (found == nullptr) corrupt("the library holds no program of ours: it has no function " + in_quotes(name));
  return found.cast<ffi::Function>();
}

Programs::Programs(ffi::Any library, DLDevice device, int most) : library_(std::move(library)), device_(device), most_(most) {
  free_.reserve(static_cast<size_t>(most));
  free_.push_back(made());
  made_ = 1;
}

std::unique_ptr<Program> Programs::made() const {
  auto program = std::make_unique<Program>();
  program->machine = function_of(library_, "vm_load_executable")();
  ffi::Function start = function_of(program->machine, "vm_initialization", false);
  int kind = static_cast<int>(device_.device_type);
  if (device_.device_type == kDLCPU) start(kind, device_.device_id, kPooled);
  else start(kind, device_.device_id, kPooled, static_cast<int>(kDLCPU), 0, kPooled);
  program->main = function_of(program->machine, "main", false);
  return program;
}

std::unique_ptr<Program> Programs::take() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (free_.empty() && made_ < most_) {  // then nobody waits
    std::unique_ptr<Program> found = made();
    ++made_;
    return found;
  }
  uint64_t number = arrived_++;
  given_.wait(lock, [&] { return number == served_ && !free_.empty(); });
  ++served_;
  std::unique_ptr<Program> found = std::move(free_.back());
  free_.pop_back();
  given_.notify_all();
  return found;
}

void Programs::give(std::unique_ptr<Program> program) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(program));
  given_.notify_all();
}

}  // namespace relaxc_runtime
