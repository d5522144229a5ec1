// Flash attention on mma.sync: O[b, h, m, :] = softmax over n of (Q[b, h, m, :] · K[b, h / GROUP, n, :]) times
// V[b, h / GROUP, n, :], after FlashAttention-2 (Dao, 2023). A CTA has TILE_M queries, a warp WARP_M of them, whose scores
// and sums stay in its registers. Threads copy a block of keys and of values a step; rows in shared memory are 16 bytes
// longer than a head, so that ldmatrix reads eight of them without conflicts. SLICES of the keys have a warp each, with
// blocks, buffers and a softmax of its own; their parts are added up in the end.
// Stands in a namespace that has defined: the configuration (TILE_M, WARP_M, BLOCK, STAGES, SLICES, KEEPS_Q), the problem
// (HEADS, GROUP, HEAD, CAUSAL, OFFSET, HAS_LOGIT, LOG2_SCALE, EMPTY, ONE_BLOCK, EVEN_KEYS, of each operand where it
// begins and its rows' stride, ROUNDS, the types Low and Out), Operands, Sizes (how many there are, and how far apart heads
// and batches are), `logit`, `rounded`, `merge` and `store_row`.

constexpr int WARPS = TILE_M / WARP_M, SLICE_THREADS = WARPS * 32, THREADS = SLICE_THREADS * SLICES;
constexpr int DEPTH = (HEAD + 15) / 16 * 16, CHUNKS = DEPTH / 8, PITCH = DEPTH * 2 + 16;
constexpr int Q_BYTES = TILE_M * PITCH, BLOCK_BYTES = BLOCK * PITCH, SLICE_BYTES = 2 * STAGES * BLOCK_BYTES;
constexpr int BLOCKS_M = WARP_M / 16;
constexpr int PART = HEAD + 4;  // floats of a row of a slice: its sums, its largest logit, and the sum of its powers
static_assert(BLOCK % 16 == 0 && HEAD % 8 == 0 && (STAGES == 1 || STAGES == 2) && (SLICES == 1 || WARPS == 1), "tile");

static_assert(!ROUNDS || SLICES == 1, "weights are rounded by who knows the sum of all powers");

template <int VALUE> struct Just { static constexpr int value = VALUE; };

struct Tile { int m, h, b; };

// Tiles with the most keys come first, so that the last to end are short.
DEV Tile tile_of(int t, const Sizes& sizes) {
  const int tiles_m = (sizes.queries + TILE_M - 1) / TILE_M, all = HEADS * sizes.batch;
  const int rank = CAUSAL ? t / all : t % tiles_m, at = CAUSAL ? t % all : t / tiles_m;
  return {CAUSAL ? tiles_m - 1 - rank : rank, at % HEADS, at / HEADS};
}

// What no query of the tile may see is left out; one block stays where that is all.
DEV int blocks_of(Tile tile, const Sizes& sizes) {
  const int blocks = (sizes.keys + BLOCK - 1) / BLOCK;
  if (!CAUSAL) return blocks;
  return min(blocks, max(1, ((tile.m + 1) * TILE_M + OFFSET + BLOCK - 1) / BLOCK));
}

// Rows of a head, by COUNT threads; zeros from row `left` on, and behind the head's end. A thread's chunks are at places
// that differ by constants: others would each take a register throughout the loop over keys.
template <int ROWS, int STRIDE, int COUNT> DEV void copy_rows(uint32_t to, const Low* from, int left, int thread) {
  constexpr int BESIDE = CHUNKS & -CHUNKS, STEP = COUNT / BESIDE;
  static_assert(COUNT % BESIDE == 0, "whole rows of threads");
  const int first = thread / BESIDE, chunk = thread % BESIDE;
  to += first * PITCH + chunk * 16;
  from += first * STRIDE + chunk * 8;
  left -= first;
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) {
    if (ROWS % STEP != 0 && row + first >= ROWS) break;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += BESIDE)
      copy<16>(to + row * PITCH + c * 16, from + row * STRIDE + c * 8,
               row < left && (HEAD % 16 == 0 || c + chunk < HEAD / 8));
  }
}

// The same of rows in pages, of which `page` names that of a row: all of a thread's are looked up before any is copied.
template <int ROWS, int STRIDE, int PAGE, int COUNT, class Page>
DEV void copy_pages(uint32_t to, const Low* from, size_t pages, int n, int left, int thread, Page page) {
  constexpr int BESIDE = CHUNKS & -CHUNKS, STEP = COUNT / BESIDE;
  static_assert(COUNT % BESIDE == 0, "whole rows of threads");
  const int first = thread / BESIDE, chunk = thread % BESIDE;
  int at[(ROWS + STEP - 1) / STEP];
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) at[row / STEP] = page(n + min(first + row, left - 1));
  to += first * PITCH + chunk * 16;
