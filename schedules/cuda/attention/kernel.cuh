// Flash attention: O[b, h, m, :] = softmax over n of (Q[b, h, m, :] · K[b, h / GROUP, n, :]) times V[b, h / GROUP, n, :],
// after FlashAttention-3. One producer warp brings Q, K and V by TMA; each consumer warpgroup has 64 queries: the
// product of the next block's scores runs beside the softmax of this one, and warpgroups take turns at the tensor cores.
// Stands in a namespace that has defined: the configuration (CONSUMERS, BLOCK, STAGES, TURNS, MOVES_REGISTERS), the
// problem (BATCH, HEADS, GROUP, QUERIES, KEYS, HEAD, CAUSAL, OFFSET, HAS_LOGIT, LOG2_SCALE, EMPTY, the coordinates at
// which the operands begin, the strides of O, the types Low and Out), Operands, `logit`, `first_tile`, `tile_at`,
// `multiply_keys` and `multiply_values`.
using namespace hopper;

constexpr int ROWS = CONSUMERS * 64;                  // queries of a tile
constexpr int ATOMS = (HEAD + 63) / 64;               // a head's row in units of 128 bytes, zeros behind its end
constexpr int Q_BYTES = ROWS * ATOMS * 128, KV_BYTES = BLOCK * ATOMS * 128;
constexpr int TILES_M = (QUERIES + ROWS - 1) / ROWS;
constexpr int BLOCKS = (KEYS + BLOCK - 1) / BLOCK;
constexpr int DEPTH_STEPS = (HEAD + 15) / 16;

// A row without a finite logit has NaN, or zeros where the model says so.
DEV bool is_empty(float all) { return EMPTY == NEVER_NAN ? !(all > 0.f) : EMPTY == ZERO && all == 0.f; }

struct Tile { int m, h, b; };

// What no query of the tile may see is left out; one block stays where that is all.
DEV int blocks_of(Tile tile) {
  if (!CAUSAL) return BLOCKS;
  return min(BLOCKS, max(1, ((tile.m + 1) * ROWS + OFFSET + BLOCK - 1) / BLOCK));
}

// Tiles with the most keys come first, so that the last to end are short.
DEV Tile tile_of(int t) {
  Tile tile;
  int at;
  if (CAUSAL) {
    tile.m = TILES_M - 1 - t / (HEADS * BATCH);
    at = t % (HEADS * BATCH);
  } else {
    tile.m = t % TILES_M;
    at = t / TILES_M;
  }
  tile.b = at / HEADS;
  tile.h = at % HEADS;
  return tile;
}

static_assert(!ROUNDS || BLOCKS == 1, "weights are rounded where the sum of all powers is known");

