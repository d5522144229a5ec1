#include "threads.h"

#include <pthread.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "failure.h"
#include "machine.h"

namespace relaxc_runtime {
namespace {

constexpr int kAffinityBig = 1;  // threading::ThreadGroup::AffinityMode::kBig, the default

thread_local int threads_here = 0;

constexpr int kMostWorkers = 64;  // of all callers' pools together, and again of those of the threads that stay

std::mutex environment;

/// Make this thread's pool before TVM does, with a worker for each core and nothing pinned. TVM_NUM_THREADS stays set: TVM reads
/// it again at every launch, and takes half of the logical CPUs where it is unset.
int make_pool(int workers) {
  std::lock_guard<std::mutex> lock(environment);
  setenv("TVM_BIND_THREADS", "0", 0);
  const char* before = std::getenv("TVM_NUM_THREADS");
  int wanted = std::max(workers, before ? std::atoi(before) : 0);
  if (!before || std::atoi(before) != wanted) setenv("TVM_NUM_THREADS", std::to_string(wanted).c_str(), 1);
  return tvm::ffi::Function::GetGlobalRequired("runtime.NumThreads")().cast<int>();
}

void use_threads(int count) {
  if (!threads_here) threads_here = make_pool(std::max(count, cpu_cores()));
  if (threads_here == count) return;
  static const tvm::ffi::Function configure = tvm::ffi::Function::GetGlobalRequired("runtime.config_threadpool");
  configure(kAffinityBig, count);
  threads_here = count;
}

/// Threads that stay, each with a pool of its own, and how many callers have one. Never destroyed, as its threads never end.
class Shared {
 public:
  explicit Shared(bool is_forked) : is_forked_(is_forked), forked_(pthread_self()) {}

  /// Whether the calling thread, which has no pool, may have one. That which goes on in a forked process has one that is dead.
  bool takes_pool() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pools_ == most_ || (is_forked_ && pthread_equal(forked_, pthread_self()))) return false;
    ++pools_;
    return true;
  }

  void run(int count, const std::function<void()>& work) {
    Task task{count, work};
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_.push_back(&task);
    if (waiting_.size() > idle_ && threads_ < most_) start();
    wake_.notify_one();
    done_.wait(lock, [&] { return task.is_done; });
    if (task.failure) std::rethrow_exception(task.failure);
  }

 private:
  struct Task {
    int count;
    const std::function<void()>& work;
    std::exception_ptr failure = nullptr;
    bool is_done = false;
  };

  /// One more thread, with the lock held. Where the system gives none, those that there are do; without any the caller is told.
  void start() {
    try {
      std::thread(&Shared::serve, this).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_) return;
      waiting_.pop_back();
      throw;
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [&] { return !waiting_.empty(); });
      --idle_;
      Task* task = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        use_threads(task->count);
        task->work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      task->failure = failure;
      task->is_done = true;
      done_.notify_all();
    }
  }

  const int most_ = std::max(2, kMostWorkers / cpu_cores());
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Task*> waiting_;
  size_t idle_ = 0;
  int threads_ = 0, pools_ = 0;
  bool is_forked_;
  pthread_t forked_;
};

Shared* shared = nullptr;

void forked() {
  new (&environment) std::mutex;  // a thread that is not here may have held it
  threads_here = 0;
  shared = new Shared(true);
}

Shared& the_shared() {
  static const int registered = pthread_atfork(nullptr, nullptr, forked);
  (void)registered;
  static Shared* const first = new Shared(false);
  return shared ? *shared : *first;
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

void call_with_threads(int count, const std::function<void()>& work) {
  if (!threads_here && !the_shared().takes_pool()) return the_shared().run(count, work);
  use_threads(count);
  work();
}

}  // namespace relaxc_runtime
