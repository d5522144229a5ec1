// TVM's CUDA runtime in this process: loaded where an artifact needs it, or refused with what is missing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace relaxc_runtime {

/// (9, 0) of `sm_90` and `sm_90a`. Throws artifact-corrupt for another text.
std::pair<int, int> capability_of(const std::string& arch);

/// Which of these architectures' code runs best on a GPU of this compute capability; nothing where none does.
std::optional<size_t> best_arch(const std::vector<std::string>& archs, std::pair<int, int> here);

/// The compute capability of GPU `index`; nothing where there is none, and `why`.
std::optional<std::pair<int, int>> gpu_capability(int index, std::string* why);

/// Register TVM's CUDA device and module loader. Throws machine-mismatch. `folder` is where libtvm_runtime_cuda.so is.
void load_cuda_runtime(const std::string& folder);

/// Throw machine-mismatch where GPU `index` has less free memory than the weights and a run's own values take.
void require_memory(uint64_t weights_bytes, uint64_t run_bytes, int index);

}  // namespace relaxc_runtime
