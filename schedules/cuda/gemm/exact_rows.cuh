// One sum of a product of matrices as fp32 has it: for the few results that `mma_wide.cuh` does not give exactly.
__device__ __noinline__ float exact_sum(const In* A, const In* B, int b, int m, int n) {
  const In* a_from = A + ((long long)b * SIZE_M + m) * SIZE_K;
  const In* b_from = B + (long long)b * SIZE_K * SIZE_N + (N_MAJOR ? n : (long long)n * SIZE_K);
  float sum = 0.f;
#pragma unroll 1
  for (int k = 0; k < SIZE_K; k++) sum = fmaf(a_from[k], b_from[(long long)k * (N_MAJOR ? SIZE_N : 1)], sum);
  return sum;
}
