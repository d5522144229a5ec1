// A GEMM on mma.sync: C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n]), fp32 sums; a CTA has a tile of C.
// All threads copy a ring of STAGES steps of TILE_K into shared memory, rows of 16-byte chunks in the order in which
// ldmatrix reads them without conflicts. SLICES groups of warps share the sum of a tile: each multiplies its part of
// every step.
// Its namespace has defined: the configuration (TILE_M, TILE_N, TILE_K, WARP_M, WARP_N, STAGES, SLICES, GROUP_M), the
// problem (`rows_of`, M_IS_WHOLE, SIZE_N, SIZE_K, N_MAJOR, the types In and Out), Operands, `epilogue`, what `mma_tile.cuh` and
// `mma_store.cuh` have, and Copies: what a thread copies (`mma_rows.cuh`, `mma_pixels.cuh`).

DEV void gemm(uint8_t* raw, const In* A, const In* B, Out* C, const Operands operands) {
  const uint32_t ring = (shared_address(raw) + 127) & ~127u;
  const int tid = threadIdx.x, lane = tid & 31;
  const int warp = __shfl_sync(0xffffffff, tid >> 5, 0), slice = warp / (WARPS_M * WARPS_N);
  const int warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M % WARPS_N * WARP_N;
  if (rows_of(operands) == 0) return;
  const Tile tile = tile_of<TILES_N, GROUP_M>(blockIdx.x, (rows_of(operands) + TILE_M - 1) / TILE_M);
  const int m0 = tile.m * TILE_M, n0 = tile.n * TILE_N;

  Copies copies(A, B, tile, tid, ring, operands);

  // A lane's row of the first matrices. Later columns of the sum are other chunks of the same rows, where these lie in
  // rows; in either case what changes is a power of two that the row's own bits are xored with.
  const uint32_t a_at = ring + place<K_CHUNKS>(warp_m + (lane & 15), slice * 2 + (lane >> 4));
  const int warp_chunk = warp_n / 8 + (lane >> 4), warp_row = warp_n + (lane & 7) + (lane >> 4) * 8;
  const int b_place = N_MAJOR ? place<PANEL>(slice * 16 + (lane & 15), warp_chunk % PANEL)
                              : place<K_CHUNKS>(warp_row, slice * 2 + (lane >> 3 & 1));
  const uint32_t b_at = ring + A_BYTES + (N_MAJOR ? warp_chunk / PANEL * PANEL_BYTES : 0) + b_place;
  uint32_t a[2][BLOCKS_M][4], b[2][BLOCKS_N / 2][4];
  auto load_step = [&](int to, uint32_t from, int step) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
      load_matrices(a[to][i], (a_at ^ (step * SLICES * 32)) + from + i * 16 * TILE_K * 2);
#pragma unroll
    for (int j = 0; j < BLOCKS_N / 2; j++) {
      if constexpr (N_MAJOR) load_transposed(b[to][j], (b_at ^ (j * 32)) + from + step * SLICES * 16 * PANEL * 16);
      else load_matrices(b[to][j], (b_at ^ (step * SLICES * 32)) + from + j * 16 * TILE_K * 2);
    }
  };

  float sums[BLOCKS_M][BLOCKS_N][4];
#pragma unroll
  for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0.f;
  auto multiply = [&](int from) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int j = 0; j < BLOCKS_N; j++)
        Product<In>::add(sums[i][j], a[from][i], b[from][j / 2][j % 2 * 2], b[from][j / 2][j % 2 * 2 + 1]);
  };

#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      if (i < K_TILES) copies.part(part, i * STAGE_BYTES);
    copies.next();
    copies_commit();  // also of nothing, so that as many groups are waited for at every step
  }
  copies_wait<STAGES - 2>();
  __syncthreads();
  load_step(0, 0, 0);
  uint32_t from = 0, to = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
  for (int kt = 0; kt < K_TILES; kt++) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      // The place of the step before is free: every warp has had it in registers since the last barrier. Its copies are
      // behind the loads in the one queue that both take, and spread, so that no load waits for all of them.
      const bool is_last = step == STEPS - 1;
      if (is_last) {
        if (STEPS == 1 && kt + STAGES - 1 < K_TILES) copies.part(0, to);
        if (STEPS == 1) copies_commit();
        copies_wait<STAGES - 2>();
        __syncthreads();
        from = from == (STAGES - 1) * STAGE_BYTES ? 0 : from + STAGE_BYTES;
      }
      if (STEPS == 1) multiply(0);
      load_step(STEPS == 1 ? 0 : (step + 1) & 1, from, (step + 1) % STEPS);
      if (!is_last && kt + STAGES - 1 < K_TILES) copies.part(step, to);
      if (step == STEPS - 2) copies_commit();
      if (step == (STEPS == 1 ? 0 : STEPS - 2)) {
        copies.next();
        to = to == (STAGES - 1) * STAGE_BYTES ? 0 : to + STAGE_BYTES;
      }
      if (STEPS > 1) multiply(step & 1);
    }
  }

  if (add_slices(sums, raw + (ring - shared_address(raw)), warp, slice, lane))
    store(C, sums, tile.b, m0 + warp_m, n0 + warp_n, lane, operands);
}
