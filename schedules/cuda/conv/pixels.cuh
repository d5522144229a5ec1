// What a row of A and C is to `kernel.cuh` in a convolution: a pixel of the result, [IMAGES, OUT_H, OUT_W] of them.
// A tile of rows is a box of BOX_N x BOX_H x BOX_W pixels; A's map steps over the image by the strides, and what it
// copies from outside of the image is zero, which is the padding. An atom of A's columns is as many channels at one tap of the
// kernel, or all taps and channels of a row of the kernel: A's map then has such a row for each pixel of the result.
using namespace hopper;

constexpr int TILES_X = (OUT_W + BOX_W - 1) / BOX_W, TILES_Y = (OUT_H + BOX_H - 1) / BOX_H;
constexpr int ROW_TILES = TILES_X * TILES_Y * ((IMAGES + BOX_N - 1) / BOX_N);
DEV int row_tiles(int) { return ROW_TILES; }
constexpr int COPIED_ROWS = BOX_W * BOX_H * BOX_N;  // of TILE_M; the others hold anything, and are not stored
constexpr bool STORES_WHOLE_TILES = true;
static_assert(COPIED_ROWS <= TILE_M && SIZE_M == IMAGES * OUT_H * OUT_W && SIZE_K == TAPS * CHANNEL_ATOMS * ATOM_K, "box");

struct Column { int k, b; };
struct Pixel { int x, y, n; };

// Beyond the last tap B's map has nothing, so that the product is with zeros.
DEV Column column_of(int atom, int) {
  const int tap = atom / CHANNEL_ATOMS;
  return {(atom - tap * CHANNEL_ATOMS) * ATOM_K, tap};
}

// The first pixel of a tile.
DEV Pixel pixel_of(int tile) {
  const int strip = tile / TILES_X, images = strip / TILES_Y;
  return {(tile - strip * TILES_X) * BOX_W, (strip - images * TILES_Y) * BOX_H, images * BOX_N};
}

DEV int row_at(int tile, int row) {
  const Pixel first = pixel_of(tile);
  const int line = row / BOX_W, image = line / BOX_H;
  const int x = first.x + row - line * BOX_W, y = first.y + line - image * BOX_H, n = first.n + image;
  const bool is_inside = row < COPIED_ROWS && x < OUT_W && y < OUT_H && n < IMAGES;
  return is_inside ? (n * OUT_H + y) * OUT_W + x : SIZE_M;
}

DEV void copy_rows(uint32_t to, const TensorMap* map, uint32_t bar, int atom, int tile, int) {
  const Pixel first = pixel_of(tile);
  const int tap = atom / CHANNEL_ATOMS, row = tap / TAPS_IN_ROW, column = tap - row * TAPS_IN_ROW;
  // Beyond the last tap: channels that are outside, which are zeros.
  const int channel = tap < TAPS ? (atom - tap * CHANNEL_ATOMS) * ATOM_K : CHANNEL_ATOMS * ATOM_K;
  load_image(to, map, bar, channel, first.x * STEP_X - PAD_X + column * DILATION_X,
             first.y * STEP_Y - PAD_Y + row * DILATION_Y, first.n);
}

DEV void store_rows(const TensorMap* map, uint32_t from, int n, int tile, int, int) {
  const Pixel first = pixel_of(tile);
  store_image(map, from, n, first.x, first.y, first.n);
}
