// The instructions of sm_90a that the kernels are built of, one function each: PTX ISA 8.0, "Asynchronous Warpgroup
// Level Matrix Instructions", "cp.async.bulk.tensor", "mbarrier". Included once a translation unit.
#ifndef RELAXC_HOPPER
#define RELAXC_HOPPER
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DEV __device__ __forceinline__

namespace hopper {

struct alignas(64) TensorMap { uint64_t words[16]; };

DEV uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- mbarriers
DEV void barrier_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
DEV void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEV void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEV void barrier_arrive_at(uint32_t bar, int cta) {
  asm volatile(
      "{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar), "r"(cta) : "memory");
}
DEV void barrier_wait(uint32_t bar, int parity) {
  asm volatile(
      "{\n.reg .pred P;\nW%=:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra D%=;\nbra W%=;\nD%=:\n}" ::"r"(bar), "r"(parity) : "memory");
}
DEV void barriers_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- named barriers of a block: `threads` of it meet at barrier `id`
DEV void block_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEV void block_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- copies of 16 bytes by threads; without a source, zeros
DEV void copy_vector(uint32_t to, const void* from, bool has_source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(has_source ? 16 : 0) : "memory");
}
DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEV void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- tensor memory accelerator
DEV void load_rows(uint32_t to, const TensorMap* map, uint32_t bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      ::"r"(to), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
}
DEV void load_tile(uint32_t to, const TensorMap* map, uint32_t bar, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void load_tile_for(uint32_t to, const TensorMap* map, uint32_t bar, int x, int y, int z, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(ctas) : "memory");
}
DEV void load_image(uint32_t to, const TensorMap* map, uint32_t bar, int c, int x, int y, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(to), "l"(map), "r"(bar), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
}
DEV void store_image(const TensorMap* map, uint32_t from, int c, int x, int y, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
      ::"l"(map), "r"(from), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
}
DEV void store_tile(const TensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
      ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
DEV void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
DEV void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void stores_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }

// ---- warpgroup matrix multiply
DEV void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// An operand in shared memory in the 128-byte swizzle; the leading and the stride offset in bytes.
DEV uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | ((uint64_t)(leading >> 4) << 16) | ((uint64_t)(stride >> 4) << 32) |
         (1ull << 62);
}
// An operand without a swizzle: pieces of 8 rows of 16 bytes, `leading` bytes apart in the sum, `stride` in the rows.
DEV uint64_t plain_operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return (uint64_t)((address & 0x3FFFF) >> 4) | ((uint64_t)(leading >> 4) << 16) | ((uint64_t)(stride >> 4) << 32);
}
// Where the compiler must have the sums of a product that runs apart.
template <int N> DEV void hold(float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int N> DEV void hold(int (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(sums[i])::"memory");
}
DEV void store_matrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// ---- clusters, warps, grids
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void cluster_arrive_release() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV uint32_t cluster_rank() { uint32_t r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV uint32_t address_at(uint32_t address, int cta) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(cta));
  return r;
}
DEV float read_at(const float* shared, int cta) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address_at(shared_address(shared), cta)) : "memory");
  return x;
}
DEV void write_at(float* shared, int cta, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(address_at(shared_address(shared), cta)), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
DEV void send(uint32_t to, uint32_t bar, float x, float y, float z, float w) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];"
      ::"r"(to), "r"(bar), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
