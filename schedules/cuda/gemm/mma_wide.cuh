// The GEMM of `mma.cuh` with operands of fp32, which stay so in shared memory: C[b, m, n] = epilogue(sum over k of
// A[b, m, k] * B[b, k, n]). A warp takes them apart in registers: x is the sum of three bf16, exactly, and of their nine
// products the six largest are added, which leaves out less than fp32 rounds off (Henry, Tang and Heinecke, 'Leveraging the
// bfloat16 AI datatype for higher-precision computations', 2019). Tensor cores cut off what they add; so they sum 16 of the
// depth, and what these give is added and rounded as fp32 is (Ootomo and Yokota, 2022).
// Numbers that three bf16 do not hold (infinities, NaN, and some below 2^-110) are seen where they are taken apart: results
// that may show it are computed anew, by `exact_sum`.
// IN_TF32: products of operands rounded to tf32 instead, without all that.
static_assert(sizeof(In) == 4 && (K_CHUNKS == 4 || K_CHUNKS == 8), "steps of 16 or 32");

struct Split {
  uint32_t high, middle, low;
};

struct Watch {
  uint32_t lost = 0, most = 0;  // bits that no part has, in the lower half; the largest numbers, without sign, in two bf16

  DEV Split split(uint32_t x, uint32_t y) {
    Split to;
    float a = __int_as_float(x), b = __int_as_float(y);
    to.high = pack<__nv_bfloat16>(a, b);
    most = larger(most, to.high);
    a -= __int_as_float(to.high << 16);
    b -= __int_as_float(to.high & 0xffff0000u);
    to.middle = pack<__nv_bfloat16>(a, b);
    a -= __int_as_float(to.middle << 16);
    b -= __int_as_float(to.middle & 0xffff0000u);
    to.low = upper_halves(__float_as_int(a), __float_as_int(b));
    lost |= __float_as_int(a) | __float_as_int(b);
    return to;
  }
  // Whether bits are lost somewhere in the CTA, and whether a number of 2^30 or more, which would show it, is there.
  DEV void tell(bool& loses, bool& is_large) const {
    loses = __syncthreads_or(lost & 0xffff);
    is_large = __syncthreads_or((most & 0xffff) >= 0x4e80 || most >> 16 >= 0x4e80);
  }
};

DEV void gemm(uint8_t* raw, const In* A, const In* B, Out* C, const Operands operands) {
  const uint32_t ring = (shared_address(raw) + 127) & ~127u;
  const int tid = threadIdx.x, lane = tid & 31;
  const int warp = __shfl_sync(0xffffffff, tid >> 5, 0), slice = warp / (WARPS_M * WARPS_N);
  const int warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M % WARPS_N * WARP_N;
  if (rows_of(operands) == 0) return;
  const Tile tile = tile_of<TILES_N, GROUP_M>(blockIdx.x, (rows_of(operands) + TILE_M - 1) / TILE_M);
  const int m0 = tile.m * TILE_M, n0 = tile.n * TILE_N;
  Copies copies(A, B, tile, tid, ring, operands);

  // Of 16 columns of the sum a lane has every fourth: those of four chunks, in this order in A and in B.
  const uint32_t a_at = ring + place<K_CHUNKS>(warp_m + (lane & 15), slice * 4 + (lane >> 4));
  const uint32_t b_at =
      ring + A_BYTES + (N_MAJOR ? warp_n / 32 * PANEL_BYTES + place_b(slice * 16 + (lane & 3), lane >> 4) + (lane >> 2 & 3) * 4
                                : place<K_CHUNKS>(warp_n + (lane & 7), slice * 4 + (lane >> 3)));
  Watch watch;
  float sums[BLOCKS_M][BLOCKS_N][4];
#pragma unroll
  for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0.f;
  auto load_a = [&](uint32_t (&to)[2][4], int i, uint32_t from, int step) {
#pragma unroll
    for (int half = 0; half < 2; half++)
      load_matrices(to[half], (a_at ^ (step * SLICES * 64 + half * 32)) + from + i * 16 * TILE_K * 4);
  };
  auto load_b = [&](uint32_t (&to)[4], int j, uint32_t from, int step) {
    if constexpr (N_MAJOR) {
#pragma unroll
      for (int c = 0; c < 4; c++)
        to[c] = load_word((b_at ^ (j % 4 * 32)) + from + j / 4 * PANEL_BYTES + (step * SLICES * 16 + c * 4) * 128);
    } else {
      // Where two rows share 128 bytes, their places are the same again after 16 rows.
      load_matrices(to, (b_at ^ (step * SLICES * 64 + (K_CHUNKS == 4 ? j % 2 * 64 : 0))) + from + j * 8 * TILE_K * 4);
    }
  };
  auto multiply_in_parts = [&](uint32_t from, int step) {
    Split a[BLOCKS_M][4];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++) {
      uint32_t x[2][4];
      load_a(x, i, from, step);
#pragma unroll
      for (int e = 0; e < 4; e++) a[i][e] = watch.split(x[e / 2][e % 2], x[e / 2][e % 2 + 2]);
    }
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++) {
      uint32_t x[4];
      load_b(x, j, from, step);
      const Split b[2] = {watch.split(x[0], x[1]), watch.split(x[2], x[3])};
      float part[BLOCKS_M][4] = {};
      auto add = [&](auto a_part, auto b_part) {
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++) {
          const uint32_t own[4] = {a[i][0].*a_part, a[i][1].*a_part, a[i][2].*a_part, a[i][3].*a_part};
          Product<__nv_bfloat16>::add(part[i], own, b[0].*b_part, b[1].*b_part);
        }
      };
      add(&Split::low, &Split::high);  // the least first
      add(&Split::high, &Split::low);
      add(&Split::middle, &Split::middle);
      add(&Split::middle, &Split::high);
      add(&Split::high, &Split::middle);
      add(&Split::high, &Split::high);