#pragma unroll
  for (int row = 0; row < ROWS; row += STEP) {
    if (ROWS % STEP != 0 && row + first >= ROWS) break;
    const Low* const source = from + at[row / STEP] * pages + (size_t)((n + first + row) % PAGE) * STRIDE + chunk * 8;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += BESIDE)
      copy<16>(to + row * PITCH + c * 16, source + c * 8,
               first + row < left && (HEAD % 16 == 0 || c + chunk < HEAD / 8));
  }
}

DEV bool is_empty(float all) { return EMPTY == NEVER_NAN ? !(all > 0.f) : EMPTY == ZERO && all == 0.f; }

DEV void attention(uint8_t* raw, const Low* Q, const Low* K, const Low* V, Out* O, const Operands operands) {
  const uint32_t shared_q = (shared_address(raw) + 127) & ~127u;
  const int tid = threadIdx.x, lane = tid & 31;
  const int warp = __shfl_sync(0xffffffff, tid >> 5, 0), slice = warp / WARPS, thread = tid - slice * SLICE_THREADS;
  const uint32_t ring = shared_q + Q_BYTES + slice * SLICE_BYTES;
  const Sizes sizes(operands);
  if (sizes.queries == 0 || sizes.batch == 0) return;
  const Tile tile = tile_of(blockIdx.x, sizes);
  const int m0 = tile.m * TILE_M, own = warp % WARPS * WARP_M, row = m0 + own + (lane >> 2);
  // Not known to the compiler, as in kernel.cuh, which says why.
  const int blocks = __shfl_sync(0xffffffff, blocks_of(tile, sizes), 0);
  const int seen_by_all = m0 + OFFSET;  // the last key that the tile's first query may see
  const int head = tile.h / GROUP;
  const Low* q_from = Q + (size_t)tile.b * sizes.q_batches + (size_t)(Q_HEAD + tile.h) * sizes.q_heads + (size_t)(Q_ROW + m0) * Q_ROWS;
  const Low* k_from = K + (size_t)(K_PAGED ? 0 : tile.b) * sizes.k_batches + (size_t)(K_HEAD + head) * sizes.k_heads + (size_t)K_ROW * K_ROWS;
  const Low* v_from = V + (size_t)(V_PAGED ? 0 : tile.b) * sizes.v_batches + (size_t)(V_HEAD + head) * sizes.v_heads + (size_t)V_ROW * V_ROWS;
  auto copy_keys = [&](int j, uint32_t to) {
    const int left = sizes.keys - j * BLOCK;
    if constexpr (K_PAGED)
      copy_pages<BLOCK, K_ROWS, K_PAGE, SLICE_THREADS>(to, k_from, sizes.k_batches, j * BLOCK, left, thread,
                                                       [&](int n) { return k_page(tile.b, n, operands); });
    else
      copy_rows<BLOCK, K_ROWS, SLICE_THREADS>(to, k_from + (size_t)j * BLOCK * K_ROWS, left, thread);
  };
  auto copy_values = [&](int j, uint32_t to) {
    const int left = sizes.keys - j * BLOCK;
    if constexpr (V_PAGED)
      copy_pages<BLOCK, V_ROWS, V_PAGE, SLICE_THREADS>(to + BLOCK_BYTES, v_from, sizes.v_batches, j * BLOCK, left, thread,
                                                       [&](int n) { return v_page(tile.b, n, operands); });
    else
      copy_rows<BLOCK, V_ROWS, SLICE_THREADS>(to + BLOCK_BYTES, v_from + (size_t)j * BLOCK * V_ROWS, left, thread);
  };
  auto meet = [&] {
    if constexpr (SLICES == 1) __syncthreads();
    else __syncwarp();
  };

  int j = blocks - 1 - slice;
  copy_rows<TILE_M, Q_ROWS, THREADS>(shared_q, q_from, sizes.queries - m0, tid);
  if (j >= 0) {
    copy_keys(j, ring);
    if (STAGES == 2) copy_values(j, ring);
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();

  uint32_t q[KEEPS_Q ? DEPTH / 16 : 1][BLOCKS_M][4];
  const uint32_t q_at = shared_q + (own + (lane & 15)) * PITCH + (lane >> 4) * 16;
  auto load_queries = [&](int to, int k) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++) load_matrices(q[to][i], q_at + i * 16 * PITCH + k * 32);
  };
  if constexpr (KEEPS_Q) {
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) load_queries(k, k);
  }

  float S[BLOCKS_M][BLOCK / 8][4], sums[BLOCKS_M][DEPTH / 8][4], top[BLOCKS_M][2], total[BLOCKS_M][2];