DEV void send(uint32_t to, uint32_t bar, int x, int y, int z, int w) {
  send(to, bar, __int_as_float(x), __int_as_float(y), __int_as_float(z), __int_as_float(w));
}
DEV void add_from(uint32_t shared, float (&sums)[4]) {
  float x, y, z, w;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(shared));
  sums[0] += x; sums[1] += y; sums[2] += z; sums[3] += w;
}
DEV void add_from(uint32_t shared, int (&sums)[4]) {
  int x, y, z, w;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(shared));
  sums[0] += x; sums[1] += y; sums[2] += z; sums[3] += w;
}
DEV bool elect() {
  uint32_t p;
  asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nselp.u32 %0, 1, 0, P;\n}" : "=r"(p));
  return p;
}
// Programmatic dependent launch: nothing that an earlier kernel writes may be read, or be written that it reads,
// before `earlier_kernels_done`. The next kernel may begin behind it, and no sooner: a kernel that let the next one begin
// while it waits itself filled SMs with CTAs that wait, and those that worked, clusters above all, lay where room was left
// (attention over 16,384 keys 31 us for 24). Code for a device before sm_90 is launched when the kernel before has ended.
DEV void earlier_kernels_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Brings 128 bytes into L2. It may be said of what an earlier kernel has yet to write: that goes to L2 as well.
DEV void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// ---- values
DEV float widen(float x) { return x; }
DEV float widen(__half x) { return __half2float(x); }
DEV float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
// A float of 8 bits, e4m3: no infinities, and what is too large becomes the largest. Since sm_89.
struct Fp8 { unsigned char bits; };
DEV unsigned short fp8_pair(float x, float y) {
  unsigned short bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(y), "f"(x));
  return bits;
}
DEV float widen(Fp8 x) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)x.bits));
  return __half2float(__ushort_as_half((unsigned short)halves));
}
template <class T> DEV float widen(T x) { return (float)x; }
template <class T> DEV T narrow(float x);
template <> DEV float narrow<float>(float x) { return x; }
template <> DEV __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> DEV __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> DEV Fp8 narrow<Fp8>(float x) { return {(unsigned char)fp8_pair(x, 0.f)}; }
template <class T> DEV float rounded(float x) { return widen(narrow<T>(x)); }
template <class T> DEV uint32_t pack(float x, float y);
template <> DEV uint32_t pack<__half>(float x, float y) {
  __half2 h = __floats2half2_rn(x, y);
  return *(uint32_t*)&h;
}
template <> DEV uint32_t pack<__nv_bfloat16>(float x, float y) {
  __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
  return *(uint32_t*)&h;
}
template <class T> DEV void store_pair(T* to, float x, float y) { *(uint32_t*)to = pack<T>(x, y); }
template <> DEV void store_pair<float>(float* to, float x, float y) { *(float2*)to = make_float2(x, y); }
template <> DEV void store_pair<Fp8>(Fp8* to, float x, float y) { *(unsigned short*)to = fp8_pair(x, y); }
DEV void store_pair(int* to, int x, int y) { *(int2*)to = make_int2(x, y); }
DEV void store_pair(signed char* to, int x, int y) { *(char2*)to = make_char2(x, y); }
DEV void store_pair(unsigned char* to, int x, int y) { *(uchar2*)to = make_uchar2(x, y); }
// Four numbers as bytes, the first lowest.
template <class Pair> DEV uint32_t pack_bytes(Pair low, Pair high) {
  const uint32_t first = __byte_perm((int)low.x, (int)low.y, 0x0040);
  const uint32_t second = __byte_perm((int)high.x, (int)high.y, 0x0040);
  return __byte_perm(first, second, 0x5410);
}
// Four results of a byte each, of the type T.
template <class T> struct Bytes {
  template <class Pair> static DEV uint32_t of(Pair low, Pair high) { return pack_bytes(low, high); }
};
template <> struct Bytes<Fp8> {
  static DEV uint32_t of(float2 low, float2 high) {
    return fp8_pair(low.x, low.y) | (uint32_t)fp8_pair(high.x, high.y) << 16;
  }
};
// Four neighbouring lanes have two bytes of each of four blocks of eight: `low` of the first two, `high` of the others.
// Returns the eight bytes of the block that has the lane's number, in the order of the lanes.
DEV uint2 turned(uint32_t low, uint32_t high) {
  const bool is_upper = threadIdx.x & 2, is_odd = threadIdx.x & 1;
  const uint32_t got = __shfl_xor_sync(0xffffffff, is_upper ? low : high, 2), kept = is_upper ? high : low;
  const uint32_t left = is_upper ? got : kept, right = is_upper ? kept : got;  // of lanes 0 and 1, of lanes 2 and 3
  const uint32_t mine = __byte_perm(left, right, is_odd ? 0x7632 : 0x5410);
  const uint32_t theirs = __shfl_xor_sync(0xffffffff, __byte_perm(left, right, is_odd ? 0x5410 : 0x7632), 1);
  return is_odd ? make_uint2(__byte_perm(theirs, mine, 0x5410), __byte_perm(theirs, mine, 0x7632))
                : make_uint2(__byte_perm(mine, theirs, 0x5410), __byte_perm(mine, theirs, 0x7632));
}

