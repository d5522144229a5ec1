// Transpositions: a block has a tile of TILE_M by TILE_N elements of the result, whose last axis is N; operands whose
// fastest axis is M are staged in shared memory. Stands in a namespace that has defined: the sizes (EXTENT_M, EXTENT_N
// of the two axes, AXES of a place, of which AXIS_M is M and the last N), TILES_M, TILES_N, THREADS, LANES (neighbours along N of the
// result), the types Out, Place, Operands, Loaded and Staged, and `batch_of`, `position_of`, `read`,
// `result`, `fetch`, `keep` and `gather`.
static_assert(TILE_N % LANES == 0, "whole vectors");
constexpr int PARTS = TILE_N / LANES, TURNS = (TILE_M * PARTS + THREADS - 1) / THREADS, AXIS_N = AXES - 1;
constexpr bool WHOLE = EXTENT_M % TILE_M == 0 && EXTENT_N % TILE_N == 0 && TILE_M * PARTS % THREADS == 0;

DEV void transposed(char* shared, Out* out, const Operands operands) {
  const unsigned int across = blockIdx.x / TILES_M, tile_m = blockIdx.x - across * TILES_M;
  const unsigned int batch = across / TILES_N, tile_n = across - batch * TILES_N;
  const int m0 = (int)(tile_m * TILE_M), n0 = (int)(tile_n * TILE_N);
  const Place corner = batch_of(batch);
  earlier_kernels_done();
  Staged staged;
  fetch(staged, corner, m0, n0, operands);
  Loaded in[TURNS];
  Place at[TURNS];
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const unsigned int turn = threadIdx.x + i * THREADS;
    const int m = m0 + (int)(turn / PARTS), n = n0 + (int)(turn % PARTS * LANES);
    at[i] = corner;
    // Outside of the result, its last vector is read again.
    at[i].x[AXIS_M] = WHOLE ? m : min(m, EXTENT_M - 1);
    at[i].x[AXIS_N] = WHOLE ? n : min(n, EXTENT_N - LANES);
    read(in[i], at[i], operands);
  }
  keep(shared, staged);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    const unsigned int turn = threadIdx.x + i * THREADS, m = turn / PARTS, n = turn % PARTS;
    if (!WHOLE && (m >= TILE_M || m0 + (int)m >= EXTENT_M || n0 + (int)(n * LANES) >= EXTENT_N)) continue;
    gather(in[i], shared, m, n);
    result(out + position_of(at[i]), in[i], at[i]);
  }
}