#pragma unroll
  for (int i = 0; i < BLOCKS_M; i++) {
#pragma unroll
    for (int c = 0; c < DEPTH / 8; c++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][c][e] = 0.f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      top[i][h] = -INFINITY;
      total[i][h] = 0.f;
    }
  }
  auto scores = [&](uint32_t keys) {
    const uint32_t at = keys + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 16;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) S[i][n][e] = 0.f;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      if (!KEEPS_Q) load_queries(0, k);
#pragma unroll
      for (int n = 0; n < BLOCK / 16; n++) {
        uint32_t b[4];
        load_matrices(b, at + n * 16 * PITCH + k * 32);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
          Product<Low>::add(S[i][n * 2], q[KEEPS_Q ? k : 0][i], b[0], b[1]);
          Product<Low>::add(S[i][n * 2 + 1], q[KEEPS_Q ? k : 0][i], b[2], b[3]);
        }
      }
    }
  };
  auto values = [&](uint32_t keys) {
    const uint32_t at = keys + BLOCK_BYTES + (lane & 15) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int n = 0; n < BLOCK / 16; n++) {
      uint32_t p[BLOCKS_M][4];
#pragma unroll
      for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[i][e] = pack<Low>(S[i][n * 2 + e / 2][e % 2 * 2], S[i][n * 2 + e / 2][e % 2 * 2 + 1]);
#pragma unroll
      for (int c = 0; c < DEPTH / 16; c++) {
        uint32_t b[4];
        load_transposed(b, at + n * 16 * PITCH + c * 32);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
          Product<Low>::add(sums[i][c * 2], p[i], b[0], b[1]);
          Product<Low>::add(sums[i][c * 2 + 1], p[i], b[2], b[3]);
        }
      }
    }
  };
  auto change = [&](int j) {  // the scores into logits
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int m = min(row + i * 16 + h * 8, sizes.queries - 1), at = j * BLOCK + n * 8 + (lane & 3) * 2;
          const float2 both = make_float2(S[i][n][h * 2], S[i][n][h * 2 + 1]);
          const float2 l = logit(both, tile.b, tile.h, m, min(at, sizes.keys - (EVEN_KEYS ? 2 : 1)), min(at + 1, sizes.keys - 1), operands);
          S[i][n][h * 2] = l.x;
          S[i][n][h * 2 + 1] = l.y;
        }
  };
  auto hide = [&](int j) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int at = j * BLOCK + n * 8 + (lane & 3) * 2 + (e & 1), m = row + i * 16 + e / 2 * 8;
          if (at >= sizes.keys || (CAUSAL && at > m + OFFSET)) S[i][n][e] = -INFINITY;
        }
  };
  // Weights that are rounded need the sum of all powers first: they are computed twice where keys are of several blocks.
  constexpr int BOTH = 0, STATISTICS = 1, WEIGHTS = 2;
  auto softmax = [&](auto what) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float most = top[i][h];
        if constexpr (decltype(what)::value != WEIGHTS) {
#pragma unroll
          for (int n = 0; n < BLOCK / 8; n++) most = fmaxf(most, fmaxf(S[i][n][h * 2], S[i][n][h * 2 + 1]));
          most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
          most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
        }
        const float from = most == -INFINITY ? 0.f : most;
        // Logits may be the least float, as masks have it: times log2(e) that would be infinite.
        const float scaled = from * LOG2_SCALE;
        auto power = [&](float x) {
          return exp2_fast(HAS_LOGIT ? (x - from) * LOG2_SCALE : fmaf(x, LOG2_SCALE, -scaled));
        };
        const float shrink = power(top[i][h]);
        top[i][h] = most;
        float even = 0.f, odd = 0.f;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
          even += S[i][n][h * 2] = power(S[i][n][h * 2]);
          odd += S[i][n][h * 2 + 1] = power(S[i][n][h * 2 + 1]);
        }
        if constexpr (decltype(what)::value != WEIGHTS) total[i][h] = fmaf(total[i][h], shrink, even + odd);
        if constexpr (decltype(what)::value == BOTH) {
#pragma unroll
          for (int c = 0; c < DEPTH / 8; c++) {
            sums[i][c][h * 2] *= shrink;
            sums[i][c][h * 2 + 1] *= shrink;
          }
        }
      }
  };
  auto add_totals = [&] {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        total[i][h] += __shfl_xor_sync(0xffffffff, total[i][h], 1);
        total[i][h] += __shfl_xor_sync(0xffffffff, total[i][h], 2);
      }
  };
  auto round_weights = [&] {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float by = is_empty(total[i][h]) ? 0.f : 1.f / total[i][h];
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
          const float2 w = rounded(make_float2(S[i][n][h * 2] * by, S[i][n][h * 2 + 1] * by), operands);
          S[i][n][h * 2] = w.x;
          S[i][n][h * 2 + 1] = w.y;
        }
      }
  };

  uint32_t from = ring;
  auto over_keys = [&](auto what) {
    constexpr bool MULTIPLIES = decltype(what)::value != STATISTICS;
#pragma unroll 1
    for (; j >= 0; j -= SLICES) {
      copies_wait<0>();
      meet();  // the keys are there, and nobody reads the values of the step before
      if constexpr (STAGES == 2) {
        const uint32_t other = from == ring ? ring + 2 * BLOCK_BYTES : ring;
        if (j >= SLICES) {
          copy_keys(j - SLICES, other);
          if (MULTIPLIES) copy_values(j - SLICES, other);
        }
        copies_commit();
        scores(from);
      } else {
        if (MULTIPLIES) copy_values(j, from);
        copies_commit();
        scores(from);
        copies_wait<0>();
        meet();
        if (j >= SLICES) copy_keys(j - SLICES, from);
        copies_commit();
      }
      if (HAS_LOGIT) change(j);
      if ((CAUSAL && (j + 1) * BLOCK - 1 > seen_by_all) || (j + 1) * BLOCK > sizes.keys) hide(j);
      softmax(what);
      if constexpr (ROUNDS && ONE_BLOCK) add_totals();
      if constexpr (ROUNDS && MULTIPLIES) round_weights();
      if constexpr (MULTIPLIES) values(from);
      if (STAGES == 2) from = from == ring ? ring + 2 * BLOCK_BYTES : ring;
    }
  };
  if constexpr (ROUNDS && !ONE_BLOCK) {
    over_keys(Just<STATISTICS>());
    add_totals();
    meet();  // nobody reads the keys of the last step
    j = blocks - 1;
    from = ring;
    copy_keys(j, ring);
    if (STAGES == 2) copy_values(j, ring);
    copies_commit();
    over_keys(Just<WEIGHTS>());
  } else {
    over_keys(Just<BOTH>());
  }

  Out* const out = O + (size_t)tile.b * sizes.o_batches + (size_t)tile.h * sizes.o_heads;
  if constexpr (!ROUNDS) add_totals();
  if constexpr (SLICES == 1) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int m = row + i * 16 + h * 8;
        const bool empty = !ROUNDS && is_empty(total[i][h]);
        if (empty)
