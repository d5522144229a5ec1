#include "cuda.h"

#include <dlfcn.h>

#include <cctype>
#include <mutex>
#include <tuple>

#include "failure.h"

namespace relaxc_runtime {
namespace {

constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…

[[noreturn]] void lacks(const std::string& what) { throw Failure(RELAXC_MACHINE_MISMATCH, "a CUDA artifact needs " + what); }

void* opened(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL); }

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

void* cuda_runtime(const std::string& folder) {
  static void* found = nullptr;
  if (!found) found = opened("libcudart.so.13");
  if (!found && !folder.empty()) found = opened(folder + "/libcudart.so.13");
  return found;
}

std::string mebibytes(uint64_t size) { return std::to_string((size + (1 << 19)) >> 20) + " MiB"; }

}  // namespace

std::pair<int, int> capability_of(const std::string& arch) {
  std::string digits = arch.compare(0, 3, "sm_") ? "" : arch.substr(3);
  if (!digits.empty() && digits.back() == 'a') digits.pop_back();
  bool fits = digits.size() >= 2 && digits.size() <= 4;
  for (char each : digits) fits = fits && std::isdigit(static_cast<unsigned char>(each));
  if (!fits) corrupt(in_quotes(arch) + " is no CUDA architecture");
  return {std::stoi(digits.substr(0, digits.size() - 1)), digits.back() - '0'};
}

std::optional<size_t> best_arch(const std::vector<std::string>& archs, std::pair<int, int> here) {
  using Rank = std::tuple<bool, bool, std::pair<int, int>>;  // the device's own, machine code, how new
  std::optional<size_t> best;
  Rank best_rank;
  for (size_t index = 0; index < archs.size(); ++index) {
    std::pair<int, int> wanted = capability_of(archs[index]);
    bool own = archs[index].back() == 'a';
    if (own ? here != wanted : here < wanted) continue;
    Rank rank = own ? Rank{true, true, wanted} : Rank{false, here.first == wanted.first, wanted};
    if (!best || rank > best_rank) best = index, best_rank = rank;
  }
  return best;
}

std::optional<std::pair<int, int>> gpu_capability(int index, std::string* why) {
  void* driver = opened("libcuda.so.1");
  auto init = driver ? symbol<int (*)(unsigned)>(driver, "cuInit") : nullptr;
  auto get = driver ? symbol<int (*)(int*, int)>(driver, "cuDeviceGet") : nullptr;
  auto attribute = driver ? symbol<int (*)(int*, int, int)>(driver, "cuDeviceGetAttribute") : nullptr;
  if (!init || !get || !attribute) {
    *why = "there is none";
    return {};
  }
  int device = 0, major = 0, minor = 0;
  int error = init(0);
  if (!error) error = get(&device, index);
  if (!error) error = attribute(&major, kMajor, device);
  if (!error) error = attribute(&minor, kMinor, device);
  if (!error) return std::pair(major, minor);
  *why = "the driver is here, and gives error " + std::to_string(error) + " for one";
  return {};
}

void load_cuda_runtime(const std::string& folder) {
  static std::mutex mutex;
  static bool done = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (done) return;
  if (!opened("libcuda.so.1")) lacks("the NVIDIA driver (libcuda.so.1 cannot be loaded): " + std::string(dlerror()));
  if (!cuda_runtime(folder)) lacks("the CUDA 13 runtime (libcudart.so.13)");
  if (!opened(folder + "/libtvm_runtime_cuda.so") && !opened("libtvm_runtime_cuda.so"))
    lacks("TVM's CUDA runtime (libtvm_runtime_cuda.so cannot be loaded): " + std::string(dlerror()));
  done = true;
}

void require_memory(uint64_t weights_bytes, uint64_t run_bytes, int index) {
  void* runtime = cuda_runtime("");
  auto set = symbol<int (*)(int)>(runtime, "cudaSetDevice");
  auto info = symbol<int (*)(size_t*, size_t*)>(runtime, "cudaMemGetInfo");
  size_t free = 0, total = 0;
  if (!set || !info || set(index) || info(&free, &total) || weights_bytes + run_bytes <= free) return;
  throw Failure(RELAXC_MACHINE_MISMATCH, "this artifact needs " + mebibytes(weights_bytes + run_bytes) + " of the GPU's memory (" +
                                             mebibytes(weights_bytes) + " of weights, " + mebibytes(run_bytes) + " for a run); " +
                                             mebibytes(free) + " are free");
}

}  // namespace relaxc_runtime
