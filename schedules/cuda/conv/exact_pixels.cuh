// One sum of a convolution, rounded once: for the few results that `mma_wide.cuh` does not give exactly.
__device__ __noinline__ float exact_sum(const In* A, const In* B, int, int m, int n, int) {
  const int line = m / OUT_W, image = line / OUT_H;
  const int y = (line - image * OUT_H) * STEP_Y - PAD_Y, x = (m - line * OUT_W) * STEP_X - PAD_X;
  double sum = 0.;
#pragma unroll 1
  for (int tap = 0; tap < KERNEL_H * KERNEL_W; tap++) {
    const int from_y = y + tap / KERNEL_W * DILATION_Y, from_x = x + tap % KERNEL_W * DILATION_X;
    const bool is_inside = from_y >= 0 && from_y < IN_H && from_x >= 0 && from_x < IN_W;
    const In* pixel = A + ((image * IN_H + from_y) * IN_W + from_x) * CHANNELS;
    const In* filter = B + (tap * SIZE_N + n) * DEPTH;
#pragma unroll 1
    for (int c = 0; c < DEPTH; c++) sum = fma(is_inside ? (double)pixel[c] : 0., (double)filter[c], sum);
  }
  return (float)sum;
}
