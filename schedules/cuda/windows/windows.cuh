// Depthwise convolutions and pooling in NHWC: C[n, y, x, c] = epilogue(sum or maximum over the taps of a window of
// A[n, y, x, c] * W[r, q, c]). A thread has 8 channels, 16 bytes or 32, of STRIP pixels beside each other; the threads of a
// block have a patch of the result, so that what their windows share comes from L1. All loads of a thread are issued
// before the first is used. Stands in a namespace that has defined: Image, Place, IS_OPEN (sizes are known at
// the call) and `images_of`, CHANNELS, KIND, STRIP, the patch (PATCH_C in
// channels / 8, PATCH_X in strips, PATCH_Y), ROWS (of the kernel that are loaded together), LEAST_PAIR (4 bytes of -inf of In),
// the types In, Out and Done, Operands and `epilogue`.
using namespace hopper;

constexpr int DEPTHWISE = 0, MAXIMUM = 1;
constexpr int GROUPS = CHANNELS / 8;
constexpr int BLOCKS_C = (GROUPS + PATCH_C - 1) / PATCH_C;
constexpr int SPAN = (STRIP - 1) * STEP_X + (KERNEL_W - 1) * DILATION_X + 1;  // elements of a line under a strip
constexpr uint32_t OUTSIDE = KIND == MAXIMUM ? LEAST_PAIR : 0u;

struct Eight { float2 pair[4]; };
struct Raw { uint4 part[sizeof(In) / 2]; };

DEV Raw load_eight(const In* from) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < (int)sizeof(In) / 2; i++) raw.part[i] = ((const uint4*)from)[i];
  return raw;
}

// The tap of pixel `o` of a strip that element `j` is under, or -1.
DEV constexpr int tap_of(int j, int o) {
  const int at = j - o * STEP_X;
  return at >= 0 && at % DILATION_X == 0 && at / DILATION_X < KERNEL_W ? at / DILATION_X : -1;
}
DEV constexpr bool is_read(int j) {
  for (int o = 0; o < STRIP; o++)
    if (tap_of(j, o) >= 0) return true;
  return false;
}

DEV Eight widened(const Raw& raw) {
  const In* values = (const In*)&raw;
  Eight found;
#pragma unroll
  for (int i = 0; i < 4; i++) found.pair[i] = make_float2(widen(values[i * 2]), widen(values[i * 2 + 1]));
  return found;
}

template <class T> DEV void store_eight(T* to, const float2* v) {
  *(uint4*)to = make_uint4(pack<T>(v[0].x, v[0].y), pack<T>(v[1].x, v[1].y), pack<T>(v[2].x, v[2].y),
                           pack<T>(v[3].x, v[3].y));
}
DEV void store_eight(float* to, const float2* v) {
  ((float4*)to)[0] = make_float4(v[0].x, v[0].y, v[1].x, v[1].y);
  ((float4*)to)[1] = make_float4(v[2].x, v[2].y, v[3].x, v[3].y);
}
template <class T> DEV void store_eight(T* to, const int2* v) {
  *(uint2*)to = make_uint2(pack_bytes(v[0], v[1]), pack_bytes(v[2], v[3]));
}

DEV void take(float2& into, float2 value, float2 weight) {
  if (KIND == DEPTHWISE) {
    into.x = fmaf(value.x, weight.x, into.x);
    into.y = fmaf(value.y, weight.y, into.y);
  } else if (KIND == MAXIMUM) {
    into.x = relaxc_max(into.x, value.x);
    into.y = relaxc_max(into.y, value.y);
  } else {
    into.x += value.x;
    into.y += value.y;
  }
}

DEV void windows(const In* image, const In* weight, Out* out, const Operands operands) {
  const Image of(operands);
  const int strips = (of.out_w + STRIP - 1) / STRIP;
  const int blocks_x = max((strips + PATCH_X - 1) / PATCH_X, 1), blocks_y = max((of.out_h + PATCH_Y - 1) / PATCH_Y, 1);
  const int strip_of_patch = threadIdx.x / PATCH_C, line_of_patch = strip_of_patch / PATCH_X;
  const int above_c = blockIdx.x / BLOCKS_C, above_x = above_c / blocks_x, n = above_x / blocks_y;
  const int c = ((blockIdx.x - above_c * BLOCKS_C) * PATCH_C + threadIdx.x - strip_of_patch * PATCH_C) * 8;
  const int x0 = ((above_c - above_x * blocks_x) * PATCH_X + strip_of_patch - line_of_patch * PATCH_X) * STRIP;
  const int y = (above_x - n * blocks_y) * PATCH_Y + line_of_patch;
  earlier_kernels_done();
  if (c >= CHANNELS || x0 >= of.out_w || y >= of.out_h || (IS_OPEN && n >= images_of(operands))) return;
  const float least = KIND == MAXIMUM ? -INFINITY : 0.f;
  Eight sums[STRIP];
#pragma unroll
  for (int o = 0; o < STRIP; o++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[o].pair[i] = make_float2(least, least);
#pragma unroll
  for (int first = 0; first < KERNEL_H; first += ROWS) {
    Raw raw[ROWS][SPAN], weights[ROWS][KERNEL_W];
    // What is outside is read from the nearest element inside, which takes no branch, and then replaced.
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int in_y = y * STEP_Y - PAD_Y + (first + r) * DILATION_Y;
      const In* line = image + ((Place)n * of.in_h + min(max(in_y, 0), of.in_h - 1)) * of.in_w * CHANNELS + c;
#pragma unroll
      for (int j = 0; j < SPAN; j++)
        if (first + r < KERNEL_H && is_read(j))
          raw[r][j] = load_eight(line + min(max(x0 * STEP_X - PAD_X + j, 0), of.in_w - 1) * CHANNELS);
    }
    if (KIND == DEPTHWISE)
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int q = 0; q < KERNEL_W; q++)
          if (first + r < KERNEL_H)
            weights[r][q] = load_eight(weight + ((first + r) * KERNEL_W + q) * CHANNELS + c);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (first + r >= KERNEL_H) break;
      const int in_y = y * STEP_Y - PAD_Y + (first + r) * DILATION_Y;
      Eight taps[KERNEL_W];
      if (KIND == DEPTHWISE)
#pragma unroll
        for (int q = 0; q < KERNEL_W; q++) taps[q] = widened(weights[r][q]);
#pragma unroll
      for (int j = 0; j < SPAN; j++) {
        if (!is_read(j)) continue;
        const int in_x = x0 * STEP_X - PAD_X + j;
        if (in_y < 0 || in_y >= of.in_h || in_x < 0 || in_x >= of.in_w)
#pragma unroll
          for (int i = 0; i < (int)sizeof(In) / 2; i++) raw[r][j].part[i] = make_uint4(OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE);
        const Eight value = widened(raw[r][j]);
#pragma unroll
        for (int o = 0; o < STRIP; o++) {
          const int tap = tap_of(j, o);
          if (tap >= 0)
#pragma unroll
            for (int i = 0; i < 4; i++) take(sums[o].pair[i], value.pair[i], taps[KIND == DEPTHWISE ? tap : 0].pair[i]);
        }
      }
    }
  }
#pragma unroll
  for (int o = 0; o < STRIP; o++) {
    if (x0 + o >= of.out_w) break;
    const int m = (n * of.out_h + y) * of.out_w + x0 + o;
    Done done[4];
#pragma unroll
    for (int i = 0; i < 4; i++) done[i] = epilogue(sums[o].pair[i], 0, m, c + i * 2, operands);
    store_eight(out + (Place)m * CHANNELS + c, done);
  }
}
