"""Row-wise functions on CPUs: softmax, norms, sums."""
