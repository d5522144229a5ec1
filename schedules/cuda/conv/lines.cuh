// A convolution of images of 8 channels, 16 bytes a pixel, whose lines lie in shared memory: wgmma reads them in place.
// A tile is 8 lines of 8 pixels of the result. In the layout without a swizzle an operand is cut into 8 rows of 16 bytes,
// in one piece, at any two distances: 8 pixels under one tap of the kernel are such a piece where the pixels of a line
// are sorted by their place modulo the stride, the next 8 rows are the next line of the result, and the next 8 of the sum
// are the next tap. So each pixel is copied once for a strip of tiles, and is multiplied under all of its taps.
// A warp of the producers copies a strip, always into the same place of the ring: a barrier tells a wait of one phase from
// the next only, so whoever waits may never be two behind. So too every warp of the consumers lets go of every strip, also
// of one that has no tile for its warpgroup. Each consumer warpgroup takes every CONSUMERS-th tile.
// Stands in a namespace that has defined: IMAGES, IN_H, IN_W, OUT_H, OUT_W, KERNEL_H, KERNEL_W, STEP_Y, STEP_X, PAD_Y,
// DILATION_Y, SIZE_N, TILE_N, STRIP, STAGES, CONSUMERS, the type Out, Operands, `epilogue` and `multiply`.
using namespace hopper;

constexpr int TAPS = KERNEL_H * KERNEL_W, STEPS = (TAPS + 1) / 2;
constexpr int SPAN = STRIP + (KERNEL_W - 1) / STEP_X;  // pixels of a line of a strip at one place modulo STEP_X
constexpr int PLACE_BYTES = SPAN * 16, LINE_BYTES = PLACE_BYTES * STEP_X;
constexpr int LINES = 7 * STEP_Y + (KERNEL_H - 1) * DILATION_Y + 1, STRIP_BYTES = LINES * LINE_BYTES;
constexpr int STRIPS = (OUT_W + STRIP - 1) / STRIP, GROUPS = (OUT_H + 7) / 8, UNITS = STRIPS * GROUPS * IMAGES;
constexpr int TILES = STRIP / 8;  // of a strip
constexpr int PRODUCERS = 4;      // warps: all copy weights, STAGES of them strips
constexpr int CHUNK_BYTES = 64 * 128, WEIGHT_BYTES = STEPS * 2 * TILE_N * 16;
static_assert(STAGES <= PRODUCERS, "a place of the ring is one warp's");
static_assert(STRIP % 8 == 0 && TILE_N % 64 == 0 && SIZE_N <= TILE_N, "tile");

struct Unit { int x, y, n; };  // the first pixel of a strip, in the result

DEV Unit unit_of(int unit) {
  const int rest = unit / STRIPS, n = rest / GROUPS;
  return {(unit - rest * STRIPS) * STRIP, (rest - n * GROUPS) * 8, n};
}

// Where the pixel under a tap lies from that under the first.
DEV constexpr int tap_at(int tap) {
  return tap / KERNEL_W * DILATION_Y * LINE_BYTES + tap % KERNEL_W % STEP_X * PLACE_BYTES + tap % KERNEL_W / STEP_X * 16;
}

// A step of the sum has two taps, that which lies lower first. Behind an odd number of taps the last is there twice, with
// weights of zero.
DEV constexpr int tap_of(int place) {
  const int first = place / 2 * 2, second = first + 1 < TAPS ? first + 1 : first;
  return (tap_at(first) <= tap_at(second)) == (place % 2 == 0) ? first : second;
}

DEV void copy_strip(uint32_t to, const uint4* image, int unit, int lane) {
  const Unit at = unit_of(unit);
  const int first = at.x * STEP_X, top = at.y * STEP_Y - PAD_Y;
#pragma unroll 4
  for (int i = lane; i < LINES * SPAN * STEP_X; i += 32) {
    const int line = i / (SPAN * STEP_X), pixel = i - line * (SPAN * STEP_X), x = first + pixel, y = top + line;
    const bool is_inside = x < IN_W && y >= 0 && y < IN_H;
    copy_vector(to + line * LINE_BYTES + pixel % STEP_X * PLACE_BYTES + pixel / STEP_X * 16,
                image + (is_inside ? (at.n * IN_H + y) * IN_W + x : 0), is_inside);
  }
}

// By taps, then filters: the filters' 8 channels at a tap in one piece.
DEV void copy_weights(uint32_t to, const uint4* weights, int thread) {
  for (int i = thread; i < STEPS * 2 * TILE_N; i += PRODUCERS * 32) {
    const int place = i / TILE_N, n = i - place * TILE_N, tap = tap_of(place), row = tap / KERNEL_W;
    const bool is_inside = n < SIZE_N && place < TAPS;
    copy_vector(to + i * 16, weights + (is_inside ? (row * SIZE_N + n) * KERNEL_W + tap % KERNEL_W : 0), is_inside);
  }
}

DEV void produce(uint32_t lines, uint32_t weights_at, uint32_t full, uint32_t empty, uint32_t weighed, const uint4* image,
                 const uint4* weights, int thread) {
  earlier_kernels_done();
  copy_weights(weights_at, weights, thread);
  bool has_weights = false;
  const int stage = thread / 32, units = stage < STAGES ? UNITS : 0;
  int phase = 1;
  for (int unit = blockIdx.x + stage * GRID; unit < units; unit += STAGES * GRID, phase ^= 1) {
    barrier_wait(empty + stage * 8, phase);
    copy_strip(lines + stage * STRIP_BYTES, image, unit, thread & 31);
    copies_done();
    fence_async();
    if (!has_weights) barrier_arrive(weighed);
    has_weights = true;
    barrier_arrive(full + stage * 8);
  }
  if (!has_weights) {
    copies_done();
    fence_async();
    barrier_arrive(weighed);
  }
}