template <int BYTES> struct Raw;
template <> struct Raw<1> { typedef unsigned char type; typedef unsigned short pair; };
template <> struct Raw<2> { typedef unsigned short type; typedef unsigned int pair; };
template <> struct Raw<4> { typedef unsigned int type; typedef uint2 pair; };
template <> struct Raw<8> { typedef unsigned long long type; typedef ulonglong2 pair; };
template <class T> DEV float load(const void* base, long long at) {
  typename Raw<sizeof(T)>::type raw = ((const typename Raw<sizeof(T)>::type*)base)[at];
  return widen(*(T*)&raw);
}
// Have 16 elements from `at` come into L2.
template <class T> DEV void bring(const void* base, long long at) {
#pragma unroll
  for (int i = 0; i < 16 * (int)sizeof(T); i += 32) prefetch((const char*)((const T*)base + at) + i);
}
template <class T> DEV T load_as(const void* base, long long at) { return ((const T*)base)[at]; }
// Two neighbours; `at` is even.
template <class T> DEV float2 load_pair(const void* base, long long at) {
  typename Raw<sizeof(T)>::pair raw = *(const typename Raw<sizeof(T)>::pair*)((const T*)base + at);
  const T* both = (const T*)&raw;
  return make_float2(widen(both[0]), widen(both[1]));
}
// Two neighbouring integers; `at` is even.
template <class T> struct Two { T x, y; };
template <class T> DEV Two<T> load_two(const void* base, long long at) {
  typename Raw<sizeof(T)>::pair raw = *(const typename Raw<sizeof(T)>::pair*)((const T*)base + at);
  return *(const Two<T>*)&raw;
}
// The same of what no kernel writes while this one reads it, said where the compiler cannot know.
namespace constant {
template <class T> DEV float load(const void* base, long long at) {
  typename Raw<sizeof(T)>::type raw = __ldg((const typename Raw<sizeof(T)>::type*)base + at);
  return widen(*(T*)&raw);
}
template <class T> DEV float2 load_pair(const void* base, long long at) {
  typename Raw<sizeof(T)>::pair raw = __ldg((const typename Raw<sizeof(T)>::pair*)((const T*)base + at));
  const T* both = (const T*)&raw;
  return make_float2(widen(both[0]), widen(both[1]));
}
template <class T> DEV Two<T> load_two(const void* base, long long at) {
  typename Raw<sizeof(T)>::pair raw = __ldg((const typename Raw<sizeof(T)>::pair*)((const T*)base + at));
  return *(const Two<T>*)&raw;
}
}  // namespace constant

