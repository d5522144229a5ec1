// A product of few rows with weights of 4 or 8 bits: C[m, n] = epilogue(sum over k of A[m, k] * (code - zero) * scale), a
// scale, and a zero point, for each block of the depth. The weights are what takes the time: each is read once, 16 bytes a
// lane, in the order in which they lie, and goes from its code to a fragment of mma.sync in registers, as Marlin does
// (Frantar et al., 2024). Weights are the rows of the instruction, and A its columns. A warp has TILES times 16 columns of C
// and a part of the depth; the sums of a CTA's warps, and of SPLITS CTAs of a cluster, are added up in shared memory.
// Its namespace has defined: ROWS, COLUMNS, DEPTH, BITS, BLOCK (of the depth), TILES, WARPS, SPLITS, AHEAD (steps that are
// loaded together), HAS_ZEROS, IS_HALF (In is float16), the types In, Out and Scale, Operands and `epilogue`. The order is that of
// `blocks_compute.py`.

constexpr int STEP = BITS == 4 ? 64 : 32, GROUPS = STEP / 32, STEPS = (DEPTH + STEP - 1) / STEP;
constexpr int BLOCKS = (STEPS * STEP + BLOCK - 1) / BLOCK, ROW_BLOCKS = (ROWS + 7) / 8;
constexpr bool IS_WHOLE = BLOCK >= STEPS * STEP;  // one scale a column: it is for the sum
constexpr int SCALED = BLOCK < STEP ? GROUPS : 1;  // parts of a step with scales of their own
constexpr int PITCH = TILES * 16 + 4;  // of a row of sums in shared memory

struct Step {
  uint4 codes[TILES];
  float2 scales[TILES][SCALED];
  int2 zeros[TILES][SCALED];
};
struct Rows { uint4 of[GROUPS][ROW_BLOCKS]; };

DEV uint32_t word_of(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// Two numbers of 16 bits, each the same.
DEV uint32_t twice(float x) { return pack<In>(x, x); }

// Four codes of each of two rows of weights, less the rows' zero points, as a fragment of the instruction. Codes are exact in
// 16 bits, and become the last bits of 1024 or 128, or of 2^23 where 128 has too few.
struct Fragment {
  uint32_t words[4];
  DEV void of_nibbles(uint32_t codes, int2 zeros) {
    constexpr uint32_t base = IS_HALF ? 0x64006400u : 0x43004300u;
    constexpr float value = IS_HALF ? 1024.f : 128.f;
    const uint32_t ones = twice(1.f), low = twice(-value - zeros.x);
#pragma unroll
    for (int i = 0; i < 2; i++, codes >>= 8) {
      words[i * 2] = fused<In>(masked(codes, 0x000f000fu, base), ones, low);
      if constexpr (IS_HALF) {  // 16 times the code
        words[i * 2 + 1] = fused<In>(masked(codes, 0x00f000f0u, base), twice(0.0625f), twice(-64.f - zeros.y));
      } else {
        words[i * 2 + 1] = fused<In>(masked(codes >> 4, 0x000f000fu, base), ones, twice(-value - zeros.y));
      }
    }
  }
  DEV void of_bytes(uint32_t upper, uint32_t lower, int2 zeros) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      words[i * 2] = pair_of(upper, i, zeros.x);
      words[i * 2 + 1] = pair_of(lower, i, zeros.y);
    }
  }
  static DEV uint32_t pair_of(uint32_t codes, int i, int zero) {
    if constexpr (IS_HALF) {
      const uint32_t both = __byte_perm(codes, 0x64646464u, i ? 0x4342 : 0x4140);
      return fused<In>(both, twice(1.f), twice(-1024.f - zero));
    } else {
      const float x = __int_as_float(__byte_perm(codes, 0x4b000000u, i ? 0x7652 : 0x7650));
      const float y = __int_as_float(__byte_perm(codes, 0x4b000000u, i ? 0x7653 : 0x7651));
      return pack<In>(x - (8388608.f + zero), y - (8388608.f + zero));
    }
  }
};

