#include "sections.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "failure.h"
#include "sha256.h"

namespace relaxc_runtime {
namespace {

constexpr uint64_t kMaxNamesBytes = 1 << 20;
constexpr uint32_t kNone = SHT_NULL, kNoBits = SHT_NOBITS;

Elf64_Ehdr read_header(const File& file) {
  Elf64_Ehdr header;
  file.read(0, &header, sizeof header);
  constexpr unsigned char wanted[] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
  if (std::memcmp(header.e_ident, wanted, sizeof wanted) || header.e_type != ET_DYN)
    corrupt(file.path() + ": this is not a 64-bit little-endian ELF shared library");
  return header;
}

}  // namespace

std::map<std::string, Section> read_sections(const File& file) {
  Elf64_Ehdr header = read_header(file);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || !header.e_shstrndx || header.e_shstrndx >= header.e_shnum)
    corrupt(file.path() + ": the ELF file has no section table");
  std::vector<Elf64_Shdr> table(header.e_shnum);
  file.read(header.e_shoff, table.data(), table.size() * sizeof(Elf64_Shdr));
  const Elf64_Shdr& row = table[header.e_shstrndx];
  if (row.sh_size > kMaxNamesBytes) corrupt(file.path() + ": the ELF file's section names are too long");
  std::string names = file.text(row.sh_offset, static_cast<size_t>(row.sh_size));
  std::map<std::string, Section> sections;
  for (const Elf64_Shdr& entry : table) {
    if (entry.sh_type == kNone || entry.sh_type == kNoBits) continue;  // strip(1) makes ours SHT_RELA, for their name
    if (entry.sh_offset > file.size() || entry.sh_size > file.size() - entry.sh_offset)
      corrupt(file.path() + " is truncated: a section ends after the file");
    size_t end = names.find('\0', entry.sh_name);
    if (entry.sh_name >= names.size() || end == std::string::npos) corrupt(file.path() + ": the ELF file's section names are damaged");
    sections[names.substr(entry.sh_name, end - entry.sh_name)] = {entry.sh_offset, entry.sh_size};
  }
  return sections;
}

std::string loaded_digest(const File& file) {
  Elf64_Ehdr header = read_header(file);
  if (header.e_phentsize != sizeof(Elf64_Phdr)) corrupt(file.path() + ": the ELF file has no program headers");
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  file.read(header.e_phoff, segments.data(), segments.size() * sizeof(Elf64_Phdr));
  header.e_shoff = 0;
  header.e_shnum = header.e_shstrndx = 0;
  Sha256 digest;
  digest.update(&header, sizeof header);
  std::vector<char> block(1 << 16);
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_offset > file.size() || segment.p_filesz > file.size() - segment.p_offset) corrupt(file.path() + " is truncated");
    uint64_t end = segment.p_offset + segment.p_filesz;
    for (uint64_t start = std::max<uint64_t>(segment.p_offset, sizeof header); start < end;) {
      size_t part = static_cast<size_t>(std::min<uint64_t>(block.size(), end - start));
      file.read(start, block.data(), part);
      digest.update(block.data(), part);
      start += part;
    }
  }
  return digest.hex();
}

}  // namespace relaxc_runtime
