// Rows in one pass: out[r, c] = result(x[r, c], sums of the row, c), each sum over the row of a term of x and of the sums
// before it. The row is read once, 16 bytes at a time, and stays in registers; THREADS_PER_ROW threads share it.
// Stands in a namespace that has defined: ROWS, COLUMNS, THREADS_PER_ROW, ROWS_PER_BLOCK, the types In and Out, Operands,
// SUMS and, for each of them, `term`, `start` and whether it is a maximum, and `result`.
using namespace hopper;

constexpr int VECTORS = COLUMNS / 8;
constexpr int HELD = (VECTORS + THREADS_PER_ROW - 1) / THREADS_PER_ROW;  // vectors of a thread
constexpr int WARPS = THREADS_PER_ROW / 32;                              // of a row
static_assert(THREADS_PER_ROW % 32 == 0 && COLUMNS % 8 == 0, "whole warps, whole vectors");

DEV void load_vector(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float4 four = *(const float4*)(from + i * 4);
    to[i * 4] = four.x;
    to[i * 4 + 1] = four.y;
    to[i * 4 + 2] = four.z;
    to[i * 4 + 3] = four.w;
  }
}
template <class T> DEV void load_vector(float* to, const T* from) {
  const uint4 raw = *(const uint4*)from;
  const T* values = (const T*)&raw;
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = widen(values[i]);
}
DEV void store_vector(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    *(float4*)(to + i * 4) = make_float4(from[i * 4], from[i * 4 + 1], from[i * 4 + 2], from[i * 4 + 3]);
}
template <class T> DEV void store_vector(T* to, const float* from) {
  *(uint4*)to = make_uint4(pack<T>(from[0], from[1]), pack<T>(from[2], from[3]), pack<T>(from[4], from[5]),
                           pack<T>(from[6], from[7]));
}

template <bool MAXIMUM> DEV float combined(float x, float y) { return MAXIMUM ? fmaxf(x, y) : x + y; }

// The sum over the threads of a row, in every one of them; all threads of the block come here.
template <bool MAXIMUM> DEV float over_row(float value, float* shared, int warp, int first_warp) {
#pragma unroll
  for (int by = 16; by; by >>= 1) value = combined<MAXIMUM>(value, __shfl_xor_sync(0xffffffff, value, by));
  if (WARPS == 1) return value;
  if ((threadIdx.x & 31) == 0) shared[warp] = value;
  __syncthreads();
  value = shared[first_warp];
#pragma unroll
  for (int i = 1; i < WARPS; i++) value = combined<MAXIMUM>(value, shared[first_warp + i]);
  __syncthreads();
  return value;
}

DEV void rows(float* shared, const In* x, Out* out, const Operands operands) {
  next_kernel_may_start();
  earlier_kernels_done();
  const int in_block = threadIdx.x / THREADS_PER_ROW, lane = threadIdx.x - in_block * THREADS_PER_ROW;
  const int row = blockIdx.x * ROWS_PER_BLOCK + in_block, m = min(row, ROWS - 1);
  const int warp = threadIdx.x >> 5, first_warp = in_block * WARPS;
  const size_t begin = (size_t)m * COLUMNS;
  float values[HELD * 8];
#pragma unroll
  for (int v = 0; v < HELD; v++)
    if (v * THREADS_PER_ROW + lane < VECTORS) load_vector(values + v * 8, x + begin + (v * THREADS_PER_ROW + lane) * 8);
  float sums[SUMS];
  auto reduce = [&](auto which) {
    constexpr int s = decltype(which)::value;
    float all = start<s>();
#pragma unroll
    for (int v = 0; v < HELD; v++) {
      const int vector = v * THREADS_PER_ROW + lane;
      if (vector >= VECTORS) break;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 two = term<s>(make_float2(values[v * 8 + i], values[v * 8 + i + 1]), sums, m, vector * 8 + i, operands);
        all = combined<MAXIMA[s]>(combined<MAXIMA[s]>(all, two.x), two.y);
      }
    }
    sums[s] = over_row<MAXIMA[s]>(all, shared, warp, first_warp);
  };
  each_sum(reduce);
#pragma unroll
  for (int v = 0; v < HELD; v++) {
    const int vector = v * THREADS_PER_ROW + lane;
    if (vector >= VECTORS) break;
    float done[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float2 two = result(make_float2(values[v * 8 + i], values[v * 8 + i + 1]), sums, m, vector * 8 + i, operands);
      done[i] = two.x;
      done[i + 1] = two.y;
    }
    if (row < ROWS) store_vector(out + begin + vector * 8, done);
  }
}
