#include "threads.h"

#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

#include "failure.h"
#include "machine.h"

namespace relaxc_runtime {
namespace {

constexpr int kAffinityBig = 1;  // threading::ThreadGroup::AffinityMode::kBig, the default

thread_local int threads_here = 0;

/// Make this thread's pool before TVM does, with a worker for each core and nothing pinned. TVM_NUM_THREADS stays set: TVM reads
/// it again at every launch, and takes half of the logical CPUs where it is unset.
int make_pool(int workers) {
  static std::mutex environment;
  std::lock_guard<std::mutex> lock(environment);
  setenv("TVM_BIND_THREADS", "0", 0);
  const char* before = std::getenv("TVM_NUM_THREADS");
  int wanted = std::max(workers, before ? std::atoi(before) : 0);
  if (!before || std::atoi(before) != wanted) setenv("TVM_NUM_THREADS", std::to_string(wanted).c_str(), 1);
  return tvm::ffi::Function::GetGlobalRequired("runtime.NumThreads")().cast<int>();
}

}  // namespace

int default_threads() {
  const char* text = std::getenv("RELAXC_THREADS");
  if (!text || !*text) return cpu_cores();
  char* end = nullptr;
  long count = std::strtol(text, &end, 10);
  if (*end || count < 0 || count > 1024) throw Failure(RELAXC_INVALID_OPTION, "RELAXC_THREADS is " + in_quotes(text) + ", which is no number of threads");
  return count ? static_cast<int>(count) : cpu_cores();
}

void use_threads(int count) {
  if (!threads_here) threads_here = make_pool(std::max(count, cpu_cores()));
  if (threads_here == count) return;
  static const tvm::ffi::Function configure = tvm::ffi::Function::GetGlobalRequired("runtime.config_threadpool");
  configure(kAffinityBig, count);
  threads_here = count;
}

}  // namespace relaxc_runtime