DEV float2 finish(const float* sums, int m, int n, const Operands& operands) {
  return epilogue(make_float2(sums[0], sums[1]), 0, m, min(n, SIZE_N - 2), operands);
}

// A warpgroup's 64 pixels; `held` is 8 kB of its own, at `chunk`.
DEV void store_tile_of(const float* acc, Unit at, Out* C, uint8_t* held, uint32_t chunk, int barrier, int thread,
                       const Operands& operands) {
  const int lane = thread & 31, row = thread / 32 * 16, quad = (lane & 3) * 2;
  auto pixel_at = [&](int r) {
    const int x = at.x + (r & 7), y = at.y + r / 8;
    return x < OUT_W && y < OUT_H ? (at.n * OUT_H + y) * OUT_W + x : -1;
  };
  const int m[2] = {pixel_at(row + (lane >> 2)), pixel_at(row + (lane >> 2) + 8)};
#pragma unroll
  for (int c = 0; c < TILE_N / 64; c++) {
    float2 done[16];
#pragma unroll
    for (int p = 0; p < 16; p++)
      done[p] = finish(acc + c * 32 + p * 2, max(m[p & 1], 0), c * 64 + p / 2 * 8 + quad, operands);
    if constexpr (sizeof(Out) == 2) {
      uint32_t pairs[16];
#pragma unroll
      for (int p = 0; p < 16; p++) pairs[p] = pack<Out>(done[p].x, done[p].y);
      block_sync(barrier, 128);
      const int r = row + (lane & 15);
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        store_matrix(chunk + r * 128 + (((j + (lane >> 4)) ^ (r & 7)) << 4), pairs[j * 2], pairs[j * 2 + 1],
                     pairs[j * 2 + 2], pairs[j * 2 + 3]);
      block_sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int from = i * 16 + thread / 8, j = thread & 7, n = c * 64 + j * 8, to = pixel_at(from);
        const uint4 value = *(const uint4*)(held + from * 128 + ((j ^ (from & 7)) << 4));
        if (to >= 0 && n < SIZE_N) *(uint4*)(C + to * SIZE_N + n) = value;
      }
    } else {
#pragma unroll
      for (int p = 0; p < 16; p++) {
        const int n = c * 64 + p / 2 * 8 + quad;
        if (m[p & 1] >= 0 && n < SIZE_N) store_pair<Out>(C + m[p & 1] * SIZE_N + n, done[p].x, done[p].y);
      }
    }
  }
}

DEV void convolve(uint8_t* raw, const uint4* image, const uint4* weights, Out* C, const Operands operands) {
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t weights_at = base + CONSUMERS * CHUNK_BYTES, lines = weights_at + WEIGHT_BYTES;
  const uint32_t full = lines + STAGES * STRIP_BYTES, empty = full + STAGES * 8, weighed = empty + STAGES * 8;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x & 127;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i * 8, 32);
      barrier_init(empty + i * 8, CONSUMERS * 4);
    }
    barrier_init(weighed, PRODUCERS * 32);
    barriers_visible();
  }
  __syncthreads();
  if (warpgroup == CONSUMERS) {
    produce(lines, weights_at, full, empty, weighed, image, weights, thread);
    return;
  }
  uint8_t* const held = raw + (base - shared_address(raw)) + warpgroup * CHUNK_BYTES;
  const uint64_t b = plain_operand(weights_at, TILE_N * 16, 128);
  float acc[TILE_N / 2];
  int stage = 0, phase = 0, next = warpgroup;  // `next`: the warpgroup's first tile of the strip
  auto release = [&]() {
    __syncwarp();
    if ((thread & 31) == 0) barrier_arrive(empty + stage * 8);
  };
  barrier_wait(weighed, 0);
  for (int unit = blockIdx.x; unit < UNITS; unit += GRID) {
    const Unit at = unit_of(unit);
    barrier_wait(full + stage * 8, phase);
    if (next >= TILES) release();
#pragma unroll 1
    for (; next < TILES; next += CONSUMERS) {
      const uint64_t a = plain_operand(lines + stage * STRIP_BYTES + next * 128, 0, STEP_Y * LINE_BYTES);
      mma_fence();
#pragma unroll
      for (int step = 0; step < STEPS; step++) {
        const int low = tap_at(tap_of(step * 2)), leading = tap_at(tap_of(step * 2 + 1)) - low;
        multiply(acc, a + (low >> 4) + ((uint64_t)(leading >> 4) << 16), b + step * (TILE_N * 2), step != 0);
      }
      mma_commit();
      mma_wait<0>();
      hold(acc);
      if (next + CONSUMERS >= TILES) release();
      store_tile_of(acc, {at.x + next * 8, at.y, at.n}, C, held, base + warpgroup * CHUNK_BYTES, 1 + warpgroup, thread,
                    operands);
    }
    next -= TILES;
    if (++stage == STAGES) { stage = 0; phase ^= 1; }
  }
}
