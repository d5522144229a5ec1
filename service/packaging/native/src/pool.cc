#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" {  // of libtvm_ffi
void TVMFFIErrorMoveFromRaised(void** error);
void TVMFFIErrorSetRaised(void* error);
int TVMFFIObjectDecRef(void* object);
int TVMFFIEnvModRegisterContextSymbol(const char* name, void* symbol);
}

namespace {

constexpr int kMostThreads = 1024, kRanges = 64, kLine = 64;
constexpr int kParts = 64;  // of a loop of which nothing is known: never a matter of threads, so that results are none

// Times in nanoseconds.
constexpr uint64_t kHandOver = 1500;      // what a thread that is awake costs to come and to be waited for
constexpr uint64_t kWake = 20000;         // work that pays for waking a thread
constexpr uint64_t kSpin = 500000;        // a thread without work stays awake
constexpr uint64_t kGap = 100000;         // one that spins was away from its core: somebody else wants it
constexpr uint64_t kLate = 200000;        // a part that ends this much later than its like was away from its core
constexpr uint64_t kTaken = 2000000;      // cores count as taken after that was seen, doubled where it is seen again soon, up to
constexpr int kMostDoubled = 5;
constexpr uint64_t kSpinTaken = 20000, kWorthTaken = 200000;  // what a thread stays awake then, and work that it is asked for

uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t found;
  asm volatile("mrs %0, cntvct_el0" : "=r"(found));
  return found;
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// What decides how numbers are rounded and whether tiny ones are zeros: a worker has its caller's.
uint64_t float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~_MM_EXCEPT_MASK;
#elif defined(__aarch64__)
  uint64_t found;
  asm volatile("mrs %0, fpcr" : "=r"(found));
  return found;
#else
  return 0;
#endif
}

void set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(mode));
#endif
  (void)mode;
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0); }
void wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

/// Parts that one thread does first, and others when they have done their own.
struct alignas(kLine) Range {
  std::atomic<int> next;
  int end;
};

/// One launch, on its caller's stack until all who help have left it.
struct Job {
  relaxc_task task;
  void* closure;
  TVMParallelGroupEnv env;
  uint64_t float_mode;
  int ranges = 1;
  std::atomic<int> helpers{0};  // that were asked and have not left; a worker that has counted itself out touches the job no more
  std::atomic<uint64_t> work{0};
  std::atomic<int> failed{INT_MAX};  // the first part that failed
  void* error = nullptr;             // of that part, under `locked`
  std::atomic_flag locked = ATOMIC_FLAG_INIT;
  Range range[kRanges];
};

// A worker's state: what it does, in three bits, and below the number of its jobs so far, so that an offer is taken back only by
// who made it. Sleeping or awake it has no job; one that is offered may still be taken back; a worker that works wakes who sleeps on
// its state when it is done, where that is marked.
enum Doing : uint32_t { kAwake, kAsleep, kClaimed, kOffered, kWorking, kAwaited, kDoing = 7, kOneJob = 8 };

struct alignas(kLine) Worker {
  std::atomic<uint32_t> state{kAwake};
  Job* job = nullptr;
  int place = 0;
};

// Nothing here has a destructor: threads that sleep or spin when the process ends touch memory that is still there.
Worker workers[kMostThreads];
std::atomic<int> started{0};
alignas(kLine) std::atomic<int> active{0};  // threads that run parts, callers and workers
alignas(kLine) std::atomic<uint64_t> taken_until{0};
std::atomic<int> taken_level{0};
std::atomic_flag starting = ATOMIC_FLAG_INIT;
int cores = 1;
double ticks_a_ns = 1;

thread_local int most = 0;  // threads that this one's kernels may use; 0 before it said
thread_local bool inside = false;
thread_local uint64_t alone_work = 0, alone_since = 0;  // that helpers could have shared since, had they been awake

