// An artifact's weights, mapped from the file they lie in.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "manifest.h"
#include "tensors.h"

namespace relaxc_runtime {

/// The file that holds the weights of the artifact, and which bytes of it. A sidecar is looked for under the artifact's own name
/// first, so that the two may be renamed together. Throws artifact-not-found or artifact-corrupt.
std::pair<std::shared_ptr<File>, Section> find_weights(const std::shared_ptr<File>& file, const std::map<std::string, Section>& sections,
                                                       const WeightsTable& table);

/// The tensors of the table, in its order, from the safetensors image there: views of read-only pages, or a copy of one that
/// is not aligned. Throws artifact-corrupt where image and table differ.
std::vector<tvm::ffi::Tensor> map_weights(const File& file, Section image, const std::vector<TensorSpec>& table);

}  // namespace relaxc_runtime
