// Groups of channels of NHWC images in one pass: out[n, p, c] = result(x[n, p, c], sums of the group of c, n, p, c), each
// sum over the pixels and the channels of the group of a term of x and of the sums before it.
// CLUSTER CTAs share CHUNK channels of an image, which are whole groups: each has SLAB of its pixels. A thread has VECTOR
// channels of every LINES-th pixel; HELD of its pixels stay in registers, what is beyond is read again for every pass.
// Stands in a namespace that has defined: those but SLAB, IMAGES, PIXELS, CHANNELS, WIDTH (of a group), THREADS, the types
// In and Out, and the same as rows.cuh: Operands, SUMS, `term`, `start`, `result`, Across, Here, `fetch`, `warm`.
constexpr int PIECES = CHUNK / VECTOR;  // of a pixel
constexpr int PAIRS = CHUNK / 2, GROUPS = CHUNK / WIDTH, CHUNKS = CHANNELS / CHUNK;
constexpr int SLAB = (PIXELS + CLUSTER - 1) / CLUSTER;
constexpr int TURNS = (SLAB + LINES - 1) / LINES;
constexpr int AREA = LINES * PAIRS + PAIRS + 2 * GROUPS;  // of shared memory, for each of the sums
static_assert(CHUNK % VECTOR == 0 && CHUNK % WIDTH == 0 && WIDTH % 2 == 0 && CHANNELS % CHUNK == 0, "whole groups");
static_assert(PIECES * LINES <= THREADS && THREADS % 32 == 0 && HELD <= TURNS, "a thread for each piece");

template <bool MAXIMUM> DEV float combined(float x, float y) { return MAXIMUM ? fmaxf(x, y) : x + y; }

// The sums of the groups of the cluster's chunk from those of the threads for each pair of channels: first over the lines
// of the CTA, then over the pairs of a group, then over the CTAs. All threads come here; `area` is of no other sum.
template <int S> DEV const float* over_groups(const float (&pairs)[VECTOR / 2], float* area, bool works, int line, int piece) {
  float* of_pairs = area + LINES * PAIRS;
  float* own = of_pairs + PAIRS;
  float* all = own + GROUPS;
  if (works)
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) area[line * PAIRS + piece * (VECTOR / 2) + p] = pairs[p];
  __syncthreads();
  for (int t = threadIdx.x; t < PAIRS; t += THREADS) {
    float sum = area[t];
#pragma unroll 8
    for (int l = 1; l < LINES; l++) sum = combined<MAXIMA[S]>(sum, area[l * PAIRS + t]);
    of_pairs[t] = sum;
  }
  __syncthreads();
  for (int t = threadIdx.x; t < GROUPS; t += THREADS) {
    float sum = of_pairs[t * (WIDTH / 2)];
    for (int i = 1; i < WIDTH / 2; i++) sum = combined<MAXIMA[S]>(sum, of_pairs[t * (WIDTH / 2) + i]);
    own[t] = sum;
  }
  if (CLUSTER == 1) {
    __syncthreads();
    return own;
  }
  cluster_arrive_release();
  cluster_wait();
  for (int t = threadIdx.x; t < GROUPS; t += THREADS) {
    float sum = read_at(own + t, 0);
#pragma unroll
    for (int r = 1; r < CLUSTER; r++) sum = combined<MAXIMA[S]>(sum, read_at(own + t, r));
    all[t] = sum;
  }
  __syncthreads();
  return all;
}

DEV void groups(float* shared, const In* x, Out* out, const Operands operands) {
  next_kernel_may_start();
  if (blockIdx.x == 0) warm(operands);
  earlier_kernels_done();
  const int cluster = blockIdx.x / CLUSTER, rank = blockIdx.x - cluster * CLUSTER;
  const int image = cluster / CHUNKS, first = (cluster - image * CHUNKS) * CHUNK;
  const int line = threadIdx.x / PIECES, piece = threadIdx.x - line * PIECES;
  const bool works = line < LINES;
  const int column = first + piece * VECTOR;
  const int begin = rank * SLAB + line, end = works ? min(rank * SLAB + SLAB, PIXELS) : 0;
  auto within = [&](int i) { return begin + i * LINES < end; };
  auto row = [&](int i) { return image * PIXELS + begin + i * LINES; };
  auto place = [&](int i) { return (long long)row(i) * CHANNELS + column; };
  float values[HELD][VECTOR];
  Across across;
#pragma unroll
  for (int i = 0; i < HELD; i++)
    if (within(i)) load_vector<VECTOR>(values[i], x + place(i));
  if (works) fetch(across, column, operands);
  float sums[VECTOR / 2][SUMS];
  auto reduce = [&](auto which) {
    constexpr int s = decltype(which)::value;
    float pairs[VECTOR / 2];
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) pairs[p] = start<s>();
    auto take = [&](const float (&of)[VECTOR], int i) {
      Here here;
      fetch(here, place(i), operands);
#pragma unroll
      for (int p = 0; p < VECTOR / 2; p++) {
        const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
        const float2 two = term<s>(pair, sums[p], row(i), column + p * 2, operands, across, here, p * 2);
        pairs[p] = combined<MAXIMA[s]>(pairs[p], combined<MAXIMA[s]>(two.x, two.y));
      }
    };
#pragma unroll
    for (int i = 0; i < HELD; i++)
      if (within(i)) take(values[i], i);
#pragma unroll 4
    for (int i = HELD; i < TURNS; i++)
      if (within(i)) {
        float again[VECTOR];
        load_vector<VECTOR>(again, x + place(i));
        take(again, i);
      }
    const float* all = over_groups<s>(pairs, shared + s * AREA, works, line, piece);
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) sums[p][s] = works ? all[(piece * VECTOR + p * 2) / WIDTH] : 0.f;
  };
  each_sum(reduce);
  if (CLUSTER > 1) cluster_arrive_release();  // this CTA reads no other's memory any more
  auto give = [&](const float (&of)[VECTOR], int i) {
    Here here;
    fetch(here, place(i), operands);
    float done[VECTOR];
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) {
      const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
      const float2 two = result(pair, sums[p], row(i), column + p * 2, operands, across, here, p * 2);
      done[p * 2] = two.x;
      done[p * 2 + 1] = two.y;
    }
    store_vector<VECTOR>(out + place(i), done);
  };
#pragma unroll
  for (int i = 0; i < HELD; i++)
    if (within(i)) give(values[i], i);
#pragma unroll 4
  for (int i = HELD; i < TURNS; i++)
    if (within(i)) {
      float again[VECTOR];
      load_vector<VECTOR>(again, x + place(i));
      give(again, i);
    }
  if (CLUSTER > 1) cluster_wait();  // the others read this one's
}