DEV void blocks(uint8_t* raw, const In* A, const uint8_t* codes, const Scale* scales, const uint8_t* zeros, Out* C,
                const Operands operands) {
  float* partial = (float*)raw;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, row = lane >> 2, quad = lane & 3;
  const int rank = SPLITS > 1 ? cluster_rank() : 0, first_tile = blockIdx.x / SPLITS * TILES;
  const int part = rank * WARPS + warp, first = part * STEPS / (SPLITS * WARPS), last = (part + 1) * STEPS / (SPLITS * WARPS);

  Step steps[AHEAD];
  auto load_weights = [&](int s, Step& to) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const int at = min(first_tile + tile, (COLUMNS + 15) / 16 - 1);
      to.codes[tile] = load_once(codes + ((long long)(at * STEPS + s) * 32 + lane) * 16);
#pragma unroll
      for (int part = 0; part < (IS_WHOLE ? 0 : SCALED); part++) {
        const int block = (s * STEP + part * 32) / BLOCK, from = ((at * BLOCKS + block) * 8 + row) * 2;
        to.scales[tile][part] = load_pair<Scale>(scales, from);
        to.zeros[tile][part] = HAS_ZEROS ? make_int2(zeros[from], zeros[from + 1]) : make_int2(1 << (BITS - 1), 1 << (BITS - 1));
      }
    }
  };
  auto load_rows = [&](int s, Rows& to) {
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
#pragma unroll
      for (int i = 0; i < ROW_BLOCKS; i++) {
        const int m = i * 8 + row, k = s * STEP + group * 32 + quad * 8;
        to.of[group][i] = m < ROWS && k < DEPTH ? *(const uint4*)(A + m * DEPTH + k) : make_uint4(0, 0, 0, 0);
      }
  };

  float sums[TILES][ROW_BLOCKS][4] = {};
  int2 whole_zeros[TILES];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const int at = min(first_tile + tile, (COLUMNS + 15) / 16 - 1), from = (at * 8 + row) * 2;
    whole_zeros[tile] = IS_WHOLE && HAS_ZEROS ? make_int2(zeros[from], zeros[from + 1])
                                              : make_int2(1 << (BITS - 1), 1 << (BITS - 1));
  }
  auto multiply = [&](const Step& step, const Rows& rows) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      float part[ROW_BLOCKS][4] = {};
#pragma unroll
      for (int group = 0; group < GROUPS; group++) {
        const int scaled = SCALED > 1 ? group : 0;
        const int2 zero = IS_WHOLE ? whole_zeros[tile] : step.zeros[tile][scaled];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          Fragment weights;
          if constexpr (BITS == 4) weights.of_nibbles(word_of(step.codes[tile], group * 2 + half), zero);
          else weights.of_bytes(word_of(step.codes[tile], half * 2), word_of(step.codes[tile], half * 2 + 1), zero);
#pragma unroll
          for (int i = 0; i < ROW_BLOCKS; i++)
            Product<In>::add(IS_WHOLE ? sums[tile][i] : part[i], weights.words, word_of(rows.of[group][i], half * 2),
                             word_of(rows.of[group][i], half * 2 + 1));
        }
        if (!IS_WHOLE && group % (GROUPS / SCALED) == GROUPS / SCALED - 1) {
#pragma unroll
          for (int i = 0; i < ROW_BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              sums[tile][i][e] += part[i][e] * (e < 2 ? step.scales[tile][scaled].x : step.scales[tile][scaled].y);
              part[i][e] = 0.f;
            }
        }
      }
    }
  };

#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (first + i < last) load_weights(first + i, steps[i]);
  earlier_kernels_done();
  Rows rows[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (first + i < last) load_rows(first + i, rows[i]);
#pragma unroll 1
  for (int s = first; s < last; s += AHEAD) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (s + i < last) multiply(steps[i], rows[i]);
      if (s + i + AHEAD < last) {
        load_weights(s + i + AHEAD, steps[i]);
        load_rows(s + i + AHEAD, rows[i]);
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; i++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        partial[(warp * ROW_BLOCKS * 8 + i * 8 + quad * 2 + (e & 1)) * PITCH + tile * 16 + row + e / 2 * 8] =
            sums[tile][i][e];
  if (SPLITS > 1) { cluster_arrive_release(); cluster_wait(); } else __syncthreads();
  for (int item = rank * WARPS * 32 + tid; item < ROWS * TILES * 8; item += SPLITS * WARPS * 32) {
    const int m = item / (TILES * 8), column = item % (TILES * 8) * 2, n = first_tile * 16 + column;
    if (n >= COLUMNS) continue;
    float2 sum = make_float2(0.f, 0.f);
    for (int cta = 0; cta < SPLITS; cta++) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        const float* from = partial + (w * ROW_BLOCKS * 8 + m) * PITCH + column;
        const float2 more =
            SPLITS > 1 ? make_float2(read_at(from, cta), read_at(from + 1, cta)) : *(const float2*)from;
        sum.x += more.x;
        sum.y += more.y;
      }
    }
    if (IS_WHOLE) {
      const int from = n / 16 * 16 + n % 8 * 2 + n % 16 / 8;
      sum.x *= load<Scale>(scales, from);
      sum.y *= load<Scale>(scales, from + 2);
    }
    const float2 done = epilogue(sum, 0, m, n, operands);
    store_pair(C + m * COLUMNS + n, done.x, done.y);
  }
  if (SPLITS > 1) { cluster_arrive(); cluster_wait(); }  // nobody may still read from a CTA that left
}
