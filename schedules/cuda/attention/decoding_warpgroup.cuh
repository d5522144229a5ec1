// `consume` by one warpgroup, for tiles of 64 queries: it multiplies as `kernel.cuh` does, a block of keys after the other.
// Stands behind `decoding.cuh`; has also `multiply_keys` and `multiply_values`.
constexpr int DEPTH_STEPS = (HEAD + 15) / 16;

DEV void consume(const Ring& ring, int b, int h, int first, int last, const Operands& operands) {
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  float S[BLOCK / 2], sums[HEAD / 2];
  uint32_t P[BLOCK / 4];
  float top[2], total[2], shrink[2];
  int k_stage = 0, k_phase = 0, v_stage = 0, v_phase = 0;
  const int row = warp * 16 + (lane >> 2);
  auto scores = [&]() {
    mma_fence();
#pragma unroll
    for (int k = 0; k < DEPTH_STEPS; k++)
      multiply_keys(S, operand(ring.q + (k / 4) * ROWS * 128, 16, 1024) + (k % 4) * 2,
                    operand(ring.k + k_stage * KV_BYTES + (k / 4) * BLOCK * 128, 16, 1024) + (k % 4) * 2, k != 0);
    mma_commit();
  };
  auto values = [&](bool first_block) {
    mma_fence();
    const uint64_t v = operand(ring.v + v_stage * KV_BYTES, BLOCK * 128, 1024);
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
  barrier_wait(ring.q_full, 0);
  barrier_wait(ring.k_full + k_stage * 8, k_phase);
  scores();
  mma_wait<0>();
  hold(S);
  release(ring.k_empty, k_stage, k_phase);
  change(last - 1);
  softmax(true);
  to_low();
  bool first_block = true;
#pragma unroll 1
  for (int j = last - 2; j >= first; j--) {  // this block's scores beside the values of the one before
    barrier_wait(ring.k_full + k_stage * 8, k_phase);
    scores();
    barrier_wait(ring.v_full + v_stage * 8, v_phase);
    values(first_block);
    first_block = false;
    mma_wait<1>();
    hold(S);
    release(ring.k_empty, k_stage, k_phase);
    change(j);
    softmax(false);
    mma_wait<0>();
    hold(sums);
    release(ring.v_empty, v_stage, v_phase);
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) sums[i] *= shrink[(i >> 1) & 1];
    to_low();
  }
  barrier_wait(ring.v_full + v_stage * 8, v_phase);
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
      const uint32_t to = ring.k + m * PITCH * 4;
#pragma unroll
      for (int i = 0; i < HEAD / 8; i++)
        write_pair(to + (i * 8 + (lane & 3) * 2) * 4, sums[i * 4 + half * 2], sums[i * 4 + half * 2 + 1]);
      if ((lane & 3) == 0) write_pair(to + HEAD * 4, top[half], all);
    }
  }
}
