// Group norms of NHWC images: out[n, p, c] = result(x[n, p, c] by factor and summand of c in n, n, p, c). These are of two
// sums: of a value of x over the pixels and the channels of a group, and of the squares of what the values are beside their
// mean.
// CLUSTER CTAs share CHUNK channels of an image, which are whole groups: each has SLAB of its pixels. A thread has VECTOR
// channels of every LINES-th pixel. It brings the first HELD of its pixels into shared memory, all at once; what is
// beyond is read twice, from L2 the second time.
// Both sums are taken in one pass. A thread adds up its values less the first of them, and their squares: as the first is
// one of them, no more cancels than a factor of their number. Parts are then added up by the mean of all and by what each
// part's mean is beside that ("Updating formulae and a pairwise algorithm", Chan, Golub, LeVeque, 1979): first in a warp
// those of a group, which the warp sends to all CTAs of its cluster, then those of all CTAs.
// Stands in a namespace that has defined: those but SLAB, IMAGES, PIXELS, CHANNELS, WIDTH (of a group), THREADS, the types
// In and Out, and as for rows.cuh: Operands, `term`, `result`, Across, Here, `fetch`, `warm`; `mean`, `factor` and `summand`
// give these of two channels from the sums, and FOLDED says whether the mean is in the summand that `result` has.
constexpr int PIECES = CHUNK / VECTOR;  // of a pixel
constexpr int PAIRS = CHUNK / 2, GROUPS = CHUNK / WIDTH, CHUNKS = CHANNELS / CHUNK;
constexpr int SLAB = (PIXELS + CLUSTER - 1) / CLUSTER;
constexpr int TURNS = (SLAB + LINES - 1) / LINES, WORKERS = PIECES * LINES;
constexpr int WARPS = THREADS / 32, PARTS = WARPS > GROUPS ? WARPS / GROUPS : 1;  // warps that add up a group
constexpr int OF_GROUP = LINES * (WIDTH / 2);                                     // pairs of channels that a group has
constexpr int BATCHES = HELD < 4 ? HELD : 4;                                      // of copies
static_assert(CHUNK % VECTOR == 0 && CHUNK % WIDTH == 0 && WIDTH % 2 == 0 && CHANNELS % CHUNK == 0, "whole groups");
static_assert(WORKERS <= THREADS && THREADS % 32 == 0 && HELD <= TURNS, "a thread for each piece");

struct alignas(16) Part { float count, mean, squares, unused; };

template <int B, class F> DEV void each_batch(F f) {
  if constexpr (B < BATCHES) {
    f(Which<B>());
    each_batch<B + 1>(f);
  }
}

// The sum over LANES lanes, the first of a warp, in each of them.
template <int LANES> DEV float over_lanes(float x) {
#pragma unroll
  for (int by = 16; by; by >>= 1)
    if (by < LANES) x += __shfl_xor_sync(0xffffffff, x, by);
  return x;
}

// COUNT parts as one, in the first LANES lanes, which have them all; `part` gives the i-th.
template <int COUNT, int LANES, class F> DEV Part together(F part) {
  const int lane = threadIdx.x & 31;
  float count = 0.f, sum = 0.f, squares = 0.f;
#pragma unroll 4
  for (int i = lane; i < COUNT; i += 32) {
    const Part one = part(i);
    count += one.count;
    sum = fmaf(one.count, one.mean, sum);
  }
  count = over_lanes<LANES>(count);
  const float mean = over_lanes<LANES>(sum) / fmaxf(count, 1.f);
#pragma unroll 4
  for (int i = lane; i < COUNT; i += 32) {
    const Part one = part(i);
    const float beside = one.mean - mean;
    squares += fmaf(one.count * beside, beside, one.squares);
  }
  return {count, mean, over_lanes<LANES>(squares), 0.f};
}

// What a thread adds up of each pair of its channels: the first value, and what all are beside it, with the squares of that.
struct Added { float origin[VECTOR / 2] = {}, sums[VECTOR / 2] = {}, squares[VECTOR / 2] = {}; };