uint64_t in_ticks(uint64_t ns) { return static_cast<uint64_t>(static_cast<double>(ns) * ticks_a_ns); }

/// How long each parallel loop took on all threads together: the least of late. Two loops may share a row; it is a matter of time alone.
class Costs {
 public:
  /// 0 where it is not known.
  uint64_t of(relaxc_task task) const {
    const Row& row = rows_[place(task)];
    return row.task.load(std::memory_order_relaxed) == task ? row.ticks.load(std::memory_order_relaxed) : 0;
  }
  void note(relaxc_task task, uint64_t ticks) {
    Row& row = rows_[place(task)];
    uint64_t before = of(task), now = !before || ticks < before ? ticks : before + (ticks - before) / 16;
    if (now == before) return;
    row.ticks.store(now ? now : 1, std::memory_order_relaxed);
    row.task.store(task, std::memory_order_relaxed);
  }

 private:
  struct Row {
    std::atomic<relaxc_task> task;
    std::atomic<uint64_t> ticks;
  };
  static size_t place(relaxc_task task) { return (reinterpret_cast<uintptr_t>(task) >> 4) * 0x9E3779B97F4A7C15u >> 54; }
  Row rows_[1024];
};
Costs costs;

bool is_taken(uint64_t now) { return now < taken_until.load(std::memory_order_relaxed); }

/// Somebody else runs on our cores. The longer this is so, the longer it is believed; what comes alone may be the hypervisor's.
void note_taken(uint64_t now) {
  uint64_t until = taken_until.load(std::memory_order_relaxed);
  if (now < until) return;
  int level = taken_level.load();
  level = now - until < in_ticks(kTaken << (level + 1)) ? std::min(level + 1, kMostDoubled) : 0;
  taken_level.store(level);
  taken_until.store(now + in_ticks(kTaken << level));
}

void keep_error(Job& job, int part) {
  void* error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  while (job.locked.test_and_set(std::memory_order_acquire)) pause();
  if (part < job.failed.load(std::memory_order_relaxed)) {
    job.failed.store(part, std::memory_order_relaxed);
    std::swap(error, job.error);
  }
  job.locked.clear(std::memory_order_release);
  if (error) TVMFFIObjectDecRef(error);
}

/// Do parts until there are none, `place`'s own first; none after one that failed. A worker leaves where there are more threads than
/// cores: its caller is here.
void work_on(Job& job, int place, int most_active) {
  for (int step = 0; step < job.ranges; ++step) {
    Range& range = job.range[(place + step) % job.ranges];
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      if (place && active.load(std::memory_order_relaxed) > most_active) return;
      int part = range.next.fetch_add(1, std::memory_order_relaxed);
      if (part >= range.end) break;
      if (part > job.failed.load(std::memory_order_relaxed)) continue;
      if (job.task(part, &job.env, job.closure)) keep_error(job, part);
    }
  }
}

/// Do all parts, in order.
void work_alone(Job& job) {
  for (int part = 0; part < job.env.num_task; ++part)
    if (job.task(part, &job.env, job.closure)) return keep_error(job, part);
}

void serve(Worker& own) {
  inside = true;
  uint64_t idle_since = ticks(), last = idle_since;
  for (;;) {
    uint32_t state = own.state.load(std::memory_order_acquire);
    if ((state & kDoing) == kOffered) {
      if (!own.state.compare_exchange_strong(state, (state & ~kDoing) | kWorking)) continue;
      Job& job = *own.job;
      active.fetch_add(1, std::memory_order_relaxed);
      set_float_mode(job.float_mode);
      uint64_t start = ticks();
      work_on(job, own.place, std::max(cores, job.ranges));
      idle_since = last = ticks();
      job.work.fetch_add(idle_since - start, std::memory_order_relaxed);
      active.fetch_sub(1, std::memory_order_relaxed);
      job.helpers.fetch_sub(1, std::memory_order_release);
      if ((own.state.exchange((state & ~kDoing) | kAwake) & kDoing) == kAwaited) wake(own.state);
      continue;
    }
    uint64_t now = ticks();
    if (now - last > in_ticks(kGap)) note_taken(now);
    last = now;
    if ((state & kDoing) == kAsleep) {
      sleep_on(own.state, state);
      last = idle_since = ticks();
    } else if ((state & kDoing) == kAwake && now - idle_since > in_ticks(is_taken(now) ? kSpinTaken : kSpin)) {
      own.state.compare_exchange_strong(state, (state & ~kDoing) | kAsleep);
    } else {
      pause();
    }
  }
}

