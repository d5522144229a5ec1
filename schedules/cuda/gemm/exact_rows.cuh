// One sum of a product of matrices, rounded once: for the few results that `mma_wide.cuh` does not give exactly.
__device__ __noinline__ float exact_sum(const In* A, const In* B, int b, int m, int n, const Operands operands) {
  const In* a_from = A + ((long long)b * rows_of(operands) + m) * SIZE_K;
  const In* b_from = B + (long long)b * SIZE_K * SIZE_N + (N_MAJOR ? n : (long long)n * SIZE_K);
  double sum = 0.;
#pragma unroll 1
  for (int k = 0; k < SIZE_K; k++) sum = fma((double)a_from[k], (double)b_from[(long long)k * (N_MAJOR ? SIZE_N : 1)], sum);
  return (float)sum;
}
