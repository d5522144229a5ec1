// What a thread copies of the operands in `mma.cuh` and `mma_wide.cuh` in a convolution: A is an image [images, in_h, in_w, CHANNELS] as Image says, a row of
// the product a pixel of the result, and the sum runs over taps, KERNEL_H of KERNEL_W, each DEPTH elements in one piece
// (implicit GEMM). B is [taps, SIZE_N, DEPTH]. A chunk of the sum lies at one tap; outside of the image are zeros.
static_assert(KERNEL_H <= 16 && KERNEL_W <= 16 && DEPTH % 8 == 0 && SIZE_K == KERNEL_H * KERNEL_W * DEPTH, "windows");

struct Copies {
  const In *a, *b_from;
  uint32_t a_to, b_to;
  const Image of;
  int row, n_left, k, b_at;
  Place a_at, first[A_COPIES];      // of each row's pixel, the element under the first tap, which may be outside
  uint32_t under[A_COPIES];  // which lines of taps are inside of the image, and from bit 16 on which columns
  uint32_t tap;              // the bits of the line and of the column of the thread's chunk

  DEV Copies(const In* A, const In* B, const Tile& tile, int tid, uint32_t ring, const Operands& operands) : of(operands) {
    const int chunk = tid % K_CHUNKS;
    row = tid / K_CHUNKS;
    a = A;
    b_from = B + (tile.n * TILE_N + row) * DEPTH;
    n_left = SIZE_N - tile.n * TILE_N - row;
    a_to = ring + place<K_CHUNKS>(row, chunk);
    b_to = a_to + A_BYTES;
#pragma unroll
    for (int i = 0; i < A_COPIES; i++) {
      const int m = tile.m * TILE_M + row + i * A_STEP, line = m / of.out_w, image = line / of.out_h;
      const int y = (line - image * of.out_h) * STEP_Y - PAD_Y, x = (m - line * of.out_w) * STEP_X - PAD_X;
      first[i] = (((Place)image * of.in_h + y) * of.in_w + x) * CHANNELS;
      under[i] = 0;
#pragma unroll
      for (int r = 0; r < KERNEL_H; r++)
        if (y + r * DILATION_Y >= 0 && y + r * DILATION_Y < of.in_h) under[i] |= 1u << r;
#pragma unroll
      for (int q = 0; q < KERNEL_W; q++)
        if (x + q * DILATION_X >= 0 && x + q * DILATION_X < of.in_w) under[i] |= 0x10000u << q;
      if (!M_IS_WHOLE && m >= rows_of(operands)) under[i] = 0;
    }
    k = chunk * CHUNK;
    locate();
  }

  // Where the thread's chunk lies in a pixel's window, and in a filter.
  DEV void locate() {
    const int at = k / DEPTH, c = k - at * DEPTH, r = at / KERNEL_W, q = at - r * KERNEL_W;
    a_at = ((Place)r * DILATION_Y * of.in_w + q * DILATION_X) * CHANNELS + c;
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