/// Have `count` workers, or as many as the system gives.
void start_workers(int count) {
  while (starting.test_and_set(std::memory_order_acquire)) pause();
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  for (int place = started.load(); place < std::min(count, kMostThreads); ++place) {
    try {
      std::thread(serve, std::ref(workers[place])).detach();
    } catch (const std::system_error&) {
      break;
    }
    started.store(place + 1, std::memory_order_release);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  starting.clear(std::memory_order_release);
}

struct Offer {
  Worker* worker;
  uint32_t state;
};

/// Offer the job to up to `count` workers, of which `sleepers` may have to be woken. Returns how many there are.
int offer(Job& job, Offer* offers, int count, int sleepers) {
  int made = 0;
  for (int place = 0, known = started.load(std::memory_order_acquire); place < known && made < count; ++place) {
    Worker& worker = workers[place];
    uint32_t state = worker.state.load(std::memory_order_relaxed), doing = state & kDoing;
    if (doing > kAsleep || (doing == kAsleep && !sleepers)) continue;
    if (!worker.state.compare_exchange_strong(state, (state & ~kDoing) | kClaimed)) continue;
    worker.job = &job;
    worker.place = made + 1;
    offers[made] = {&worker, ((state & ~kDoing) + kOneJob) | kOffered};
    job.helpers.fetch_add(1, std::memory_order_relaxed);
    worker.state.store(offers[made++].state, std::memory_order_release);
    if (doing == kAsleep) wake(worker.state), --sleepers;
  }
  return made;
}

/// Take back what nobody has begun, and wait for those who have. Whether one of them was away from its core.
bool finish(Job& job, const Offer* offers, int count, uint64_t began) {
  bool has_absent = false;
  for (int place = 0; place < count; ++place) {
    uint32_t state = offers[place].state;
    if (!offers[place].worker->state.compare_exchange_strong(state, (state & ~kDoing) | kAwake)) continue;
    job.helpers.fetch_sub(1, std::memory_order_relaxed);
    has_absent = true;
  }
  uint64_t start = ticks();
  bool was_absent = has_absent && start - began > in_ticks(kLate);
  if (!job.helpers.load(std::memory_order_acquire)) return was_absent;
  uint64_t patience = in_ticks(is_taken(start) ? kSpinTaken : kLate / 2);
  while (job.helpers.load(std::memory_order_acquire)) {
    if (ticks() - start < patience) {
      pause();
      continue;
    }
    for (int place = 0; place < count && job.helpers.load(std::memory_order_acquire); ++place) {
      std::atomic<uint32_t>& own = offers[place].worker->state;
      uint32_t working = (offers[place].state & ~kDoing) | kWorking, awaited = (working & ~kDoing) | kAwaited;
      if (!own.compare_exchange_strong(working, awaited) && working != awaited) continue;
      sleep_on(own, awaited);
    }
  }
  uint64_t waited = ticks() - start, usual = (start - began) / 4;
  return was_absent || waited > std::max(in_ticks(kLate), usual);
}

int result_of(Job& job) {
  if (job.failed.load(std::memory_order_relaxed) == INT_MAX) return 0;
  if (job.error) {
    TVMFFIErrorSetRaised(job.error);
    TVMFFIObjectDecRef(job.error);
  }
  return -1;
}

/// How many threads to ask for help with a loop that took `cost` ticks of late, and how many of them may be woken.
int wanted(uint64_t cost, uint64_t now, int parts, int* sleepers) {
  int limit = most ? most : cores;
  int room = std::min({limit - 1, parts - 1, std::max(cores, limit) - active.load(std::memory_order_relaxed), kRanges - 1});
  if (room <= 0) return 0;
  if (!cost) {
    *sleepers = room;
    return room;
  }
  if (cost < in_ticks(is_taken(now) ? kWorthTaken : 2 * kHandOver)) return 0;
  if (now - alone_since > in_ticks(kSpin)) alone_work = 0;
  uint64_t pays = alone_work + cost;
  *sleepers = pays < in_ticks(kWake) ? 0 : static_cast<int>(std::sqrt(static_cast<double>(pays) / static_cast<double>(in_ticks(kHandOver))));
  alone_work = *sleepers ? 0 : pays;
  alone_since = now;
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(room), cost / in_ticks(kHandOver)));
}

