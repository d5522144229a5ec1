// Elementwise: every thread has VECTORS vectors of LANES neighbours of the result, a block's width apart. All are read
// before the first is used, so that a thread has many bytes in flight. Stands in a namespace that has defined: TOTAL
// (vectors of the result), THREADS, VECTORS, LANES, the types Out, Place, Operands and Loaded, and `place_of`, `read`
// and `result`.
DEV void elementwise(Out* out, const Operands operands) {
  const unsigned int first = blockIdx.x * (THREADS * VECTORS) + threadIdx.x;
  Place at[VECTORS];
  Loaded in[VECTORS];
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const unsigned int vector = first + i * THREADS;
    at[i] = place_of(vector < TOTAL ? vector : TOTAL - 1);  // behind the end, the last again
  }
  earlier_kernels_done();
#pragma unroll
  for (int i = 0; i < VECTORS; i++) read(in[i], at[i], operands);
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const unsigned int vector = first + i * THREADS;
    if (TOTAL % (THREADS * VECTORS) == 0 || vector < TOTAL) result(out + (long long)vector * LANES, in[i], at[i]);
  }
}
