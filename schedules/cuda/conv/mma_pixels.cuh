// What a thread copies of the operands in `mma.cuh` and `mma_wide.cuh` in a convolution: A is an image [IMAGES, IN_H, IN_W, CHANNELS], a row of
// the product a pixel of the result, and the sum runs over taps, KERNEL_H of KERNEL_W, each DEPTH elements in one piece
// (implicit GEMM). B is [taps, SIZE_N, DEPTH]. A chunk of the sum lies at one tap; outside of the image are zeros.
static_assert(KERNEL_H <= 16 && KERNEL_W <= 16 && DEPTH % 8 == 0 && SIZE_K == KERNEL_H * KERNEL_W * DEPTH, "windows");

struct Copies {
  const In *a, *b_from;
  uint32_t a_to, b_to;
  int row, n_left, k, a_at, b_at;
  int first[A_COPIES];      // of each row's pixel, the element under the first tap, which may be outside
  uint32_t under[A_COPIES];  // which lines of taps are inside of the image, and from bit 16 on which columns
  uint32_t tap;              // the bits of the line and of the column of the thread's chunk

  DEV Copies(const In* A, const In* B, const Tile& tile, int tid, uint32_t ring, int) {
    const int chunk = tid % K_CHUNKS;
    row = tid / K_CHUNKS;
    a = A;
    b_from = B + (tile.n * TILE_N + row) * DEPTH;
    n_left = SIZE_N - tile.n * TILE_N - row;
    a_to = ring + place<K_CHUNKS>(row, chunk);
    b_to = a_to + A_BYTES;
#pragma unroll
    for (int i = 0; i < A_COPIES; i++) {
      const int m = tile.m * TILE_M + row + i * A_STEP, line = m / OUT_W, image = line / OUT_H;
      const int y = (line - image * OUT_H) * STEP_Y - PAD_Y, x = (m - line * OUT_W) * STEP_X - PAD_X;
      first[i] = ((image * IN_H + y) * IN_W + x) * CHANNELS;
      under[i] = 0;
#pragma unroll
      for (int r = 0; r < KERNEL_H; r++)
        if (y + r * DILATION_Y >= 0 && y + r * DILATION_Y < IN_H) under[i] |= 1u << r;
#pragma unroll
      for (int q = 0; q < KERNEL_W; q++)
        if (x + q * DILATION_X >= 0 && x + q * DILATION_X < IN_W) under[i] |= 0x10000u << q;
      if (SIZE_M % TILE_M != 0 && m >= SIZE_M) under[i] = 0;
    }
    k = chunk * CHUNK;
    locate();
  }

  // Where the thread's chunk lies in a pixel's window, and in a filter.
  DEV void locate() {
    const int at = k / DEPTH, c = k - at * DEPTH, r = at / KERNEL_W, q = at - r * KERNEL_W;
    a_at = (r * DILATION_Y * IN_W + q * DILATION_X) * CHANNELS + c;
    b_at = at * (SIZE_N * DEPTH) + c;
    tap = SIZE_K % TILE_K == 0 || k < SIZE_K ? 1u << r | 0x10000u << q : ~0u;
  }

  // A part of a step, into the place of the ring that begins at `to`.
  DEV void part(int part, uint32_t to) const {
#pragma unroll
    for (int i = part * A_COPIES / PARTS; i < (part + 1) * A_COPIES / PARTS; i++) {
      if ((TILE_M * K_CHUNKS) % THREADS != 0 && row + i * A_STEP >= TILE_M) break;
      copy<16>(a_to + to + i * A_STEP * TILE_K * (int)sizeof(In), a + (first[i] + a_at), (under[i] & tap) == tap);
    }
#pragma unroll
    for (int i = part * B_COPIES / PARTS; i < (part + 1) * B_COPIES / PARTS; i++) {
      if ((TILE_N * K_CHUNKS) % THREADS != 0 && row + i * A_STEP >= TILE_N) break;
      const bool is_inside = (SIZE_N % TILE_N == 0 || i * A_STEP < n_left) && (SIZE_K % TILE_K == 0 || tap != ~0u);
      copy<16>(b_to + to + i * A_STEP * TILE_K * (int)sizeof(In), b_from + (i * A_STEP * DEPTH + b_at), is_inside);
    }
  }

  // The next step of the sum.
  DEV void next() {
    k += TILE_K;
    locate();
  }
};
