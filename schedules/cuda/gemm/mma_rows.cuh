// What a thread copies of the operands in `mma.cuh` and `mma_wide.cuh` where they are matrices: A is [batch, size_m, SIZE_K]; B [batch,
// SIZE_K, SIZE_N] where N_MAJOR, else [batch, SIZE_N, SIZE_K]. A_VECTOR and B_VECTOR are the elements that may be copied at
// once.

// A chunk, of which `count` are there, the rest zeros.
template <int VECTOR> DEV void copy_chunk(uint32_t to, const In* from, int count) {
#pragma unroll
  for (int i = 0; i < CHUNK; i += VECTOR) copy<VECTOR * sizeof(In)>(to + i * (int)sizeof(In), from + i, i < count);
}

// One chunk of every A_STEP-th row. What is needed in the loop is a sum with a constant: a warp that waits for its own
// address issues no products. `left`: rows, or elements of the sum, that are there from here on.
struct Copies {
  const In *a_from, *b_from;
  uint32_t a_to, b_to;
  int row, k_row, n_chunk, m_left, n_left, k_left, k_rows_left;

  DEV Copies(const In* A, const In* B, const Tile& tile, int tid, uint32_t ring, const Operands& operands) {
    const int size_m = rows_of(operands);
    const int m0 = tile.m * TILE_M, n0 = tile.n * TILE_N, chunk = tid % K_CHUNKS;
    row = tid / K_CHUNKS;
    k_row = tid / N_CHUNKS;
    n_chunk = tid % N_CHUNKS;
    a_from = A + ((long long)tile.b * size_m + m0 + row) * SIZE_K + chunk * CHUNK;
    b_from = N_MAJOR ? B + ((long long)tile.b * SIZE_K + k_row) * SIZE_N + n0 + n_chunk * CHUNK
                     : B + ((long long)tile.b * SIZE_N + n0 + row) * SIZE_K + chunk * CHUNK;
    m_left = size_m - m0 - row;
    n_left = SIZE_N - n0 - (N_MAJOR ? n_chunk * CHUNK : row);
    k_left = SIZE_K - chunk * CHUNK;
    k_rows_left = SIZE_K - k_row;
    a_to = ring + place<K_CHUNKS>(row, chunk);
    b_to = ring + A_BYTES + (N_MAJOR ? n_chunk / PANEL * PANEL_BYTES : place<K_CHUNKS>(row, chunk));
  }

  // A part of a step, into the place of the ring that begins at `to`.
  DEV void part(int part, uint32_t to) const {
#pragma unroll
    for (int i = part * A_COPIES / PARTS; i < (part + 1) * A_COPIES / PARTS; i++) {
      if ((TILE_M * K_CHUNKS) % THREADS != 0 && row + i * A_STEP >= TILE_M) break;
      const bool is_inside = M_IS_WHOLE || i * A_STEP < m_left;
      copy_chunk<A_VECTOR>(a_to + to + i * A_STEP * TILE_K * (int)sizeof(In), a_from + i * A_STEP * SIZE_K,
                           !is_inside ? 0 : SIZE_K % TILE_K == 0 ? CHUNK : k_left);
    }
#pragma unroll
    for (int i = part * B_COPIES / PARTS; i < (part + 1) * B_COPIES / PARTS; i++) {
      if constexpr (N_MAJOR) {
        if ((TILE_N * K_CHUNKS) % THREADS != 0 && k_row + i * B_STEP >= TILE_K) break;
        const bool is_inside = SIZE_K % TILE_K == 0 || i * B_STEP < k_rows_left;
        const uint32_t at = B_STEP % 16 == 0 ? place_b(k_row, n_chunk % PANEL) + i * B_STEP * PANEL * 16
                                             : place_b(k_row + i * B_STEP, n_chunk % PANEL);
        copy_chunk<B_VECTOR>(b_to + to + at, b_from + i * B_STEP * SIZE_N,
                             !is_inside ? 0 : SIZE_N % TILE_N == 0 ? CHUNK : n_left);
      } else {
        if ((TILE_N * K_CHUNKS) % THREADS != 0 && row + i * A_STEP >= TILE_N) break;
        const bool is_inside = SIZE_N % TILE_N == 0 || i * A_STEP < n_left;
        copy_chunk<B_VECTOR>(b_to + to + i * A_STEP * TILE_K * (int)sizeof(In), b_from + i * A_STEP * SIZE_K,
                             !is_inside ? 0 : SIZE_K % TILE_K == 0 ? CHUNK : k_left);
      }
    }
  }

  // The next step of the sum.
  DEV void next() {
    a_from += TILE_K;
    b_from += N_MAJOR ? TILE_K * SIZE_N : TILE_K;
    k_left -= TILE_K;
    k_rows_left -= TILE_K;
  }
};
