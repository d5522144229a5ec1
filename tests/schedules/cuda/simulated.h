// A CUDA kernel on the CPU: the threads of a cluster are fibers that run in turns, and change at barriers and shuffles.
// Shared memory is poisoned with NaN first. It shows sums, indices and barriers, not the memory model.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <vector>
using std::max;
using std::min;
#define __device__
#define __forceinline__ inline
#define DEV inline
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct ulonglong2 { unsigned long long x, y; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float rsqrtf(float x) { return 1.f / sqrtf(x); }
static float __fdividef(float x, float y) { return x / y; }
struct __half { _Float16 v; };
struct __half2 { __half x, y; };
struct __nv_bfloat16 { uint16_t v; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static float __half2float(__half x) { return x.v; }
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
static void __syncwarp() { meet(warp_barriers[current->at / 32]); }
static float __shfl_xor_sync(unsigned, float value, int by) {
  slots[current->at] = value;
  __syncwarp();
  const float other = slots[current->at ^ by];
  __syncwarp();
  return other;
}

namespace hopper {
DEV void earlier_kernels_done() {}
DEV void next_kernel_may_start() {}
DEV void prefetch(const void* from) { volatile char touched = *(const char*)from; (void)touched; }
DEV void cluster_arrive_release() {}
DEV void cluster_wait() { meet(cluster_barrier); }
DEV uint32_t cluster_rank() { return current->cta; }
DEV float read_at(const float* shared, int cta) {
  float value;
  memcpy(&value, shared_of[cta] + ((const char*)shared - shared_of[current->cta]), 4);
  return value;
}
