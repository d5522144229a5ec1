// A CUDA kernel on the CPU: the threads of a cluster are fibers that run in turns, and change at barriers and shuffles.
// Shared memory is poisoned with NaN first. It shows sums, indices and barriers, not the memory model.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <vector>
using std::max;
using std::min;
#define __device__
#define __forceinline__ inline
#define __noinline__
#define DEV inline
struct uint2 { unsigned x, y; };
struct int2 { int x, y; };
struct char2 { signed char x, y; };
struct uchar2 { unsigned char x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ulonglong2 { unsigned long long x, y; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static int2 make_int2(int x, int y) { return {x, y}; }
static char2 make_char2(signed char x, signed char y) { return {x, y}; }
static uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T __ldg(const T* from) { return *from; }
static int __float_as_int(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static float __int_as_float(int x) {
  float value;
  memcpy(&value, &x, sizeof value);
  return value;
}
static float __frcp_rn(float x) { return 1.f / x; }
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
static float __fdividef(float x, float y) { return x / y; }
struct __half { _Float16 v; };
struct __half2 { __half x, y; };
struct __nv_bfloat16 { uint16_t v; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static float __half2float(__half x) { return x.v; }
static __half __ushort_as_half(unsigned short bits) {
  __half x;
  memcpy(&x, &bits, 2);
  return x;
}
static __half __float2half_rn(float x) { return {(_Float16)x}; }
static __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static float __bfloat162float(__nv_bfloat16 x) {
  uint32_t bits = (uint32_t)x.v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static __nv_bfloat16 __float2bfloat16_rn(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return {(uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
static __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }

struct Barrier { int count, arrived = 0, generation = 0; };
struct Index { unsigned x; };
struct Fiber {
  ucontext_t context;
  Index thread, block;
  int cta, at;
  bool done = false;
};
static ucontext_t scheduler;
static Fiber* current;
static Index blockDim;
static std::vector<Barrier> block_barriers, warp_barriers;
static Barrier cluster_barrier;
static std::vector<float> slots;
static std::vector<char*> shared_of;
static long waits = 0;
#define threadIdx (current->thread)
#define blockIdx (current->block)
static void yield() { swapcontext(&current->context, &scheduler); }
static void meet(Barrier& barrier) {
  const int generation = barrier.generation;
  waits = 0;
  if (++barrier.arrived == barrier.count) {
    barrier.arrived = 0;
    barrier.generation++;
  } else {
    while (barrier.generation == generation) yield();
  }
}
static void __syncthreads() { meet(block_barriers[current->cta]); }
static int __syncthreads_or(int x) {
  slots[current->at] = x != 0;
  __syncthreads();
  int any = 0;
  for (int at = 0; at < (int)blockDim.x; at++) any |= slots[current->cta * blockDim.x + at] != 0;
  __syncthreads();
  return any;
}
static void __syncwarp() { meet(warp_barriers[current->at / 32]); }
static uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = (uint64_t)y << 32 | x;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; i++) bytes |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return bytes;
}
static float __shfl_xor_sync(unsigned, float value, int by) {
  slots[current->at] = value;
  __syncwarp();
  const float other = slots[current->at ^ by];
  __syncwarp();
  return other;
}
static uint32_t __shfl_xor_sync(unsigned, uint32_t value, int by) {
  float bits;
  memcpy(&bits, &value, 4);
  bits = __shfl_xor_sync(0u, bits, by);
  memcpy(&value, &bits, 4);
  return value;
}
static long long __shfl_xor_sync(unsigned, long long value, int by) {
  const uint32_t low = __shfl_xor_sync(0u, (uint32_t)value, by), high = __shfl_xor_sync(0u, (uint32_t)(value >> 32), by);
  return (long long)((uint64_t)high << 32 | low);
}
static int __shfl_sync(unsigned, int value, int) { return value; }  // of what is the same in every lane

namespace hopper {
DEV void earlier_kernels_done() {}
DEV void next_kernel_may_start() {}
DEV void prefetch(const void* from) { volatile char touched = *(const char*)from; (void)touched; }
DEV void cluster_arrive() {}
DEV void cluster_arrive_release() {}
DEV void cluster_wait() { meet(cluster_barrier); }
DEV uint32_t cluster_rank() { return current->cta; }
DEV float read_at(const float* shared, int cta) {
  float value;
  memcpy(&value, shared_of[cta] + ((const char*)shared - shared_of[current->cta]), 4);
  return value;
}

DEV void write_at(float* shared, int cta, float4 x) {
  memcpy(shared_of[cta] + ((char*)shared - shared_of[current->cta]), &x, 16);
}

// ---- barriers in shared memory, copies, and products of what lies there without a swizzle: all at once, in order
DEV uint32_t shared_address(const void* p) { return (uint32_t)((const char*)p - shared_of[current->cta]); }
struct Arrivals {
  int wanted, arrived = 0, phases = 0, bytes = 0;
  void next() {
    waits = 0;
    if (arrived == wanted && bytes == 0) { arrived = 0; phases++; }
  }
};
static std::map<char*, Arrivals> arrivals;
static std::map<std::pair<int, int>, Barrier> named;
DEV char* shared_at(uint32_t address) { return shared_of[current->cta] + address; }
DEV void barrier_init(uint32_t bar, int wanted) { arrivals[shared_at(bar)] = {wanted}; }
DEV void barrier_arrive(uint32_t bar) {
  Arrivals& found = arrivals.at(shared_at(bar));
  found.arrived++;
  found.next();
}
DEV void barrier_expect(uint32_t bar, int bytes) {
  arrivals.at(shared_at(bar)).bytes += bytes;
  barrier_arrive(bar);
}
DEV uint32_t address_at(uint32_t address, int cta) { return address | (uint32_t)cta << 24; }
DEV void send(uint32_t to, uint32_t bar, float x, float y, float z, float w) {
  const float values[4] = {x, y, z, w};
  memcpy(shared_of[to >> 24] + (to & 0xffffff), values, 16);
  Arrivals& found = arrivals.at(shared_of[bar >> 24] + (bar & 0xffffff));
  found.bytes -= 16;
  found.next();
}
DEV void barrier_wait(uint32_t bar, int parity) {
  while ((arrivals.at(shared_at(bar)).phases & 1) == parity) yield();
}
DEV void barriers_visible() {}
DEV void fence_async() {}
DEV void block_sync(int id, int threads) {
  Barrier& barrier = named[{current->cta, id}];
  barrier.count = threads;
  meet(barrier);
}
DEV void copy_vector(uint32_t to, const void* from, bool has_source) {
  if (has_source) memcpy(shared_at(to), from, 16); else memset(shared_at(to), 0, 16);
}
DEV void copies_arrive(uint32_t bar) { barrier_arrive(bar); }
// What `ampere::copy` copies is there when its thread has waited for it; until then its place has NaN.
struct Copy { char* to; const char* from; int bytes; bool has_source; };
static std::map<Fiber*, std::vector<std::vector<Copy>>> groups;
static std::map<Fiber*, std::vector<Copy>> open_group;
DEV void copies_commit() {
  groups[current].push_back(open_group[current]);
  open_group[current].clear();
}
template <int N> DEV void copies_wait() {
  auto& waiting = groups[current];
  while ((int)waiting.size() > N) {
    for (const Copy& each : waiting.front()) {
      if (each.has_source) memcpy(each.to, each.from, each.bytes); else memset(each.to, 0, each.bytes);
    }
    waiting.erase(waiting.begin());
  }
}
DEV void copies_done() {}
DEV void mma_fence() {}
DEV void mma_commit() {}
template <int N> DEV void mma_wait() { block_sync(64 + (int)threadIdx.x / 128, 128); }
template <int N> DEV void hold(float (&)[N]) {}
DEV uint64_t plain_operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | ((uint64_t)(leading >> 4) << 16) | ((uint64_t)(stride >> 4) << 32);
}
template <class T> DEV T narrow(float x);
DEV float widen(__half x);
DEV float widen(__nv_bfloat16 x);
template <class In> DEV float element_of(uint64_t operand, int row, int k) {
  const int start = operand & 0x3FFF, leading = operand >> 16 & 0x3FFF, stride = operand >> 32 & 0x3FFF;
  return widen(((const In*)shared_at((start + row / 8 * stride + k / 8 * leading + row % 8) * 16))[k % 8]);
}
template <class In, int N> DEV void product(float (&d)[N], uint64_t a, uint64_t b, int adds) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < N; i++) {
    float sum = adds ? d[i] : 0.f;
    for (int k = 0; k < 16; k++)
      sum += element_of<In>(a, row + i / 2 % 2 * 8, k) * element_of<In>(b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
    d[i] = sum;
  }
}
static uint32_t matrix_rows[4096];
DEV void store_matrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const int warp = current->at / 32 * 32, lane = current->at % 32;
  matrix_rows[current->at] = to;
  __syncwarp();
  const uint32_t values[4] = {a, b, c, d};
  for (int i = 0; i < 4; i++) memcpy(shared_at(matrix_rows[warp + i * 8 + lane / 4]) + lane % 4 * 4, &values[i], 4);
  __syncwarp();
}

static uint32_t fragments[4096][6];
}  // namespace hopper

// ---- products of a warp: every lane shows its registers to the others
namespace ampere {
using namespace hopper;
template <int BYTES> DEV void copy(uint32_t to, const void* from, bool has_source) {
  if (to % BYTES || (uintptr_t)from % BYTES) abort();
  memset(shared_at(to), 0xff, BYTES);
  if (BYTES > 2) open_group[current].push_back({shared_at(to), (const char*)from, BYTES, has_source});
  else if (has_source) memcpy(shared_at(to), from, BYTES);
  else memset(shared_at(to), 0, BYTES);
}
DEV void load_any(uint32_t (&to)[4], uint32_t row, bool transposed) {
  const int warp = current->at / 32 * 32, lane = current->at % 32;
  if (row % 16) abort();
  matrix_rows[current->at] = row;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int e = 0; e < 2; e++) {
      const int r = transposed ? lane % 4 * 2 + e : lane / 4, c = transposed ? lane / 4 : lane % 4 * 2 + e;
      memcpy(&pair[e], shared_at(matrix_rows[warp + i * 8 + r]) + c * 2, 2);
    }
    memcpy(&to[i], pair, 4);
  }
  __syncwarp();
}
DEV void load_matrices(uint32_t (&to)[4], uint32_t row) { load_any(to, row, false); }
DEV void load_transposed(uint32_t (&to)[4], uint32_t row) { load_any(to, row, true); }
template <class In> DEV float half_of(const uint32_t& pair, int which) {
  In value;
  memcpy(&value, (const char*)&pair + which * 2, 2);
  return widen(value);
}
template <class In> DEV uint32_t fused(uint32_t a, uint32_t b, uint32_t c) {
  In both[2];
  for (int i = 0; i < 2; i++) both[i] = narrow<In>(half_of<In>(a, i) * half_of<In>(b, i) + half_of<In>(c, i));
  uint32_t d;
  memcpy(&d, both, 4);
  return d;
}
DEV uint32_t masked(uint32_t x, uint32_t mask, uint32_t base) { return (x & mask) | base; }
DEV uint4 load_once(const void* from) {
  if ((uintptr_t)from % 16) abort();
  return *(const uint4*)from;
}
template <class In> struct Product {
  static DEV void add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int warp = current->at / 32 * 32, lane = current->at % 32;
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(fragments[current->at], mine, sizeof(mine));
    __syncwarp();
    for (int e = 0; e < 4; e++)
      for (int k = 0; k < 16; k++) {
        const uint32_t(&from_a)[6] = fragments[warp + lane / 4 * 4 + k % 8 / 2];
        const uint32_t(&from_b)[6] = fragments[warp + (lane % 4 * 2 + e % 2) * 4 + k % 8 / 2];
        d[e] += half_of<In>(from_a[k / 8 * 2 + e / 2], k % 2) * half_of<In>(from_b[4 + k / 8], k % 2);
      }
    __syncwarp();
  }
};
template <> struct Product<float> {
  static DEV void add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const int warp = current->at / 32 * 32, lane = current->at % 32;
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(fragments[current->at], mine, sizeof(mine));
    __syncwarp();
    for (int e = 0; e < 4; e++)
      for (int k = 0; k < 8; k++) {
        const float x = __int_as_float(fragments[warp + lane / 4 * 4 + k % 4][k / 4 * 2 + e / 2]);
        d[e] += x * __int_as_float(fragments[warp + (lane % 4 * 2 + e % 2) * 4 + k % 4][4 + k / 4]);
      }
    __syncwarp();
  }
};
DEV uint32_t load_word(uint32_t from) {
  uint32_t x;
  memcpy(&x, shared_at(from), 4);
  return x;
}
DEV uint32_t larger(uint32_t x, uint32_t y) {
  const uint32_t high = max(x & 0x7fff0000u, y & 0x7fff0000u);
  return high | max(x & 0x7fffu, y & 0x7fffu);
}
DEV uint32_t upper_halves(uint32_t x, uint32_t y) { return x >> 16 | (y & 0xffff0000u); }
DEV uint32_t in_tf32(uint32_t x) { return (x & 0x7f800000u) == 0x7f800000u ? x : (x + 0x1000u) & 0xffffe000u; }
}  // namespace ampere
namespace hopper {
