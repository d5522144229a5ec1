// The threads of all kernels of a process: decision 046.
#pragma once
#include <cstdint>

extern "C" {

/// As TVM declares it: what a task of a parallel loop is given.
struct TVMParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};

/// A parallel loop as TVM's code generator makes it: does the part `task` of `env->num_task`, 0 where it could.
using relaxc_task = int (*)(int task, TVMParallelGroupEnv* env, void* closure);

/// Have the kernels of every library that is loaded from now on use this pool, on a machine that leaves this process `cores` cores.
void relaxc_pool_start(int cores);

/// Have the kernels that the calling thread runs from now on use at most `count` threads, itself one of them. Returns what was so far.
int relaxc_pool_use(int count);

/// What TVMBackendParallelLaunch does: every part of the loop, in the calling thread and in those that come to help. 0, or -1 with the
/// error of the first part that failed, of those that were run, as the calling thread's.
int relaxc_pool_launch(relaxc_task task, void* closure, int parts);

/// How many threads the pool has, the callers not counted.
int relaxc_pool_workers();
}
