// The tile of `mma.cuh` and `mma_wide.cuh` in threads, copies and shared memory.
constexpr int WARPS_M = TILE_M / WARP_M, WARPS_N = TILE_N / WARP_N, THREADS = WARPS_M * WARPS_N * SLICES * 32;
constexpr int CHUNK = 16 / sizeof(In);  // elements that are copied together
constexpr int A_BYTES = TILE_M * TILE_K * (int)sizeof(In), STAGE_BYTES = A_BYTES + TILE_N * TILE_K * (int)sizeof(In);
constexpr int STEPS = TILE_K / 16 / SLICES;  // of 16 columns of A, that a warp multiplies of a stage
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;
constexpr int TILES_N = (SIZE_N + TILE_N - 1) / TILE_N;
constexpr int K_TILES = (SIZE_K + TILE_K - 1) / TILE_K;
constexpr int K_CHUNKS = TILE_K / CHUNK, N_CHUNKS = TILE_N / CHUNK;
constexpr int PANEL = N_CHUNKS < 8 ? N_CHUNKS : 8;  // chunks of a row of B that lie together where N_MAJOR
constexpr int PANEL_BYTES = TILE_K * PANEL * 16;
constexpr int A_COPIES = (TILE_M * K_CHUNKS + THREADS - 1) / THREADS, A_STEP = THREADS / K_CHUNKS;
constexpr int B_COPIES = (TILE_N * K_CHUNKS + THREADS - 1) / THREADS, B_STEP = THREADS / N_CHUNKS;
constexpr int PARTS = STEPS > 1 ? STEPS - 1 : 1;  // of the copies of a step
static_assert(STEPS >= 1 && STEPS != 3 && BLOCKS_N % 4 == 0 && THREADS % N_CHUNKS == 0, "tile");
static_assert(A_STEP % (K_CHUNKS == 8 ? 8 : 16) == 0, "rows of a thread lie at the same place of their 128 bytes");

// Where a chunk of 16 bytes lies: 8 rows that follow each other have one chunk in 8 different places of 128 bytes.
template <int CHUNKS> DEV int place(int row, int chunk) {
  static_assert(CHUNKS == 8 || CHUNKS == 4, "rows of 128 or 64 bytes");
  if (CHUNKS == 8) return (row * 8 + (chunk ^ (row & 7))) * 16;
  return ((row >> 1) * 8 + ((((row & 1) << 2) | chunk) ^ ((row >> 1) & 7))) * 16;
}

// The same of B where N_MAJOR: of fp32 single elements are read, 8 of each of 4 rows.
DEV int place_b(int row, int chunk) {
  if (sizeof(In) == 2) return place<PANEL>(row, chunk);
  return (row * 8 + (chunk ^ ((row & 3) << 1))) * 16;
}
