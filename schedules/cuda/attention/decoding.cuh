// Attention of few queries to many keys: a cluster computes one tile of up to 64 queries, each of its SPLITS CTAs over a
// part of the keys with a softmax of its own; then every CTA adds up a share of the results out of the shared memory of
// all. After "Flash-Decoding" (Dao et al., 2023), with distributed shared memory in place of a second kernel. One producer
// warp brings Q, K and V by TMA; one consumer warpgroup multiplies as `kernel.cuh` does.
// Stands in a namespace that has defined: SPLITS, BLOCK, STAGES, the problem as in `kernel.cuh`, `logit`, `multiply_keys`,
// `multiply_values`, `merge`, `k_page` and `v_page`, the rows that are copied
// at once (K_STEP, V_STEP) and the pages of a CTA (ENTRIES).
using namespace hopper;

constexpr int ROWS = 64;
constexpr int ATOMS = (HEAD + 63) / 64;
constexpr int Q_BYTES = ROWS * ATOMS * 128, KV_BYTES = BLOCK * ATOMS * 128;
constexpr int BLOCKS = (KEYS + BLOCK - 1) / BLOCK;
constexpr int DEPTH_STEPS = (HEAD + 15) / 16;
constexpr int PITCH = HEAD + 2;  // a row of sums, then its largest logit and the sum of its powers
template <int VALUE> struct Just { static constexpr int value = VALUE; };
static_assert(QUERIES <= ROWS, "one tile of queries");
static_assert(SPLITS <= BLOCKS, "keys for every CTA");
static_assert(QUERIES * PITCH * 4 <= 2 * STAGES * KV_BYTES, "the sums lie where keys and values were");