// Adds the i-th pixel of the thread, which lies at `from`; its row and its place in the image are what the fused code asks for.
DEV void add(Added& to, int i, const In* from, int row, int place, int column, const Operands& operands, const Across& across) {
  float of[VECTOR];
  load_vector<VECTOR>(of, from);
  Here here;
  fetch(here, place, operands);
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++) {
    const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
    const float2 two = term<0>(pair, to.sums, row, column + p * 2, operands, across, here, p * 2);
    if (i == 0) to.origin[p] = two.x;
    const float one = two.x - to.origin[p], other = two.y - to.origin[p];
    to.sums[p] += one + other;
    to.squares[p] = fmaf(one, one, fmaf(other, other, to.squares[p]));
  }
}

// Writes the mean and the squares of what the thread added up of `count` pixels.
DEV void keep(float2* pairs, const Added& added, int count) {
  const float by = count > 0 ? 0.5f / count : 0.f;
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++)
    pairs[p] = make_float2(fmaf(added.sums[p], by, added.origin[p]),
                           fmaxf(fmaf(-added.sums[p] * by, added.sums[p], added.squares[p]), 0.f));
}

// One of PARTS of what the CTA's threads kept of a group; a line of them has `pixels_of(line)` pixels.
template <class F> DEV Part part_of(const float2* pairs, int group, int part, F pixels_of) {
  return together<(OF_GROUP + PARTS - 1) / PARTS, 32>([&](int i) -> Part {
    const int at = i * PARTS + part, of_line = at / (WIDTH / 2), pair = at - of_line * (WIDTH / 2);
    if (at >= OF_GROUP) return {0.f, 0.f, 0.f, 0.f};
    const float2 both = pairs[of_line * PAIRS + group * (WIDTH / 2) + pair];
    return {2.f * pixels_of(of_line), both.x, both.y, 0.f};
  });
}

// Both sums of each group, of the parts of all CTAs, by WARPS warps.
DEV void add_up(float2* all, const Part* table, int warp) {
  constexpr int COUNT = CLUSTER * PARTS;
  for (int group = warp; group < GROUPS; group += WARPS) {
    const Part whole = together<COUNT, COUNT < 32 ? COUNT : 32>([&](int i) { return table[group * COUNT + i]; });
    if ((threadIdx.x & 31) == 0) all[group] = make_float2(whole.mean * whole.count, whole.squares);
  }
}

// The factor, the summand and the mean of each channel of a thread.
struct Line { float of[3 * VECTOR]; };

DEV void find(Line& line, const float2* all, int piece, int column, const Operands& operands, const Across& across) {
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++) {
    const float2 both = all[(piece * VECTOR + p * 2) / WIDTH];
    const float found[2] = {both.x, both.y};
    const float2 none = make_float2(0.f, 0.f);
    const Here here = {};
    const float2 m = mean(none, found, 0, column + p * 2, operands, across, here, p * 2);
    const float2 f = factor(none, found, 0, column + p * 2, operands, across, here, p * 2);
    const float2 s = summand(none, found, 0, column + p * 2, operands, across, here, p * 2);
    line.of[p * 2] = f.x;
    line.of[p * 2 + 1] = f.y;
    line.of[VECTOR + p * 2] = FOLDED ? fmaf(-m.x, f.x, s.x) : s.x;
    line.of[VECTOR + p * 2 + 1] = FOLDED ? fmaf(-m.y, f.y, s.y) : s.y;
    line.of[2 * VECTOR + p * 2] = m.x;
    line.of[2 * VECTOR + p * 2 + 1] = m.y;
  }
}

// Stores the result of a pixel that lies at `from`.
DEV void give(Out* out, const In* from, const Line& line, int row, int place, int column, const Operands& operands,
              const Across& across) {
  float of[VECTOR], done[VECTOR];
  load_vector<VECTOR>(of, from);
  Here here;
  fetch(here, place, operands);
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++) {
    const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
    const float2 two = result(pair, line.of, row, column + p * 2, operands, across, here, p * 2);
    done[p * 2] = two.x;
    done[p * 2 + 1] = two.y;
  }
  store_vector<VECTOR>(out + place, done);
}
