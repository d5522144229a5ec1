// How many threads TVM's kernels use; as service/runtime/threads.py does.
#pragma once

namespace relaxc_runtime {

/// RELAXC_THREADS of the environment, or this process's cores. Throws invalid-option where it is no number.
int default_threads();

/// Have the kernels that the calling thread runs from now on use `count` threads, or as many as its pool has.
void use_threads(int count);

}  // namespace relaxc_runtime
