// An image of few channels, NCHW, as NHWC with 8 channels and with zeros beside its lines: a pixel of the result, 16
// bytes or 32, a thread. Stands in a namespace that has defined: the sizes, LEFT, THREADS, the types In and Out.
using namespace hopper;

DEV void spread(const In* image, Out* out) {
  const int pixel = blockIdx.x * THREADS + threadIdx.x, line = pixel / OUT_W;
  const int n = line / LINES, y = line - n * LINES, x = pixel - line * OUT_W - LEFT;
  earlier_kernels_done();
  if (pixel >= IMAGES * LINES * OUT_W) return;
  alignas(16) Out found[8];
#pragma unroll
  for (int c = 0; c < 8; c++)
    found[c] = c < CHANNELS && x >= 0 && x < IN_W
      ? narrow<Out>(widen(image[((n * CHANNELS + c) * LINES + y) * IN_W + x])) : narrow<Out>(0.f);
#pragma unroll
  for (int i = 0; i < (int)sizeof(Out) / 2; i++) ((uint4*)(out + pixel * 8))[i] = ((const uint4*)found)[i];
}
