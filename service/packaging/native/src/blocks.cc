#include "blocks.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "checks.h"
#include "failure.h"
#include "machine.h"
#include "sha256.h"

namespace relaxc_runtime {
namespace {

constexpr char kSection[] = ".relaxc.blocks", kManifest[] = ".relaxc.manifest";
constexpr uint64_t kBlock = 1 << 20;
constexpr size_t kFew = 4;  // blocks that are hashed sooner than threads are started

struct Fields {
  char magic[8] = {'R', 'E', 'L', 'A', 'X', 'C', '1', '\0'};
  uint64_t block = kBlock, size = 0, size_beside = 0;
  Digest manifest{};
};
static_assert(sizeof(Fields) == 64);

constexpr size_t kHeader = sizeof(Fields) + sizeof(Digest);

struct Extent {
  const File* file;
  uint64_t start, end;
};

void add_blocks(const File& file, uint64_t size, std::vector<Extent>* extents) {
  for (uint64_t start = 0; start < size; start += kBlock) extents->push_back({&file, start, std::min(start + kBlock, size)});
}

Digest digest_of(const Extent& extent) {
  thread_local std::vector<char> bytes(kBlock);
  Sha256 digest;
  for (uint64_t start = extent.start; start < extent.end; start += kBlock) {
    size_t part = static_cast<size_t>(std::min(kBlock, extent.end - start));
    extent.file->read(start, bytes.data(), part);
    digest.update(bytes.data(), part);
  }
  return digest.bytes();
}

/// The first of these whose digest is not the one in `wanted`; their number where there is none.
size_t first_changed(const std::vector<Extent>& extents, const std::vector<Digest>& wanted) {
  std::atomic<size_t> next{0}, changed{extents.size()};
  auto work = [&] {
    for (size_t at = next++; at < extents.size(); at = next++) {
      bool same = false;
      try {
        same = digest_of(extents[at]) == wanted[at];
      } catch (const Failure&) {  // it became shorter
      }
      size_t known = changed;
      while (!same && at < known && !changed.compare_exchange_weak(known, at)) {
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t count = extents.size() <= kFew ? 1 : static_cast<size_t>(cpu_cores()); count > 1; --count) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return changed;
}

Digest manifest_digest(const File& file, const std::map<std::string, Section>& sections) {
  const Section& section = sections.at(kManifest);
  return digest_of({&file, section.offset, section.offset + section.size});
}

/// Whether a tool, strip(1) say, has written the file anew: a header that is whole says that it had another size.
bool is_rewritten(const std::string& text, uint64_t size) {
  if (text.size() < kHeader) return false;
  Fields fields;
  Digest own, found;
  std::memcpy(&fields, text.data(), sizeof fields);
  std::memcpy(&found, text.data() + sizeof fields, sizeof found);
  Sha256 digest;
  digest.update(&fields, sizeof fields);
  own = digest.bytes();
  return own == found && fields.size != size;
}

std::string header_of(const Fields& fields) {
  Sha256 digest;
  digest.update(&fields, sizeof fields);
  Digest own = digest.bytes();
  return std::string(reinterpret_cast<const char*>(&fields), sizeof fields) + std::string(reinterpret_cast<const char*>(own.data()), own.size());
}

void check_blocks(const File& file, Section section, const std::string& text, const Digest& manifest, const File* beside) {
  std::vector<Extent> extents;
  add_blocks(file, section.offset, &extents);
  extents.push_back({&file, section.offset + section.size, file.size()});
  if (beside) add_blocks(*beside, beside->size(), &extents);
  Fields fields;
  fields.size = file.size(), fields.size_beside = beside ? beside->size() : 0, fields.manifest = manifest;
  if (text.size() != kHeader + extents.size() * sizeof(Digest) || text.compare(0, kHeader, header_of(fields)))
    corrupt(file.path() + " is damaged: its digests are not those of such a file");
  std::vector<Digest> wanted(extents.size());
  std::memcpy(wanted.data(), text.data() + kHeader, wanted.size() * sizeof(Digest));
  size_t changed = first_changed(extents, wanted);
  if (changed == extents.size()) return;
  const Extent& bad = extents[changed];
  corrupt(bad.file->path() + " is damaged: its bytes " + std::to_string(bad.start) + " to " + std::to_string(bad.end - 1) + " changed");
}

void check_all_code(const File& file, const std::map<std::string, Section>& sections, const Manifest& manifest) {
  for (const Part& part : manifest.parts) check_code(part, sections, file);
}

void check_parts(const File& file, const std::map<std::string, Section>& sections, const Manifest& manifest, const std::string& text,
                 const File& weights, Section image) {
  Fields fields;
  std::memcpy(&fields, text.data(), sizeof fields);
  if (fields.manifest != manifest_digest(file, sections)) corrupt(file.path() + " is damaged: its manifest changed");
  check_all_code(file, sections, manifest);
  if (weights.digest(image.offset, image.size) != manifest.weights.sha256) corrupt(weights.path() + " is damaged: its weights changed");
}

using Identity = std::array<uint64_t, 14>;

void identify(const File& file, uint64_t* into) {
  struct stat seen {};
  if (fstat(file.descriptor(), &seen)) corrupt("cannot read " + file.path());
  const uint64_t found[7] = {seen.st_dev,
                             seen.st_ino,
                             static_cast<uint64_t>(seen.st_size),
                             static_cast<uint64_t>(seen.st_mtim.tv_sec),
                             static_cast<uint64_t>(seen.st_mtim.tv_nsec),
                             static_cast<uint64_t>(seen.st_ctim.tv_sec),
                             static_cast<uint64_t>(seen.st_ctim.tv_nsec)};
  std::copy(found, found + 7, into);
}

}  // namespace

void check_file(const File& file, const std::map<std::string, Section>& sections, const Manifest& manifest, const File& weights, Section image) {
  static std::mutex checking;
  static std::set<Identity> checked;
  auto section = sections.find(kSection);
  if (section == sections.end()) {
    if (manifest.has_blocks) corrupt(file.path() + " is damaged: it has no " + kSection);
    return check_all_code(file, sections, manifest);
  }
  Identity identity;
  identify(file, identity.data());
  identify(weights, identity.data() + 7);
  {
    std::lock_guard<std::mutex> lock(checking);
    if (checked.count(identity)) return;
  }
  std::string text = file.text(section->second.offset, static_cast<size_t>(section->second.size));
  if (is_rewritten(text, file.size())) check_parts(file, sections, manifest, text, weights, image);
  else check_blocks(file, section->second, text, manifest_digest(file, sections), &weights == &file ? nullptr : &weights);
  std::lock_guard<std::mutex> lock(checking);
  checked.insert(identity);
}

}  // namespace relaxc_runtime
