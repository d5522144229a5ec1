// SHA-256 (FIPS 180-4).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace relaxc_runtime {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(const void* data, size_t size);
  /// The digest; nothing may be added afterwards.
  Digest bytes();
  /// The digest in lower-case hex; nothing may be added afterwards.
  std::string hex();

 private:
  void blocks(const uint8_t* data, size_t count);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> left_{};
  uint64_t size_ = 0;
};

}  // namespace relaxc_runtime
