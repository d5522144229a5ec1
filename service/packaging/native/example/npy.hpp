// Arrays in .npy files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), read as untrusted.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

/// A row-major array; `memory` starts at a multiple of 64 bytes.
struct Array {
  std::string dtype;
  std::vector<int64_t> shape;
  char* data = nullptr;
  std::vector<char> memory;

  /// Make room for this many bytes, zeroed.
  void resize(size_t size);
};

/// Read an array; raw two-byte items (`V2`) are bfloat16. Throws relaxc::Error input-type for a file that is no such array.
Array read_npy(const std::string& path);

/// Write an array. Throws relaxc::Error invalid-option where it cannot be written.
void write_npy(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape, const void* data);

/// The bytes of an element; 0 for an unknown dtype.
size_t item_size(const std::string& dtype);