#pragma unroll
      for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[i][j][e] += part[i][e];
    }
  };
  auto multiply_in_tf32 = [&](uint32_t from, int step) {
    uint32_t a[BLOCKS_M][2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++) {
      load_a(a[i], i, from, step);
#pragma unroll
      for (int e = 0; e < 8; e++) a[i][e / 4][e % 4] = in_tf32(a[i][e / 4][e % 4]);
    }
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j++) {
      uint32_t b[4];
      load_b(b, j, from, step);
#pragma unroll
      for (int e = 0; e < 4; e++) b[e] = in_tf32(b[e]);
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
          Product<float>::add(sums[i][j], a[i][half], b[half * 2], b[half * 2 + 1]);
    }
  };

#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      if (i < K_TILES) copies.part(part, i * STAGE_BYTES);
    copies.next();
    copies_commit();  // also of nothing, so that as many groups are waited for at every step
  }
  uint32_t from = 0, to = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
  for (int kt = 0; kt < K_TILES; kt++) {
    copies_wait<STAGES - 2>();
    __syncthreads();  // the step is there, and every warp is done with the one whose place is filled next
#pragma unroll
    for (int part = 0; part < PARTS; part++)
      if (kt + STAGES - 1 < K_TILES) copies.part(part, to);
    copies.next();
    copies_commit();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      if constexpr (IN_TF32) multiply_in_tf32(from, step);
      else multiply_in_parts(from, step);
    }
    from = from == (STAGES - 1) * STAGE_BYTES ? 0 : from + STAGE_BYTES;
    to = to == (STAGES - 1) * STAGE_BYTES ? 0 : to + STAGE_BYTES;
  }

  bool loses = false, is_large = false;
  if constexpr (!IN_TF32) watch.tell(loses, is_large);
  if (!add_slices(sums, raw + (ring - shared_address(raw)), warp, slice, lane)) return;
  if constexpr (!IN_TF32) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
      for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int m = m0 + warp_m + i * 16 + (lane >> 2) + e / 2 * 8, n = n0 + warp_n + j * 8 + (lane & 3) * 2 + e % 2;
          const float size = fabsf(sums[i][j][e]);
          const bool shows = !(size < INFINITY) || (loses && (is_large || size < 8.3e-25f));  // 2^-80
          if (shows && m < rows_of(operands) && n < SIZE_N) sums[i][j][e] = exact_sum(A, B, tile.b, m, n, operands);
        }
  }
  store(C, sums, tile.b, m0 + warp_m, n0 + warp_n, lane, operands);
}
