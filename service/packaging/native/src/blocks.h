// The digests of an artifact's blocks, in its last section; service/artifact/blocks.py writes them.
#pragma once
#include <map>
#include <string>

#include "file.h"
#include "manifest.h"
#include "sections.h"

namespace relaxc_runtime {

/// Throws artifact-corrupt where a byte of the artifact in `file`, or of the `weights` at `image` of their file, is not what was
/// packed. All cores hash, and files that this process has seen are not read again until they change. Of a file that an older
/// version packed only the code is checked.
void check_file(const File& file, const std::map<std::string, Section>& sections, const Manifest& manifest, const File& weights, Section image);

}  // namespace relaxc_runtime
