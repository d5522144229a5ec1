// What a row of A and C is to `kernel.cuh`: that of a matrix. A is [BATCH, rows, SIZE_K], C is [BATCH, rows, SIZE_N].
using namespace hopper;

DEV int row_tiles(int rows) { return (rows + TILE_M - 1) / TILE_M; }
constexpr int COPIED_ROWS = TILE_M;  // of a tile of A, BOX_ROWS at once; rows beyond the edge are zeros
constexpr bool STORES_WHOLE_TILES = false;

struct Column { int k, b; };

// Where an atom of columns of A and rows of B begins in the map of B.
DEV Column column_of(int atom, int b) { return {atom * ATOM_K, b}; }

// The row of C that row `row` of a tile is; one beyond the last is not stored.
DEV int row_at(int tile, int row) { return tile * TILE_M + row; }

DEV void copy_rows(uint32_t to, const TensorMap* map, uint32_t bar, int atom, int tile, int b) {
#pragma unroll
  for (int r = 0; r < TILE_M; r += BOX_ROWS) load_tile(to + r * 128, map, bar, atom * ATOM_K, tile * TILE_M + r, b);
}

DEV void store_rows(const TensorMap* map, uint32_t from, int n, int tile, int row, int b) {
  store_tile(map, from, n, tile * TILE_M + row, b);
}
