// Elementwise: every thread has VECTORS vectors of LANES neighbours of the result, a block's width apart. All are read
// before the first is used, so that a thread has many bytes in flight. Stands in a namespace that has defined: THREADS,
// VECTORS, LANES, the types Out, Count, Place, Operands and Loaded, and `total_of` (vectors of the result), `place_of`,
// `read` and `result`.
DEV void elementwise(Out* out, const Operands operands) {
  const Count first = (Count)blockIdx.x * (THREADS * VECTORS) + threadIdx.x, total = total_of(operands);
  if (total == 0) return earlier_kernels_done();
  Place at[VECTORS];
  Loaded in[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const Count vector = first + i * THREADS;
    at[i] = place_of(vector < total ? vector : total - 1, operands);  // behind the end, the last again
  }
  earlier_kernels_done();
#pragma unroll
  for (int i = 0; i < VECTORS; i++) read(in[i], at[i], operands);
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const Count vector = first + i * THREADS;
    if (total % (THREADS * VECTORS) == 0 || vector < total) result(out + (long long)vector * LANES, in[i], at[i]);
  }
}
