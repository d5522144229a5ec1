// One sum of a convolution, rounded once: for the few results that `mma_wide.cuh` does not give exactly.
__device__ __noinline__ float exact_sum(const In* A, const In* B, int, int m, int n, const Operands operands) {
  const Image of(operands);
  const int line = m / of.out_w, image = line / of.out_h;
  const int y = (line - image * of.out_h) * STEP_Y - PAD_Y, x = (m - line * of.out_w) * STEP_X - PAD_X;
  double sum = 0.;
#pragma unroll 1
  for (int tap = 0; tap < KERNEL_H * KERNEL_W; tap++) {
    const int from_y = y + tap / KERNEL_W * DILATION_Y, from_x = x + tap % KERNEL_W * DILATION_X;
    const bool is_inside = from_y >= 0 && from_y < of.in_h && from_x >= 0 && from_x < of.in_w;
    const In* pixel = A + (((Place)image * of.in_h + from_y) * of.in_w + from_x) * CHANNELS;
    const In* filter = B + (tap * SIZE_N + n) * DEPTH;
#pragma unroll 1
    for (int c = 0; c < DEPTH; c++) sum = fma(is_inside ? (double)pixel[c] : 0., (double)filter[c], sum);
  }
  return (float)sum;
}
