#include "sha256.h"

#include <cstring>

namespace relaxc_runtime {
namespace {

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

}  // namespace

void Sha256::block(const uint8_t* data) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i)
    words[i] = uint32_t{data[4 * i]} << 24 | uint32_t{data[4 * i + 1]} << 16 | uint32_t{data[4 * i + 2]} << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    uint32_t near = words[i - 15], far = words[i - 2];
    words[i] = words[i - 16] + (rotated(near, 7) ^ rotated(near, 18) ^ near >> 3) + words[i - 7] +
               (rotated(far, 17) ^ rotated(far, 19) ^ far >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::update(const void* data, size_t size) {
  auto from = static_cast<const uint8_t*>(data);
  size_t held = size_ % 64;
  size_ += size;
  if (held) {
    size_t taken = size < 64 - held ? size : 64 - held;
    std::memcpy(left_.data() + held, from, taken);
    from += taken, size -= taken;
    if (held + taken < 64) return;
    block(left_.data());
  }
  for (; size >= 64; from += 64, size -= 64) block(from);
  if (size) std::memcpy(left_.data(), from, size);
}

std::string Sha256::hex() {
  uint64_t bits = size_ * 8;
  uint8_t end[72] = {0x80};
  size_t zeros = (size_ % 64 < 56 ? 56 : 120) - size_ % 64;
  for (int i = 0; i < 8; ++i) end[zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(end, zeros + 8);
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) text += digits[word >> shift & 15];
  return text;
}

}  // namespace relaxc_runtime
