// Sections of an ELF shared library, read bounds-checked from untrusted files; as service/artifact/elf.py does.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "file.h"

namespace relaxc_runtime {

struct Section {
  uint64_t offset, size;
};

/// Every section of a 64-bit little-endian shared library by name, each inside the file. Throws artifact-corrupt.
std::map<std::string, Section> read_sections(const File& file);

/// The SHA-256 of what the dynamic loader maps of the library: its PT_LOAD segments, one by one. Where the section table is
/// counts as zero. Throws artifact-corrupt.
std::string loaded_digest(const File& file);

}  // namespace relaxc_runtime
