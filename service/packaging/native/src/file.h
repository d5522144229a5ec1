// A file that is read bounds-checked, and parts of files that are mapped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace relaxc_runtime {

/// A regular file, open for reading.
class File {
 public:
  /// Throws artifact-not-found where there is none.
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  /// Read all of `offset .. offset + count`. Throws artifact-corrupt where the file ends before.
  void read(uint64_t offset, void* into, size_t count) const;
  std::string text(uint64_t offset, size_t count) const;
  /// The SHA-256 of a part of the file.
  std::string digest(uint64_t offset, uint64_t count) const;

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

/// Read-only pages of a file, which the kernel reads on first use and shares between processes.
class Mapping {
 public:
  Mapping(const File& file, uint64_t offset, uint64_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  void* pages_ = nullptr;
  size_t length_ = 0;
  const uint8_t* data_ = nullptr;
  uint64_t size_;
};

}  // namespace relaxc_runtime