#pragma unroll
          for (int c = 0; c < HEAD / 8; c++) sums[i][c][h * 2] = sums[i][c][h * 2 + 1] = 0.f;
        store_row(m < sizes.queries ? out + (size_t)m * O_ROWS : nullptr, &sums[i][0][h * 2], ROUNDS ? 1.f : empty ? 0.f : 1.f / total[i][h], lane, operands);
      }
    return;
  }
  float* const parts = (float*)(raw + (shared_q - shared_address(raw)));
  __syncthreads();  // every warp is done with queries, keys and values: the parts take their place
#pragma unroll
  for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float* const to = parts + (slice * TILE_M + own + (lane >> 2) + i * 16 + h * 8) * PART;
#pragma unroll
      for (int c = 0; c < HEAD / 8; c++)
        store_pair<float>(to + c * 8 + (lane & 3) * 2, sums[i][c][h * 2], sums[i][c][h * 2 + 1]);
      if ((lane & 3) == 0) store_pair<float>(to + HEAD, top[i][h], total[i][h]);
    }
  __syncthreads();
  for (int at = tid; at < min(TILE_M, sizes.queries - m0) * (HEAD / 2); at += THREADS) {
    const int m = at / (HEAD / 2), column = (at - m * (HEAD / 2)) * 2;
    float tops[SLICES], totals[SLICES], weights[SLICES];
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      tops[s] = parts[(s * TILE_M + m) * PART + HEAD];
      totals[s] = parts[(s * TILE_M + m) * PART + HEAD + 1];
    }
    const float all = merge(tops, totals, weights);
    float x = 0.f, y = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      x = fmaf(weights[s], parts[(s * TILE_M + m) * PART + column], x);
      y = fmaf(weights[s], parts[(s * TILE_M + m) * PART + column + 1], y);
    }
    const bool empty = is_empty(all);
    const float by = 1.f / all;
    store_two(out + (size_t)(m0 + m) * O_ROWS + column, empty ? 0.f : x * by, empty ? 0.f : y * by, operands);
  }
}
