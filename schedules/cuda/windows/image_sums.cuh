// The sum of all pixels of each image in NHWC: C[n, c] = epilogue(sum over p of A[n, p, c]). A block has 64 channels of an
// image; each of its threads adds 8 channels of every LANES-th pixel, and the first 8 add those sums up.
// Stands in a namespace that has defined: `images_of`, CHANNELS, PIXELS, LANES, the types In, Out and Done, Operands and `epilogue`.
using namespace hopper;

DEV void image_sums(float* shared, const In* image, Out* out, const Operands operands) {
  earlier_kernels_done();
  constexpr int blocks = (CHANNELS + 63) / 64;
  const int n = blockIdx.x / blocks, group = threadIdx.x & 7, lane = threadIdx.x >> 3;
  if (n >= images_of(operands)) return;
  const int c = (blockIdx.x - n * blocks) * 64 + group * 8;
  float sums[8];
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i] = 0.f;
  if (c < CHANNELS)
    for (int p = lane; p < PIXELS; p += LANES) {
      uint4 raw[sizeof(In) / 2];
#pragma unroll
      for (int i = 0; i < (int)sizeof(In) / 2; i++) raw[i] = ((const uint4*)(image + (long long)(n * PIXELS + p) * CHANNELS + c))[i];
      const In* values = (const In*)raw;
#pragma unroll
      for (int i = 0; i < 8; i++) sums[i] += widen(values[i]);
    }
#pragma unroll
  for (int i = 0; i < 8; i++) shared[lane * 64 + group * 8 + i] = sums[i];
  __syncthreads();
  const int pair = threadIdx.x, column = (blockIdx.x - n * blocks) * 64 + pair * 2;
  if (pair >= 32 || column >= CHANNELS) return;
  float2 sum = make_float2(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < LANES; i++) {
    sum.x += shared[i * 64 + pair * 2];
    sum.y += shared[i * 64 + pair * 2 + 1];
  }
  const Done done = epilogue(sum, 0, n, column, operands);
  store_pair(out + (long long)n * CHANNELS + column, done.x, done.y);
}
