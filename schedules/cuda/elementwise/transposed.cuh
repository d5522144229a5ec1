// Transpositions: a block has a tile of TILE_M by TILE_N elements of the result, whose last axis is N; operands whose
// fastest axis is M are staged in shared memory. Stands in a namespace that has defined: AXES of a place, of
// which AXIS_M is M and the last N, TILE_M, TILE_N, WHOLE (all tiles are), THREADS, LANES (neighbours along N of the
// result), the types Out, Place, Extent, Operands, Loaded and Staged, and `extent_m_of`, `extent_n_of`, `total_of`,
// `batch_of`, `position_of`, `read`, `result`, `fetch`, `keep` and `gather`.
static_assert(TILE_N % LANES == 0, "whole vectors");
constexpr int PARTS = TILE_N / LANES, TURNS = (TILE_M * PARTS + THREADS - 1) / THREADS, AXIS_N = AXES - 1;

DEV void transposed(char* shared, Out* out, const Operands operands) {
  if (total_of(operands) == 0) return earlier_kernels_done();
  const Extent extent_m = extent_m_of(operands), extent_n = extent_n_of(operands);
  const unsigned int tiles_m = (extent_m + TILE_M - 1) / TILE_M, tiles_n = (extent_n + TILE_N - 1) / TILE_N;
  const unsigned int across = blockIdx.x / tiles_m, tile_m = blockIdx.x - across * tiles_m;
  const unsigned int batch = across / tiles_n, tile_n = across - batch * tiles_n;
  const Extent m0 = (Extent)tile_m * TILE_M, n0 = (Extent)tile_n * TILE_N;
  const Place corner = batch_of(batch, operands);
  earlier_kernels_done();
  Staged staged;
  fetch(staged, corner, m0, n0, operands);
  Loaded in[TURNS];
  Place at[TURNS];
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const unsigned int turn = threadIdx.x + i * THREADS;
    const Extent m = m0 + (int)(turn / PARTS), n = n0 + (int)(turn % PARTS * LANES);
    at[i] = corner;
    // Outside of the result, its last vector is read again.
    at[i].x[AXIS_M] = WHOLE ? m : min(m, extent_m - 1);
    at[i].x[AXIS_N] = WHOLE ? n : min(n, extent_n - LANES);
    read(in[i], at[i], operands);
  }
  keep(shared, staged);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const unsigned int turn = threadIdx.x + i * THREADS, m = turn / PARTS, n = turn % PARTS;
    if (!WHOLE && (m >= TILE_M || m0 + (int)m >= extent_m || n0 + (int)(n * LANES) >= extent_n)) continue;
    gather(in[i], shared, m, n);
    result(out + position_of(at[i]), in[i], at[i]);
  }
}