// What a result of 16 bits does not show: off by less than 1e-6. A NaN stays one, and what is large saturates, without
// a branch. Tested over a dense grid in tests/schedules/cuda/test_functions.py.
DEV float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float reciprocal_fast(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEV float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
DEV float tanh_fast(float x) {
  return fmaf(-2.f, reciprocal_fast(1.f + exp2_fast(x * 2.8853900817779268f)), 1.f);
}
DEV float sigmoid_fast(float x) { return reciprocal_fast(1.f + exp2_fast(x * -1.4426950408889634f)); }
// erf(x) = 1 - 2^(-x q(x)) for x >= 0, with q the polynomial of degree 7 whose largest error in erf is the least: that of
// -log2(erfc(x)) / x by least squares with the weight x erfc(x), repeatedly weighted by the error itself (Lawson). In
// exact arithmetic it is off by 1.6e-8. Its first coefficient is positive, so that the power goes to 0 for large x.
DEV float erf_fast(float x) {
  const float z = fabsf(x);
  const float high = fmaf(fmaf(fmaf(4.53585444e-05f, z, -4.45507229e-04f), z, 1.48944037e-03f), z, 7.74631576e-04f);
  const float low = fmaf(fmaf(fmaf(high, z, -2.82536826e-02f), z, 1.48481616e-01f), z, 9.18416393e-01f);
  return copysignf(1.f - exp2_fast(-z * fmaf(low, z, 1.62790859e+00f)), x);
}
// GELU by tanh: x sigmoid(2 u) is x (1 + tanh(u)) / 2, with u = sqrt(2 / pi) (x + 0.044715 x^3).
DEV float gelu_fast(float x) {
  return x * reciprocal_fast(1.f + exp2_fast(x * fmaf(-1.02943240e-01f, x * x, -2.30220820e+00f)));
}
// clamp(round(x / scale) + zero, low, high), halves to even, the lowest for NaN. What depends on the scale alone is
// computed once for many x. The quotient is rounded as IEEE has it, by a correctly rounded reciprocal and a remainder that
// is exact (Markstein, IA-64 and Elementary Functions, 2000, 8.3); a power of two keeps both within the range. The limits
// are whole numbers, so that the quotient may be clamped first; a sum with 1.5 * 2^23 has it rounded in its last bits.
DEV float rounded_within(float x, int low, int high) {  // 1.5 * 2^23 more
  return fminf(fmaxf(x, (float)low), (float)high) + 12582912.f;
}
DEV float rounded_quotient(float x, float scale, int low, int high) {  // 1.5 * 2^23 more
  const float size = fabsf(scale), power = size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.f;
  const float by = scale * power, reciprocal = __frcp_rn(by), top = x * power, quotient = top * reciprocal;
  const float better = fmaf(fmaf(-quotient, by, top), reciprocal, quotient);
  const float exact = fabsf(quotient) < (size < INFINITY ? 1e30f : 0.f) ? better : quotient;
  return rounded_within(exact, low, high);
}
DEV int quantized(float x, float scale, int zero, int low, int high) {
  return __float_as_int(rounded_quotient(x, scale, low - zero, high - zero)) - 0x4b400000 + zero;
}
DEV int quantized(float x, int zero, int low, int high) {  // by a scale of 1
  return __float_as_int(rounded_within(x, low - zero, high - zero)) - 0x4b400000 + zero;
}
// The same less the zero point, as a float: what is dequantized at once.
DEV float quantized_steps(float x, int zero, int low, int high) {
  return rounded_within(x, low - zero, high - zero) - 12582912.f;
}
DEV float quantized_steps(float x, float scale, int zero, int low, int high) {
  return rounded_quotient(x, scale, low - zero, high - zero) - 12582912.f;
}
// A byte less a zero point, as a float: the byte is put into the last bits of 2^23, as converting it takes longer.
DEV float byte_less(unsigned char q, int zero) { return __int_as_float(0x4b000000 | q) - (8388608.f + zero); }
DEV float byte_less(signed char q, int zero) {
  return __int_as_float(0x4b000000 | (unsigned char)(q ^ 0x80)) - (8388736.f + zero);
}
// Division and remainder of integers that round down.
template <class T> DEV T floor_div(T a, T b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
template <class T> DEV T floor_mod(T a, T b) { return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : (T)0); }
DEV float sigmoid_exact(float x) { return 1.f / (1.f + expf(-x)); }

}  // namespace hopper
#endif
