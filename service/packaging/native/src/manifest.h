// What of an artifact's manifest its loader needs, read from its ELF section without loading code.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dims.h"
#include "sections.h"
#include "file.h"

namespace relaxc_runtime {

/// A machine: for a GPU `cpu_arch` and `features` are the host's, and `arch` is `sm_90a`.
struct Target {
  std::string name, kind, arch, cpu_arch;
  std::vector<std::string> features;
};

struct WeightsTable {
  std::vector<TensorSpec> tensors;
  std::optional<std::string> file, sha256;
  uint64_t size = 0;
};

/// One library of the artifact: the file's own code, or of an artifact for several GPUs a section of it.
struct Part {
  Target target;
  std::optional<std::string> section, code_digest;
  std::vector<size_t> weights;  // which of the table's it takes, in order
  uint64_t planned_bytes = 0;   // memory that a run takes on a GPU
};

struct Manifest {
  std::string text, runtime_version, required_arch;
  Signature signature;
  WeightsTable weights;
  std::vector<Part> parts;
  std::vector<std::string> required_features;
  bool has_blocks = false;  // whether it was packed with digests of its blocks
  std::string target_names() const;
};

/// Throws artifact-corrupt for a file that is damaged or not one of relaxc's.
Manifest read_manifest(const File& file, const std::map<std::string, Section>& sections);

/// The bytes of an element of a dtype of a signature; 0 for another name.
size_t item_size(const std::string& dtype);

}  // namespace relaxc_runtime
