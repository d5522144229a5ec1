// What has to hold before an artifact's code is loaded: the machine, and that the file is what was packed.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "manifest.h"

namespace relaxc_runtime {

/// `x, y`.
std::string joined(const std::vector<std::string>& texts);

/// Which part runs best on this machine's GPU, or is named by RELAXC_CUDA_PART; the first where none runs, which is then refused.
size_t chosen(const Manifest& manifest);

/// Throws machine-mismatch with all that this machine lacks to run a part.
void check_machine(const Manifest& manifest, size_t place);

/// Throws artifact-corrupt where the file has another SHA-256.
void check_digest(const File& file, const std::string& wanted);

/// Where the library of a part that is not the file's own code is.
Section section_of(const Part& part, const std::map<std::string, Section>& sections, const File& file);

/// Throws artifact-corrupt where what the dynamic loader would read is not what was packed. Files of older versions do not say
/// what was.
void check_code(const Part& part, const std::map<std::string, Section>& sections, const File& file);

}  // namespace relaxc_runtime
