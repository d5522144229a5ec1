// Depthwise convolutions and pooling in NHWC: C[n, y, x, c] = epilogue(sum or maximum over the taps of a window of
// A[n, y, x, c] * W[r, q, c]). A thread has 8 channels, 16 bytes, of STRIP pixels beside each other, and reads each
// element of the image once. Stands in a namespace that has defined: the sizes, KIND, STRIP, THREADS, the types In and
// Out, Operands and `epilogue`.
using namespace hopper;

constexpr int DEPTHWISE = 0, MAXIMUM = 1;
constexpr int GROUPS = CHANNELS / 8, STRIPS = (OUT_W + STRIP - 1) / STRIP;
constexpr int SPAN = (STRIP - 1) * STEP_X + (KERNEL_W - 1) * DILATION_X + 1;  // elements of a line that a strip reads

struct Eight { float2 pair[4]; };

DEV Eight eight_at(const In* from) {
  const uint4 raw = *(const uint4*)from;
  const In* values = (const In*)&raw;
  Eight found;
#pragma unroll
  for (int i = 0; i < 4; i++) found.pair[i] = make_float2(widen(values[i * 2]), widen(values[i * 2 + 1]));
  return found;
}

DEV void store_eight(__half* to, const Eight& v) {
  *(uint4*)to = make_uint4(pack<__half>(v.pair[0].x, v.pair[0].y), pack<__half>(v.pair[1].x, v.pair[1].y),
                           pack<__half>(v.pair[2].x, v.pair[2].y), pack<__half>(v.pair[3].x, v.pair[3].y));
}
DEV void store_eight(__nv_bfloat16* to, const Eight& v) {
  typedef __nv_bfloat16 T;
  *(uint4*)to = make_uint4(pack<T>(v.pair[0].x, v.pair[0].y), pack<T>(v.pair[1].x, v.pair[1].y),
                           pack<T>(v.pair[2].x, v.pair[2].y), pack<T>(v.pair[3].x, v.pair[3].y));
}
DEV void store_eight(float* to, const Eight& v) {
  ((float4*)to)[0] = make_float4(v.pair[0].x, v.pair[0].y, v.pair[1].x, v.pair[1].y);
  ((float4*)to)[1] = make_float4(v.pair[2].x, v.pair[2].y, v.pair[3].x, v.pair[3].y);
}

DEV void take(float2& into, float2 value, float2 weight) {
  if (KIND == DEPTHWISE) {
    into.x = fmaf(value.x, weight.x, into.x);
    into.y = fmaf(value.y, weight.y, into.y);
  } else if (KIND == MAXIMUM) {
    into.x = fmaxf(into.x, value.x);
    into.y = fmaxf(into.y, value.y);
  } else {
    into.x += value.x;
    into.y += value.y;
  }
}

DEV void windows(const In* image, const In* weight, Out* out, const Operands operands) {
  next_kernel_may_start();
  earlier_kernels_done();
  const int id = blockIdx.x * THREADS + threadIdx.x;
  if (id >= IMAGES * OUT_H * STRIPS * GROUPS) return;
  const int strips = id / GROUPS, c = (id - strips * GROUPS) * 8;
  const int lines = strips / STRIPS, x0 = (strips - lines * STRIPS) * STRIP;
  const int n = lines / OUT_H, y = lines - n * OUT_H;
  const float least = KIND == MAXIMUM ? -3.4028234663852886e38f : 0.f;
  Eight sums[STRIP];
#pragma unroll
  for (int o = 0; o < STRIP; o++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[o].pair[i] = make_float2(least, least);
#pragma unroll
  for (int r = 0; r < KERNEL_H; r++) {
    const int in_y = y * STEP_Y - PAD_Y + r * DILATION_Y;
    if (in_y < 0 || in_y >= IN_H) continue;
    Eight weights[KERNEL_W];
    if (KIND == DEPTHWISE)
#pragma unroll
      for (int q = 0; q < KERNEL_W; q++) weights[q] = eight_at(weight + (r * KERNEL_W + q) * CHANNELS + c);
    const In* line = image + (n * IN_H + in_y) * IN_W * CHANNELS + c;
#pragma unroll
    for (int j = 0; j < SPAN; j++) {
      const int in_x = x0 * STEP_X - PAD_X + j;
      if (in_x < 0 || in_x >= IN_W) continue;
      const Eight value = eight_at(line + in_x * CHANNELS);
#pragma unroll
      for (int o = 0; o < STRIP; o++) {
        const int tap = j - o * STEP_X;
        if (tap >= 0 && tap % DILATION_X == 0 && tap / DILATION_X < KERNEL_W)
#pragma unroll
          for (int i = 0; i < 4; i++)
            take(sums[o].pair[i], value.pair[i], weights[KIND == DEPTHWISE ? tap / DILATION_X : 0].pair[i]);
      }
    }
  }
#pragma unroll
  for (int o = 0; o < STRIP; o++) {
    if (x0 + o >= OUT_W) break;
    const int m = lines * OUT_W + x0 + o;
    Eight done;
#pragma unroll
    for (int i = 0; i < 4; i++) done.pair[i] = epilogue(sums[o].pair[i], 0, m, c + i * 2, operands);
    store_eight(out + m * CHANNELS + c, done);
  }
}
