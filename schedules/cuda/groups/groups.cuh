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