// What a CTA of the cluster wrote into shared memory before is seen by all of them after.
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEV void write_pair(uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
DEV float2 read_pair(uint32_t from) {  // of any CTA of the cluster
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

DEV void decoding(uint8_t* raw, const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, Out* O,
                  const Operands operands) {
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t shared_q = base, shared_k = shared_q + Q_BYTES, shared_v = shared_k + STAGES * KV_BYTES;
  const uint32_t q_full = shared_v + STAGES * KV_BYTES, k_full = q_full + 8, k_empty = k_full + STAGES * 8;
  const uint32_t v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const int rank = cluster_rank(), tile = blockIdx.x / SPLITS, b = tile / HEADS, h = tile % HEADS;
  const int first = rank * BLOCKS / SPLITS, last = (rank + 1) * BLOCKS / SPLITS;
  next_kernel_may_start();
  if (tid == 0) {
    barrier_init(q_full, 1);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + i * 8, 1);
      barrier_init(k_empty + i * 8, 1);
      barrier_init(v_full + i * 8, 1);
      barrier_init(v_empty + i * 8, 1);
    }
    barriers_visible();
    fence_async();
  }
  __syncthreads();
  earlier_kernels_done();
  // Pages of the keys and values that this CTA brings: a table's entries would be waited for one after the other.
  int* const k_pages = (int*)(raw + (v_empty + STAGES * 8 - shared_address(raw)));
  int* const v_pages = k_pages + ENTRIES;
  const int k_page0 = first * BLOCK / K_PAGE, v_page0 = first * BLOCK / V_PAGE;
  if constexpr (K_PAGED || V_PAGED) {
    for (int i = tid; i < ENTRIES; i += blockDim.x) {
      if (K_PAGED) k_pages[i] = k_page(b, (k_page0 + i) * K_PAGE, operands);
      if (V_PAGED) v_pages[i] = v_page(b, (v_page0 + i) * V_PAGE, operands);
    }
    __syncthreads();
  }

  if (warp == 4) {
    if (elect()) {
      int k_stage = 0, k_phase = 1, v_stage = 0, v_phase = 1;
      // Rows in pages come by STEP of one page; those behind the last key are zeros, of a page that is not there.
      auto load = [&](auto step, bool paged, int rows, int none, const int* pages, int page0, const TensorMap* map,
                      uint32_t ring, uint32_t full, uint32_t empty, int& stage, int& phase, int j, int row, int head) {
        constexpr int STEP = decltype(step)::value;
        barrier_wait(empty + stage * 8, phase);
        barrier_expect(full + stage * 8, KV_BYTES);
#pragma unroll
        for (int s = 0; s < BLOCK; s += STEP) {
          const int n = j * BLOCK + s, page = !paged ? b : n < KEYS ? pages[n / rows - page0] : none;
#pragma unroll
          for (int a = 0; a < ATOMS; a++)
            load_image(ring + stage * KV_BYTES + a * BLOCK * 128 + s * 128, map, full + stage * 8, a * 64,
                       paged ? n % rows : row + n, head, page);
        }
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      };
      auto load_k = [&](int j) {
        load(Just<K_STEP>(), K_PAGED, K_PAGE, K_PAGES, k_pages, k_page0, map_k, shared_k, k_full, k_empty, k_stage,
             k_phase, j, K_ROW, K_HEAD + h / GROUP);
      };
      auto load_v = [&](int j) {
        load(Just<V_STEP>(), V_PAGED, V_PAGE, V_PAGES, v_pages, v_page0, map_v, shared_v, v_full, v_empty, v_stage,
             v_phase, j, V_ROW, V_HEAD + h / GROUP);
      };
      barrier_expect(q_full, Q_BYTES);
#pragma unroll
      for (int a = 0; a < ATOMS; a++) load_image(shared_q + a * ROWS * 128, map_q, q_full, a * 64, Q_ROW, Q_HEAD + h, b);
      load_k(last - 1);
      for (int j = last - 2; j >= first; j--) { load_k(j); load_v(j + 1); }
      load_v(first);
    }
    __syncwarp();
  } else {
    float S[BLOCK / 2], sums[HEAD / 2];
    uint32_t P[BLOCK / 4];
    float top[2], total[2], shrink[2];
    int k_stage = 0, k_phase = 0, v_stage = 0, v_phase = 0;
    const int row = warp * 16 + (lane >> 2);
    auto scores = [&]() {
      mma_fence();
#pragma unroll
      for (int k = 0; k < DEPTH_STEPS; k++)
        multiply_keys(S, operand(shared_q + (k / 4) * ROWS * 128, 16, 1024) + (k % 4) * 2,
                      operand(shared_k + k_stage * KV_BYTES + (k / 4) * BLOCK * 128, 16, 1024) + (k % 4) * 2, k != 0);
      mma_commit();
    };
    auto values = [&](bool first_block) {
      mma_fence();
      const uint64_t v = operand(shared_v + v_stage * KV_BYTES, BLOCK * 128, 1024);
#pragma unroll
      for (int k = 0; k < BLOCK / 16; k++)
        multiply_values(sums, P[k * 4], P[k * 4 + 1], P[k * 4 + 2], P[k * 4 + 3], v + k * 128,
                        !(first_block && k == 0));
      mma_commit();
    };
    auto release = [&](uint32_t empty, int& stage, int& phase) {
      if (tid == 0) barrier_arrive(empty + stage * 8);
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    };
    auto change = [&](int j) {  // the scores into logits, and those of no key into -inf
#pragma unroll
      for (int i = 0; HAS_LOGIT && i < BLOCK / 2; i += 2) {
        const int m = min(row + ((i & 2) ? 8 : 0), QUERIES - 1), n = j * BLOCK + (i / 4) * 8 + (lane & 3) * 2;
        const float2 l =
            logit(make_float2(S[i], S[i + 1]), b, h, m, min(n, LAST_PAIR), min(n + 1, KEYS - 1), operands);
        S[i] = l.x;
        S[i + 1] = l.y;
      }
      if ((j + 1) * BLOCK <= KEYS && !(CAUSAL && (j + 1) * BLOCK - 1 > OFFSET)) return;
#pragma unroll
      for (int i = 0; i < BLOCK / 2; i++) {
        const int n = j * BLOCK + (i / 4) * 8 + (lane & 3) * 2 + (i & 1), m = row + ((i & 2) ? 8 : 0);
        if (n >= KEYS || (CAUSAL && n > m + OFFSET)) S[i] = -INFINITY;
      }
    };
    auto softmax = [&](bool first_block) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float most = S[half * 2];
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) most = fmaxf(most, fmaxf(S[i * 4 + half * 2], S[i * 4 + half * 2 + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
        if (!first_block) most = fmaxf(most, top[half]);
        const float from = most == -INFINITY ? 0.f : most;
        auto power = [&](float x) { return exp2_fast((x - from) * LOG2_SCALE); };
        shrink[half] = first_block ? 0.f : power(top[half]);
        top[half] = most;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++)
#pragma unroll
          for (int k = 0; k < 2; k++) sum += S[i * 4 + half * 2 + k] = power(S[i * 4 + half * 2 + k]);
        total[half] = first_block ? sum : fmaf(total[half], shrink[half], sum);
      }
    };
    auto to_low = [&]() {
#pragma unroll
      for (int i = 0; i < BLOCK / 4; i++) P[i] = pack<Low>(S[i * 2], S[i * 2 + 1]);
    };
    barrier_wait(q_full, 0);
    barrier_wait(k_full + k_stage * 8, k_phase);
    scores();
    mma_wait<0>();
    hold(S);
    release(k_empty, k_stage, k_phase);
    change(last - 1);
    softmax(true);
    to_low();
    bool first_block = true;
#pragma unroll 1
    for (int j = last - 2; j >= first; j--) {  // this block's scores beside the values of the one before
      barrier_wait(k_full + k_stage * 8, k_phase);
      scores();
      barrier_wait(v_full + v_stage * 8, v_phase);
      values(first_block);
      first_block = false;
      mma_wait<1>();
      hold(S);
      release(k_empty, k_stage, k_phase);
      change(j);
      softmax(false);
      mma_wait<0>();
      hold(sums);
      release(v_empty, v_stage, v_phase);
#pragma unroll
      for (int i = 0; i < HEAD / 2; i++) sums[i] *= shrink[(i >> 1) & 1];
      to_low();
    }
    barrier_wait(v_full + v_stage * 8, v_phase);
    values(first_block);
    mma_wait<0>();
    hold(sums);
    block_sync(1, 128);  // every warp is done with keys and values: sums take their place
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all = total[half];
      all += __shfl_xor_sync(0xffffffff, all, 1);
      all += __shfl_xor_sync(0xffffffff, all, 2);
      const int m = row + half * 8;
      if (m < QUERIES) {
        const uint32_t to = shared_k + m * PITCH * 4;
#pragma unroll
        for (int i = 0; i < HEAD / 8; i++)
          write_pair(to + (i * 8 + (lane & 3) * 2) * 4, sums[i * 4 + half * 2], sums[i * 4 + half * 2 + 1]);
        if ((lane & 3) == 0) write_pair(to + HEAD * 4, top[half], all);
      }
    }
  }
  cluster_sync();
  for (int at = rank * blockDim.x + tid; at < QUERIES * HEAD / 2; at += SPLITS * blockDim.x) {
    const int m = at / (HEAD / 2), column = at % (HEAD / 2) * 2;
    float tops[SPLITS], totals[SPLITS], weights[SPLITS];
#pragma unroll
    for (int i = 0; i < SPLITS; i++) {
      const float2 both = read_pair(address_at(shared_k + (m * PITCH + HEAD) * 4, i));
      tops[i] = both.x;
      totals[i] = both.y;
    }
    const float all = merge(tops, totals, weights);
    float x = 0.f, y = 0.f;
#pragma unroll
    for (int i = 0; i < SPLITS; i++) {
      const float2 both = read_pair(address_at(shared_k + (m * PITCH + column) * 4, i));
      x = fmaf(weights[i], both.x, x);
      y = fmaf(weights[i], both.y, y);
    }
    // A row without a finite logit has NaN, or zeros where the model says so.
    const bool empty = EMPTY == NEVER_NAN ? !(all > 0.f) : EMPTY == ZERO && all == 0.f;
    const float by = 1.f / all;
    Out* to = O + (size_t)b * O_BATCH + (size_t)h * O_HEAD + (size_t)m * O_ROW + column;
    store_pair<Out>(to, empty ? 0.f : x * by, empty ? 0.f : y * by);
  }
  cluster_sync();  // nobody may still read of a CTA that left
}
