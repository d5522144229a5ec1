// `consume` by warps that have 16 keys of each block and a softmax of their own, for tiles of 16 queries: a warpgroup's
// instruction would multiply 64 rows, most of them padding, and every warp would wait for the softmax of all keys. The
// parts of the warps are added up in the end.
// Stands behind `decoding.cuh`, in a namespace that uses `ampere` too; K and V lie swizzled as the copy engine left them.
constexpr int DEPTH = (HEAD + 15) / 16 * 16;
constexpr int HALVES = QUERIES > 8 ? 2 : 1;  // of a tile's rows: a lane has sums of the rows lane / 4 and lane / 4 + 8
static_assert(ROWS == 16 && BLOCK == WARPS * 16 && PARTS == WARPS, "16 keys a warp");

DEV void consume(const Ring& ring, int b, int h, int first, int last, const Operands& operands) {
  const int tid = threadIdx.x, warp = __shfl_sync(0xffffffff, tid >> 5, 0), lane = tid & 31;
  // Where a lane's row of 16 bytes lies for ldmatrix; the columns of step k are 32 * (k % 4) bytes away, turned.
  auto place = [&](int row, int side) { return row * 128 + ((side ^ (row & 7)) << 4); };
  const uint32_t q_row = place(lane & 15, lane >> 4);
  const uint32_t k_row = place(warp * 16 + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
  const uint32_t v_row = place(warp * 16 + (lane & 15), lane >> 4);
  uint32_t q[DEPTH / 16][4];
  float sums[DEPTH / 8][4], top[HALVES], total[HALVES];
#pragma unroll
  for (int c = 0; c < DEPTH / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[c][e] = 0.f;
#pragma unroll
  for (int half = 0; half < HALVES; half++) {
    top[half] = -INFINITY;
    total[half] = 0.f;
  }
  barrier_wait(ring.q_full, 0);
#pragma unroll
  for (int k = 0; k < DEPTH / 16; k++)
    load_matrices(q[k], ring.q + k / 4 * ROWS * 128 + (q_row ^ (k % 4 * 32)));

  int stage = 0, phase = 0;
#pragma unroll 1
  for (int j = last - 1; j >= first; j--) {
    float S[2][4], more[2][4];  // more: the sums of every second step, so that fewer of them wait for each other
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) S[n][e] = more[n][e] = 0.f;
    barrier_wait(ring.k_full + stage * 8, phase);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      uint32_t keys[4];
      load_matrices(keys, ring.k + stage * KV_BYTES + k / 4 * BLOCK * 128 + (k_row ^ (k % 4 * 32)));
      auto& to = k % 2 ? more : S;
      Product<Low>::add(to[0], q[k], keys[0], keys[1]);
      Product<Low>::add(to[1], q[k], keys[2], keys[3]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.k_empty + stage * 8);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) S[n][e] += more[n][e];

    const int from = j * BLOCK + warp * 16 + (lane & 3) * 2;  // the first of the lane's keys
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        float& x = S[n][half * 2];
        float& y = S[n][half * 2 + 1];
        const int m = (lane >> 2) + half * 8, at = from + n * 8;
        if (HAS_LOGIT) {
          const float2 l = logit(make_float2(x, y), b, h, min(m, QUERIES - 1), min(at, LAST_PAIR), min(at + 1, KEYS - 1),
                                 operands);
          x = l.x;
          y = l.y;
        }
        if ((KEYS % BLOCK && at >= KEYS) || (CAUSAL && at > m + OFFSET)) x = -INFINITY;
        if ((KEYS % BLOCK && at + 1 >= KEYS) || (CAUSAL && at + 1 > m + OFFSET)) y = -INFINITY;
      }
    float shrink[HALVES];
    bool is_same = true;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      float most = fmaxf(fmaxf(S[0][half * 2], S[0][half * 2 + 1]), fmaxf(S[1][half * 2], S[1][half * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
      most = fmaxf(most, top[half]);
      const float base = most == -INFINITY ? 0.f : most;
      auto power = [&](float x) { return exp2_fast((x - base) * LOG2_SCALE); };
      is_same = is_same && most == top[half];
      shrink[half] = power(top[half]);
      top[half] = most;
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) sum += S[n][half * 2 + e] = power(S[n][half * 2 + e]);
      total[half] = fmaf(total[half], shrink[half], sum);
    }
    if (!__all_sync(0xffffffff, is_same)) {
#pragma unroll
      for (int c = 0; c < DEPTH / 8; c++)
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
          sums[c][half * 2] *= shrink[half];
          sums[c][half * 2 + 1] *= shrink[half];
        }
    }
    uint32_t p[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
      p[e] = e % 2 < HALVES ? pack<Low>(S[e / 2][e % 2 * 2], S[e / 2][e % 2 * 2 + 1]) : 0u;
    barrier_wait(ring.v_full + stage * 8, phase);
#pragma unroll
    for (int c = 0; c < DEPTH / 16; c++) {
      uint32_t values[4];
      load_transposed(values, ring.v + stage * KV_BYTES + c / 4 * BLOCK * 128 + (v_row ^ (c % 4 * 32)));
      Product<Low>::add(sums[c * 2], p, values[0], values[1]);
      Product<Low>::add(sums[c * 2 + 1], p, values[2], values[3]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.v_empty + stage * 8);
    if (++stage == STAGES) { stage = 0; phase ^= 1; }
  }

  block_sync(1, WARPS * 32);  // every warp is done with keys and values: parts take their place
#pragma unroll
  for (int half = 0; half < HALVES; half++) {
    total[half] += __shfl_xor_sync(0xffffffff, total[half], 1);
    total[half] += __shfl_xor_sync(0xffffffff, total[half], 2);
    const int m = (lane >> 2) + half * 8;
    if (m < QUERIES) {
      const uint32_t to = ring.k + warp * PART_BYTES + m * PITCH * 4;
#pragma unroll
      for (int c = 0; c < HEAD / 8; c++)
        write_pair(to + (c * 8 + (lane & 3) * 2) * 4, sums[c][half * 2], sums[c][half * 2 + 1]);
      if ((lane & 3) == 0) write_pair(to + HEAD * 4, top[half], total[half]);
    }
  }
  block_sync(1, WARPS * 32);
  for (int at = tid; at < QUERIES * HEAD / 2; at += WARPS * 32) {
    const int m = at / (HEAD / 2), column = at % (HEAD / 2) * 2;
    const uint32_t row = ring.k + m * PITCH * 4;
    float tops[WARPS], totals[WARPS], weights[WARPS];
    float most = -INFINITY, x = 0.f, y = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      const float2 both = read_own(row + i * PART_BYTES + HEAD * 4);
      tops[i] = both.x;
      totals[i] = both.y;
      most = fmaxf(most, both.x);
    }
    const float all = merge(tops, totals, weights);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      const float2 both = read_own(row + i * PART_BYTES + column * 4);
      x = fmaf(weights[i], both.x, x);
      y = fmaf(weights[i], both.y, y);
    }
    write_pair(row + WARPS * PART_BYTES + column * 4, x, y);
    if (column == 0) write_pair(row + WARPS * PART_BYTES + HEAD * 4, most, all);
  }
}