DEV void attention(uint8_t* raw, const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, Out* O,
                   const Operands operands) {
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t shared_q = base, shared_k = shared_q + Q_BYTES, shared_v = shared_k + STAGES * KV_BYTES;
  const uint32_t q_full = shared_v + STAGES * KV_BYTES, q_empty = q_full + 8, k_full = q_full + 16;
  const uint32_t k_empty = k_full + STAGES * 8, v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const int warpgroup = __shfl_sync(0xffffffff, tid >> 7, 0);
  if (tid == 0) {
    barrier_init(q_full, 1);
    barrier_init(q_empty, CONSUMERS);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(k_full + i * 8, 1);
      barrier_init(k_empty + i * 8, CONSUMERS);
      barrier_init(v_full + i * 8, 1);
      barrier_init(v_empty + i * 8, CONSUMERS);
    }
    barriers_visible();
    fence_async();
  }
  __syncthreads();
  earlier_kernels_done();
  const int first = first_tile(blockIdx.x), last = first_tile(blockIdx.x + 1);

  if (warpgroup == CONSUMERS) {
    if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 3 ? 32 : 24));
    if (warp == CONSUMERS * 4 && elect()) {
      int k_stage = 0, k_phase = 1, v_stage = 0, v_phase = 1, q_phase = 1;
      for (int it = first; it < last; it++) {
        const Tile tile = tile_of(tile_at(it));
        const int blocks = blocks_of(tile), head = tile.h / GROUP;
        auto load_k = [&](int j) {
          barrier_wait(k_empty + k_stage * 8, k_phase);
          barrier_expect(k_full + k_stage * 8, KV_BYTES);
#pragma unroll
          for (int a = 0; a < ATOMS; a++)
            load_image(shared_k + k_stage * KV_BYTES + a * BLOCK * 128, map_k, k_full + k_stage * 8, a * 64,
                       K_ROW + j * BLOCK, K_HEAD + head, tile.b);
          if (++k_stage == STAGES) { k_stage = 0; k_phase ^= 1; }
        };
        auto load_v = [&](int j) {
          barrier_wait(v_empty + v_stage * 8, v_phase);
          barrier_expect(v_full + v_stage * 8, KV_BYTES);
#pragma unroll
          for (int a = 0; a < ATOMS; a++)
            load_image(shared_v + v_stage * KV_BYTES + a * BLOCK * 128, map_v, v_full + v_stage * 8, a * 64,
                       V_ROW + j * BLOCK, V_HEAD + head, tile.b);
          if (++v_stage == STAGES) { v_stage = 0; v_phase ^= 1; }
        };
        barrier_wait(q_empty, q_phase);
        q_phase ^= 1;
        barrier_expect(q_full, Q_BYTES);
#pragma unroll
        for (int a = 0; a < ATOMS; a++)
          load_image(shared_q + a * ROWS * 128, map_q, q_full, a * 64, Q_ROW + tile.m * ROWS, Q_HEAD + tile.h, tile.b);
        load_k(blocks - 1);
        for (int j = blocks - 2; j >= 0; j--) { load_k(j); load_v(j + 1); }
        load_v(0);
      }
    }
    return;
  }

  if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 3 ? 160 : 240));
  float S[BLOCK / 2], sums[HEAD / 2];
  uint32_t P[BLOCK / 4];
  float top[2], total[2], shrink[2];
  int k_stage = 0, k_phase = 0, v_stage = 0, v_phase = 0, q_phase = 0;
  const int thread = tid & 127;
  const uint32_t own_q = shared_q + warpgroup * 64 * 128;
  auto my_turn = [&]() { if (TURNS) block_sync(2 + warpgroup, 256); };
  auto next_turn = [&]() { if (TURNS) block_arrive(2 + (warpgroup + 1) % CONSUMERS, 256); };
  if (TURNS && warpgroup == CONSUMERS - 1) block_arrive(2, 256);  // gives the first turn to warpgroup 0
  auto scores = [&]() {
    mma_fence();
#pragma unroll
    for (int k = 0; k < DEPTH_STEPS; k++)
      multiply_keys(S, operand(own_q + (k / 4) * ROWS * 128, 16, 1024) + (k % 4) * 2,
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
  auto release_k = [&]() {
    if (thread == 0) barrier_arrive(k_empty + k_stage * 8);
    if (++k_stage == STAGES) { k_stage = 0; k_phase ^= 1; }
  };
  auto release_v = [&]() {
    if (thread == 0) barrier_arrive(v_empty + v_stage * 8);
    if (++v_stage == STAGES) { v_stage = 0; v_phase ^= 1; }
  };

  for (int it = first; it < last; it++) {
    const Tile tile = tile_of(tile_at(it));
    // A constant has the loop over blocks unrolled and registers spilled; and of keys that are hidden for certain,
    // ptxas 13.0 took some for the register R1, which nothing had written. It does not see through a shuffle.
    const int blocks = __shfl_sync(0xffffffff, blocks_of(tile), 0);
    const int row = tile.m * ROWS + warpgroup * 64 + (warp & 3) * 16 + (lane >> 2);
    const int seen_by_all = tile.m * ROWS + OFFSET;  // the last key that the tile's first query may see
    auto change = [&](int j) {  // the scores into logits
#pragma unroll
      for (int i = 0; i < BLOCK / 2; i += 2) {
        const int m = min(row + ((i & 2) ? 8 : 0), QUERIES - 1), n = j * BLOCK + (i / 4) * 8 + (lane & 3) * 2;
        const float2 l = logit(make_float2(S[i], S[i + 1]), tile.b, tile.h, m, min(n, LAST_PAIR), min(n + 1, KEYS - 1),
                               operands);
        S[i] = l.x;
        S[i + 1] = l.y;
      }
    };
    auto hide = [&](int j) {
#pragma unroll
      for (int i = 0; i < BLOCK / 2; i++) {
        const int n = j * BLOCK + (i / 4) * 8 + (lane & 3) * 2 + (i & 1), m = row + ((i & 2) ? 8 : 0);
        if (n >= KEYS || (CAUSAL && n > m + OFFSET)) S[i] = -INFINITY;
      }
    };
    auto softmax = [&](bool first_block) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float most = S[h * 2];
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
          most = fmaxf(most, S[i * 4 + h * 2]);
          most = fmaxf(most, S[i * 4 + h * 2 + 1]);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
        if (!first_block) most = fmaxf(most, top[h]);
        const float from = most == -INFINITY ? 0.f : most;
        // Logits may be the least float, as masks have it: times log2(e) that would be infinite.
        const float scaled = from * LOG2_SCALE;
        auto power = [&](float x) {
          return exp2_fast(HAS_LOGIT ? (x - from) * LOG2_SCALE : fmaf(x, LOG2_SCALE, -scaled));
        };
        shrink[h] = first_block ? 0.f : power(top[h]);
        top[h] = most;
        float even = 0.f, odd = 0.f;
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
          S[i * 4 + h * 2] = power(S[i * 4 + h * 2]);
          even += S[i * 4 + h * 2];
          S[i * 4 + h * 2 + 1] = power(S[i * 4 + h * 2 + 1]);
          odd += S[i * 4 + h * 2 + 1];
        }
        total[h] = first_block ? even + odd : fmaf(total[h], shrink[h], even + odd);
      }
    };
    auto to_low = [&]() {
#pragma unroll
      for (int i = 0; i < BLOCK / 4; i++) P[i] = pack<Low>(S[i * 2], S[i * 2 + 1]);
    };
    auto round_weights = [&]() {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float all = total[h];
        all += __shfl_xor_sync(0xffffffff, all, 1);
        all += __shfl_xor_sync(0xffffffff, all, 2);
        const float by = is_empty(all) ? 0.f : 1.f / all;
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
          const float2 w = rounded(make_float2(S[i * 4 + h * 2] * by, S[i * 4 + h * 2 + 1] * by), operands);
          S[i * 4 + h * 2] = w.x;
          S[i * 4 + h * 2 + 1] = w.y;
        }
      }
    };
    barrier_wait(q_full, q_phase);
    q_phase ^= 1;
    barrier_wait(k_full + k_stage * 8, k_phase);
    my_turn();
    scores();
    next_turn();
    mma_wait<0>();
    hold(S);
    release_k();
    if (HAS_LOGIT) change(blocks - 1);
    if ((CAUSAL && blocks * BLOCK - 1 > seen_by_all) || blocks * BLOCK > KEYS) hide(blocks - 1);
    softmax(true);
    if constexpr (ROUNDS) round_weights();
    to_low();
    auto step = [&](int j, bool hides, bool first_block) {
      barrier_wait(k_full + k_stage * 8, k_phase);
      my_turn();
      scores();
      barrier_wait(v_full + v_stage * 8, v_phase);
      values(first_block);
      next_turn();
      mma_wait<1>();
      hold(S);
      release_k();
      if (HAS_LOGIT) change(j);
      if (hides) hide(j);
      softmax(false);
      mma_wait<0>();
      hold(sums);
      release_v();
#pragma unroll
      for (int i = 0; i < HEAD / 2; i++) sums[i] *= shrink[(i >> 1) & 1];
      to_low();
    };
    int j = blocks - 2;
    bool first_block = true;
    if (CAUSAL)
      for (; j >= 0 && (j + 1) * BLOCK - 1 > seen_by_all; j--) { step(j, true, first_block); first_block = false; }
    if (j >= 0) {
      step(j, false, first_block);
      first_block = false;
      j--;
#pragma unroll 1
      for (; j >= 0; j--) step(j, false, false);
    }
    if (thread == 0) barrier_arrive(q_empty);
    barrier_wait(v_full + v_stage * 8, v_phase);
    my_turn();
    values(first_block);
    next_turn();
    mma_wait<0>();
    hold(sums);
    release_v();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float all = total[h];
      all += __shfl_xor_sync(0xffffffff, all, 1);
      all += __shfl_xor_sync(0xffffffff, all, 2);
      const bool empty = !ROUNDS && is_empty(all);
      if (empty)
#pragma unroll
        for (int i = 0; i < HEAD / 4; i++) sums[(i / 2) * 4 + h * 2 + (i & 1)] = 0.f;
      const float by = ROUNDS ? 1.f : empty ? 0.f : 1.f / all;
      const int m = row + h * 8;
      Out* to = O + (size_t)tile.b * O_BATCH + (size_t)tile.h * O_HEAD + (size_t)m * O_ROW;
      store_row(m < QUERIES ? to : nullptr, &sums[h * 2], by, lane, operands);
    }
  }
}
