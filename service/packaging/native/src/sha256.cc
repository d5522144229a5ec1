#include "sha256.h"

#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>

#include "machine.h"
#endif

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

void add_block(std::array<uint32_t, 8>* state, const uint8_t* data) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i)
    words[i] = uint32_t{data[4 * i]} << 24 | uint32_t{data[4 * i + 1]} << 16 | uint32_t{data[4 * i + 2]} << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    uint32_t near = words[i - 15], far = words[i - 2];
    words[i] = words[i - 16] + (rotated(near, 7) ^ rotated(near, 18) ^ near >> 3) + words[i - 7] +
               (rotated(far, 17) ^ rotated(far, 19) ^ far >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (int i = 0; i < 64; ++i) {
    uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) (*state)[i] += added[i];
}

#ifdef __x86_64__
/// Four rounds an instruction pair, the message's next words beside them (Intel's SHA Extensions, 2013).
__attribute__((target("sha,sse4.1"))) void add_blocks_by_instructions(std::array<uint32_t, 8>* state, const uint8_t* data, size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  auto* words = reinterpret_cast<__m128i*>(state->data());
  __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1), hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(dcba, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, dcba, 0xf0);
  for (; count; --count, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i message[4];
    for (int i = 0; i < 4; ++i) message[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
    for (int i = 0; i < 16; ++i) {
      __m128i now = message[i % 4];
      __m128i sum = _mm_add_epi32(now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRounds) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      // Words 4i+16 and on, of 4i, 4i+1, 4i+9 and 4i+14
      __m128i near = _mm_sha256msg1_epu32(now, message[(i + 1) % 4]);
      __m128i far = _mm_alignr_epi8(message[(i + 3) % 4], message[(i + 2) % 4], 4);
      message[i % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(near, far), message[(i + 3) % 4]);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

void Sha256::blocks(const uint8_t* data, size_t count) {
#ifdef __x86_64__
  static const bool has_instructions = cpu_features().count("sha") && cpu_features().count("sse4.1");
  if (has_instructions) return add_blocks_by_instructions(&state_, data, count);
#endif
  for (; count; --count, data += 64) add_block(&state_, data);
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
    blocks(left_.data(), 1);
  }
  blocks(from, size / 64);
  from += size / 64 * 64, size %= 64;
  if (size) std::memcpy(left_.data(), from, size);
}

Digest Sha256::bytes() {
  uint64_t bits = size_ * 8;
  uint8_t end[72] = {0x80};
  size_t zeros = (size_ % 64 < 56 ? 56 : 120) - size_ % 64;
  for (int i = 0; i < 8; ++i) end[zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(end, zeros + 8);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - i % 4 * 8));
  return digest;
}

std::string Sha256::hex() {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes()) text += {digits[byte >> 4], digits[byte & 15]};
  return text;
}

}  // namespace relaxc_runtime
