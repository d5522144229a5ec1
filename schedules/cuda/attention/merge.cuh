// Parts of one softmax as a whole: each has the largest of its logits, and the sum of the powers relative to that. The
// weights are what the sums of each part are multiplied with; returns the sum over all parts.
// Stands in a namespace that has defined LOG2_SCALE, by which a difference of logits becomes an exponent of two.
template <int PARTS> DEV float merge(const float (&tops)[PARTS], const float (&totals)[PARTS], float (&weights)[PARTS]) {
  float top = -INFINITY, all = 0.f;
#pragma unroll
  for (int i = 0; i < PARTS; i++) top = fmaxf(top, tops[i]);
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    weights[i] = tops[i] == -INFINITY ? 0.f : exp2_fast((tops[i] - top) * LOG2_SCALE);  // it saw no key
    all = fmaf(weights[i], totals[i], all);
  }
  return all;
}
