// What becomes of the sums in `mma.cuh` and `mma_wide.cuh`: those of slices are one, what is fused is done, and stored.

// Beyond the edge nobody stores the result, and the last elements are read in its place, which takes no branch. An odd
// last column is computed as the second of a pair.
DEV float2 finish(float x, float y, int b, int m, int n, const Operands& operands) {
  m = min(m, rows_of(operands) - 1);
  if constexpr (SIZE_N % 2 == 0) return epilogue(make_float2(x, y), b, m, min(n, SIZE_N - 2), operands);
  const bool is_last = n >= SIZE_N - 1;
  const float2 both = epilogue(make_float2(x, is_last ? x : y), b, m, is_last ? SIZE_N - 2 : n, operands);
  return make_float2(is_last ? both.y : both.x, both.y);
}

DEV void store(Out* C, const float (&sums)[BLOCKS_M][BLOCKS_N][4], int b, int m0, int n0, int lane,
               const Operands& operands) {
  const int quad = lane & 3;
#pragma unroll
  for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j += 4) {
      const int m = m0 + i * 16 + (lane >> 2);
      float2 done[2][4];  // all before the first store: the compiler moves no load over it
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int p = 0; p < 4; p++)
          done[half][p] = finish(sums[i][j + p][half * 2], sums[i][j + p][half * 2 + 1], b, m + half * 8,
                                 n0 + (j + p) * 8 + quad * 2, operands);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = m + half * 8;
        Out* to = C + ((long long)b * rows_of(operands) + row) * SIZE_N;
        if constexpr (sizeof(Out) == 2 && SIZE_N % 8 == 0) {
          uint32_t parts[4];
#pragma unroll
          for (int p = 0; p < 4; p++) parts[p] = pack<Out>(done[half][p].x, done[half][p].y);
          gather_rows(parts, lane);
          const int n = n0 + (j + quad) * 8;
          if (row < rows_of(operands) && n < SIZE_N) *(uint4*)(to + n) = make_uint4(parts[0], parts[1], parts[2], parts[3]);
        } else {
#pragma unroll
          for (int p = 0; p < 4; p++) {
            const int n = n0 + (j + p) * 8 + quad * 2;
            const float2 pair = done[half][p];
            if (row >= rows_of(operands)) continue;
            if (SIZE_N % 2 == 0 && n < SIZE_N) store_pair<Out>(to + n, pair.x, pair.y);
            if (SIZE_N % 2 != 0 && n < SIZE_N) to[n] = narrow<Out>(pair.x);
            if (SIZE_N % 2 != 0 && n + 1 < SIZE_N) to[n + 1] = narrow<Out>(pair.y);
          }
        }
      }
    }
}

// The sums of the other slices are added to those of the first, in the order of the slices; returns whether the thread is
// of the first.
DEV bool add_slices(float (&sums)[BLOCKS_M][BLOCKS_N][4], uint8_t* ring, int warp, int slice, int lane) {
  if constexpr (SLICES > 1) {
    constexpr int COUNT = BLOCKS_M * BLOCKS_N * 4;
    float* partial = (float*)ring + warp % (WARPS_M * WARPS_N) * COUNT * 32 + lane;
    copies_wait<0>();
    __syncthreads();
    if (slice > 0) {
#pragma unroll
      for (int e = 0; e < COUNT; e++)
        partial[(slice - 1) * TILE_M * TILE_N + e * 32] = sums[e / 4 / BLOCKS_N][e / 4 % BLOCKS_N][e % 4];
    }
    __syncthreads();
    if (slice > 0) return false;
#pragma unroll
    for (int other = 0; other < SLICES - 1; other++)
#pragma unroll
      for (int e = 0; e < COUNT; e++)
        sums[e / 4 / BLOCKS_N][e / 4 % BLOCKS_N][e % 4] += partial[other * TILE_M * TILE_N + e * 32];
  }
  return true;
}
