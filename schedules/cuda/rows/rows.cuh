// Rows in one pass: out[r, c] = result(x[r, c], sums of the row, c), each sum over the row of a term of x and of the sums
// before it. The row is read once, 16 bytes at a time, beside each other in a warp, and stays in registers.
// THREADS_PER_ROW threads share ROWS_EACH rows, which they hold at once; a block has GROUPS times as many.
// Not WHOLE, the result is one value of each row, out[r] = result(sums of the row).
// Stands in a namespace that has defined: those, ROWS (AT_CALL: operands.rows instead), COLUMNS, VECTOR, EARLY, WHOLE, the types In and Out, Operands, SUMS and, for each
// of them, `term`, `start` and whether it is a maximum, and `result`; Across and Here, pieces of operands that all rows
// read alike and that are read where the result is, with `fetch` for each, and `warm`.
constexpr int VECTORS = COLUMNS / VECTOR;
constexpr int HELD = (VECTORS + THREADS_PER_ROW - 1) / THREADS_PER_ROW;  // vectors of a thread in each row
constexpr int WARPS = THREADS_PER_ROW / 32;                              // of a row
constexpr int WARPS_OF_BLOCK = GROUPS * THREADS_PER_ROW / 32;
static_assert(THREADS_PER_ROW < 32 ? 32 % THREADS_PER_ROW == 0 : THREADS_PER_ROW % 32 == 0, "of warps, or whole ones");
static_assert(GROUPS * THREADS_PER_ROW % 32 == 0 && COLUMNS % VECTOR == 0, "whole warps, whole vectors");

template <bool MAXIMUM> DEV float combined(float x, float y) { return MAXIMUM ? relaxc_max(x, y) : x + y; }

// The sums over the threads of a row, in every one of them; all threads of the block come here. `shared` is read by
// slower warps after the barrier: no two calls may have the same.
template <bool MAXIMUM> DEV void over_row(float (&values)[ROWS_EACH], float* shared, int in_block) {
#pragma unroll
  for (int by = (THREADS_PER_ROW < 32 ? THREADS_PER_ROW : 32) / 2; by; by >>= 1)
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++)
      values[e] = combined<MAXIMUM>(values[e], __shfl_xor_sync(0xffffffff, values[e], by));
  if (WARPS <= 1) return;
  if ((threadIdx.x & 31) == 0)
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) shared[e * WARPS_OF_BLOCK + (threadIdx.x >> 5)] = values[e];
  __syncthreads();
#pragma unroll
  for (int e = 0; e < ROWS_EACH; e++) {
    values[e] = shared[e * WARPS_OF_BLOCK + in_block * WARPS];
#pragma unroll
    for (int i = 1; i < WARPS; i++) values[e] = combined<MAXIMUM>(values[e], shared[e * WARPS_OF_BLOCK + in_block * WARPS + i]);
  }
}

template <class O> DEV int rows_of(const O& operands) {
  if constexpr (AT_CALL) return (int)operands.rows;
  else return ROWS;
}

DEV void rows(float* shared, const In* x, Out* out, const Operands operands) {
  if (blockIdx.x == 0) warm(operands);
  earlier_kernels_done();
  const int all_rows = rows_of(operands);
  if (all_rows == 0) return;
  const int in_block = threadIdx.x / THREADS_PER_ROW, lane = threadIdx.x - in_block * THREADS_PER_ROW;
  const int first = (blockIdx.x * GROUPS + in_block) * ROWS_EACH;
  float values[ROWS_EACH][HELD * VECTOR];
  Here here[EARLY ? ROWS_EACH : 1][EARLY ? HELD : 1];
  Across across[EARLY ? HELD : 1];
  auto row = [&](int e) { return min(first + e, all_rows - 1); };
  auto column = [&](int v) { return (v * THREADS_PER_ROW + lane) * VECTOR; };
  auto place = [&](int e, int v) { return (long long)row(e) * COLUMNS + column(v); };
#pragma unroll
  for (int e = 0; e < ROWS_EACH; e++)
#pragma unroll
    for (int v = 0; v < HELD; v++)
      if (column(v) < COLUMNS) {
        load_vector<VECTOR>(values[e] + v * VECTOR, x + place(e, v));
        if (EARLY) fetch(here[e][v], place(e, v), operands);
      }
  if (EARLY) {
#pragma unroll
    for (int v = 0; v < HELD; v++)
      if (column(v) < COLUMNS) fetch(across[v], column(v), operands);
  }
  // What was not fetched early, into the one place that there is; the place of what was.
  auto here_of = [&](int e, int v) -> const Here& {
    if (!EARLY) fetch(here[0][0], place(e, v), operands);
    return here[EARLY ? e : 0][EARLY ? v : 0];
  };
  auto across_of = [&](int v) -> const Across& {
    if (!EARLY) fetch(across[0], column(v), operands);
    return across[EARLY ? v : 0];
  };
  float sums[ROWS_EACH][SUMS];
  auto reduce = [&](auto which) {
    constexpr int s = decltype(which)::value;
    float all[ROWS_EACH];
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) {
      float even = start<s>(), odd = start<s>();
#pragma unroll
      for (int v = 0; v < HELD; v++) {
        if (column(v) >= COLUMNS) break;
        const Here& at = here_of(e, v);
        const Across& along = across_of(v);
#pragma unroll
        for (int i = 0; i < VECTOR; i += 2) {
          const float2 pair = make_float2(values[e][v * VECTOR + i], values[e][v * VECTOR + i + 1]);
          const float2 two = term<s>(pair, sums[e], row(e), column(v) + i, operands, along, at, i);
          even = combined<MAXIMA[s]>(even, two.x);
          odd = combined<MAXIMA[s]>(odd, two.y);
        }
      }
      all[e] = combined<MAXIMA[s]>(even, odd);
    }
    over_row<MAXIMA[s]>(all, shared + s * ROWS_EACH * WARPS_OF_BLOCK, in_block);
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++) sums[e][s] = all[e];
  };
  each_sum(reduce);
  if (!WHOLE) {
    const Here at = {};
    const Across along = {};
    const float2 none = make_float2(0.f, 0.f);
#pragma unroll
    for (int e = 0; e < ROWS_EACH; e++)
      if (lane == 0 && first + e < all_rows)
        out[first + e] = narrow<Out>(result(none, sums[e], row(e), 0, operands, along, at, 0).x);
    return;
  }
#pragma unroll
  for (int e = 0; e < ROWS_EACH; e++)
#pragma unroll
    for (int v = 0; v < HELD; v++) {
      if (column(v) >= COLUMNS) break;
      const Here& at = here_of(e, v);
      const Across& along = across_of(v);
      float done[VECTOR];
#pragma unroll
      for (int i = 0; i < VECTOR; i += 2) {
        const float2 pair = make_float2(values[e][v * VECTOR + i], values[e][v * VECTOR + i + 1]);
        const float2 two = result(pair, sums[e], row(e), column(v) + i, operands, along, at, i);
        done[i] = two.x;
        done[i + 1] = two.y;
      }
      if (first + e < all_rows) store_vector<VECTOR>(out + place(e, v), done);
    }
}
