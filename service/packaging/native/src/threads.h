// How many threads TVM's kernels use; as service/runtime/threads.py does.
#pragma once
#include <functional>

namespace relaxc_runtime {

/// RELAXC_THREADS of the environment, or this process's cores. Throws invalid-option where it is no number.
int default_threads();

/// Do `work`, whose kernels use `count` threads, and throw what it does. It is done in this thread where that has a pool or is one
/// of the first, else in a thread that stays: TVM never gives a pool back, and those of a forked process have no workers.
void call_with_threads(int count, const std::function<void()>& work);

}  // namespace relaxc_runtime