void forked() {
  // The workers are not here, nor are other threads, whatever they were at.
  for (Worker& worker : workers) worker.state.store(kAwake);
  started.store(0);
  active.store(inside ? 1 : 0);
  starting.clear();
}

void measure_ticks() {
  timespec first{}, last{};
  clock_gettime(CLOCK_MONOTONIC, &first);
  uint64_t begin = ticks(), ns = 0;
  while (ns < 100000) {
    clock_gettime(CLOCK_MONOTONIC, &last);
    ns = static_cast<uint64_t>((last.tv_sec - first.tv_sec) * 1000000000L + (last.tv_nsec - first.tv_nsec));
  }
  ticks_a_ns = static_cast<double>(ticks() - begin) / static_cast<double>(ns);
}

}  // namespace

extern "C" {

void relaxc_pool_start(int count) {
  static const int registered = [] {
    measure_ticks();
    pthread_atfork(nullptr, nullptr, forked);
    return TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", reinterpret_cast<void*>(relaxc_pool_launch));
  }();
  (void)registered;
  cores = std::max(1, std::min(count, kMostThreads));
}

int relaxc_pool_use(int count) {
  int before = most;
  most = count;
  return before;
}

int relaxc_pool_workers() { return started.load(); }

int relaxc_pool_launch(relaxc_task task, void* closure, int parts) {
  Job job;
  job.task = task, job.closure = closure, job.env = {nullptr, parts > 0 ? parts : kParts};
  parts = job.env.num_task;
  bool is_nested = inside;
  Offer offers[kRanges];
  int helpers = 0;
  uint64_t began = 0;
  if (!is_nested) {
    inside = true;
    active.fetch_add(1, std::memory_order_relaxed);
    began = ticks();
    int sleepers = 0, count = wanted(costs.of(task), began, parts, &sleepers);
    if (count) {
      if (started.load(std::memory_order_relaxed) < count) start_workers(count);
      job.float_mode = float_mode();
      job.ranges = count + 1;
      for (int place = 0; place < job.ranges; ++place) {
        job.range[place].next.store(static_cast<int>(static_cast<int64_t>(parts) * place / job.ranges), std::memory_order_relaxed);
        job.range[place].end = static_cast<int>(static_cast<int64_t>(parts) * (place + 1) / job.ranges);
      }
      helpers = offer(job, offers, count, sleepers);
      if (!helpers) job.ranges = 1;
    }
  }
  if (job.ranges == 1) work_alone(job);
  else work_on(job, 0, 0);
  if (is_nested) return result_of(job);
  uint64_t done = ticks();
  if (helpers && finish(job, offers, helpers, began)) note_taken(ticks());
  if (job.failed.load(std::memory_order_relaxed) == INT_MAX) costs.note(task, done - began + job.work.load(std::memory_order_relaxed));
  active.fetch_sub(1, std::memory_order_relaxed);
  inside = false;
  return result_of(job);
}

}  // extern "C"
