#include "file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "failure.h"
#include "sha256.h"

namespace relaxc_runtime {

File::File(const std::string& path) : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw Failure(RELAXC_ARTIFACT_NOT_FOUND, "there is no file " + path);
    corrupt("cannot read " + path + ": " + std::strerror(errno));
  }
  struct stat seen {};
  if (fstat(descriptor_, &seen) || !S_ISREG(seen.st_mode)) {
    close(descriptor_);
    corrupt(path + " is no regular file");
  }
  size_ = static_cast<uint64_t>(seen.st_size);
}

File::~File() { close(descriptor_); }

void File::read(uint64_t offset, void* into, size_t count) const {
  if (offset > size_ || count > size_ - offset) corrupt(path_ + " is truncated");
  auto to = static_cast<char*>(into);
  while (count) {
    ssize_t got = pread(descriptor_, to, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) corrupt("cannot read " + path_ + ": " + (got ? std::strerror(errno) : "it became shorter"));
    to += got, offset += static_cast<uint64_t>(got), count -= static_cast<size_t>(got);
  }
}

std::string File::text(uint64_t offset, size_t count) const {
  if (offset > size_ || count > size_ - offset) corrupt(path_ + " is truncated");
  std::string found(count, '\0');
  read(offset, found.data(), count);
  return found;
}

std::string File::digest(uint64_t offset, uint64_t count) const {
  Sha256 digest;
  std::vector<char> block(1 << 16);
  for (uint64_t done = 0; done < count;) {
    size_t part = static_cast<size_t>(std::min<uint64_t>(block.size(), count - done));
    read(offset + done, block.data(), part);
    digest.update(block.data(), part);
    done += part;
  }
  return digest.hex();
}

Mapping::Mapping(const File& file, uint64_t offset, uint64_t size) : size_(size) {
  if (offset > file.size() || size > file.size() - offset) corrupt(file.path() + " is truncated");
  if (!size) return;
  uint64_t before = offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  length_ = static_cast<size_t>(size + before);
  pages_ = mmap(nullptr, length_, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<off_t>(offset - before));
  if (pages_ == MAP_FAILED) corrupt("the weights in " + file.path() + " cannot be mapped: " + std::strerror(errno));
  data_ = static_cast<const uint8_t*>(pages_) + before;
}

Mapping::~Mapping() {
  if (pages_) munmap(pages_, length_);
}

}  // namespace relaxc_runtime
