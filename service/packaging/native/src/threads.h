// How many threads kernels use; as service/runtime/threads.py does.
#pragma once

namespace relaxc_runtime {

/// RELAXC_THREADS of the environment, or this process's cores. Throws invalid-option where it is no number.
int default_threads();

}  // namespace relaxc_runtime
