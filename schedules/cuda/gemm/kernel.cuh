// A persistent warp-specialized GEMM: C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n]); sums of floats are
// fp32, those of bytes int32.
// One producer warp fills a ring of STAGES tiles by TMA; each consumer warpgroup multiplies them with wgmma.
// Its namespace has defined: the configuration (TILE_M, TILE_N, K_ATOMS, STAGES, CONSUMERS, CLUSTER_M, SPLITS, PING_PONG,
// MOVES_REGISTERS, GROUP_M, BY_TMA, BUFFERS, AHEAD, SHARES, PARTIAL_STEPS), the problem (`rows_of`, SIZE_N, SIZE_K, BATCH,
// N_MAJOR, ATOM_K, the types Sum, Out and Place, of positions), Operands, `epilogue`, `bring_operands` and `multiply`, and
// what a row is (`rows.cuh`, `pixels.cuh`): `row_tiles`, COPIED_ROWS, STORES_WHOLE_TILES, `row_at`, `copy_rows`, `store_rows` and `column_of`.

constexpr int TILE_K = K_ATOMS * ATOM_K;  // an atom is 128 bytes of a row
constexpr int CLUSTER = CLUSTER_M * SPLITS;
constexpr int WARPGROUP_ROWS = PING_PONG ? TILE_M / 64 : TILE_M / 64 / CONSUMERS;  // in units of 64
constexpr int A_BYTES = TILE_M * K_ATOMS * 128, B_BYTES = TILE_N * K_ATOMS * 128, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int STEP_BYTES = COPIED_ROWS * K_ATOMS * 128 + B_BYTES;  // that a step of the ring waits for
constexpr bool STORES_TOGETHER = STORES_WHOLE_TILES && !PING_PONG && CONSUMERS > 1;
constexpr int STORERS = STORES_TOGETHER ? CONSUMERS * 128 : 128;  // threads that fill what one copy stores
constexpr int CHUNK_BYTES = WARPGROUP_ROWS * 64 * 128;  // 64 columns of a warpgroup's rows of C
constexpr int COLUMN_BLOCKS = TILE_N / 8;
constexpr int PARTIAL_BYTES = SPLITS > 1 ? TILE_M * TILE_N * 4 : 0;
// The tensor cores add products of 8-bit floats with about 14 bits: after so many steps of the ring their sums are added
// to those in registers. 0: they sum by themselves.
constexpr bool IS_PARTIAL = PARTIAL_STEPS > 0;
constexpr int STEPS_OF_PART = IS_PARTIAL ? PARTIAL_STEPS : 1;
constexpr int TILES_N = (SIZE_N + TILE_N - 1) / TILE_N;
constexpr int K_TILES = (SIZE_K + TILE_K - 1) / TILE_K, K_TILES_EACH = (K_TILES + SPLITS - 1) / SPLITS;

// Beyond the edge nobody stores the result, and there is nothing to read: the last element is read in its place, which
// takes no branch, so that the loads of many columns are in flight together.
DEV Done finish(const Sum* sums, int b, int m, int n, const Operands& operands) {
  return epilogue(Sums{sums[0], sums[1]}, b, min(m, rows_of(operands) - 1), min(n, SIZE_N - 2), operands);
}

DEV void gemm(uint8_t* raw, const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_c, Out* C,
              const Operands operands) {
  const int size_m = rows_of(operands), tiles_m = (row_tiles(size_m) + CLUSTER_M - 1) / CLUSTER_M;
  const int tiles = tiles_m * TILES_N * BATCH;
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t shared_a = base, shared_b = base + STAGES * A_BYTES, shared_c = base + STAGES * STAGE_BYTES;
  const uint32_t partials = shared_c + (BY_TMA ? CONSUMERS * BUFFERS * CHUNK_BYTES : 0);
  const uint32_t full = partials + PARTIAL_BYTES, empty = full + STAGES * 8, reduced = empty + STAGES * 8;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const int warpgroup = __shfl_sync(0xffffffff, tid >> 7, 0);
  const int rank = CLUSTER > 1 ? cluster_rank() : 0, rank_m = rank % CLUSTER_M, rank_k = rank / CLUSTER_M;
  const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
  const int k_first = rank_k * K_TILES_EACH, k_tiles = min(K_TILES_EACH, K_TILES - k_first);
  const bool leader = warp == CONSUMERS * 4 && elect();

  auto load_b = [&](int stage, Tile tile, int kt) {
    const uint32_t bar = full + stage * 8, to = shared_b + stage * B_BYTES;
    const uint16_t ctas = (uint16_t)(((1 << CLUSTER_M) - 1) << (rank_k * CLUSTER_M));
#pragma unroll
    for (int atom = 0; atom < K_ATOMS; atom++) {
      const int n = tile.n * TILE_N;
      const Column at = column_of(kt * K_ATOMS + atom, tile.b);
      const int k = at.k;
      if (!N_MAJOR) {
        constexpr int rows = TILE_N / CLUSTER_M;
        if (CLUSTER_M == 1) load_tile(to + atom * TILE_N * 128, map_b, bar, k, n, at.b);
        else load_tile_for(to + (atom * TILE_N + rank_m * rows) * 128, map_b, bar, k, n + rank_m * rows, at.b, ctas);
      } else {
#pragma unroll
        for (int j = 0; j < TILE_N / 64; j++) {
          const uint32_t part = to + (atom * (TILE_N / 64) + j) * 8192;
          if (CLUSTER_M == 1) load_tile(part, map_b, bar, n + j * 64, k, at.b);
          else if (j % CLUSTER_M == rank_m) load_tile_for(part, map_b, bar, n + j * 64, k, at.b, ctas);
        }
      }
    }
  };
  auto load_a = [&](int stage, Tile tile, int kt) {
#pragma unroll
    for (int atom = 0; atom < K_ATOMS; atom++)
      copy_rows(shared_a + stage * A_BYTES + atom * TILE_M * 128, map_a, full + stage * 8, kt * K_ATOMS + atom,
                tile.m * CLUSTER_M + rank_m, tile.b);
  };

  int stage = 0, phase = 1, loaded = 0;
  if (leader) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, (PING_PONG ? 1 : CONSUMERS) * CLUSTER_M);
    }
    if (SPLITS > 1) barrier_init(reduced, 1);
    barriers_visible();
    fence_async();
    if (SHARES) { prefetch_map(map_a); prefetch_map(map_b); if (BY_TMA) prefetch_map(map_c); }
    if (SPLITS > 1) barrier_expect(reduced, PARTIAL_BYTES / SPLITS * (SPLITS - 1));
    earlier_kernels_done();
    if (CLUSTER_M == 1 && cluster < tiles) {  // the ring is empty: load before the block has met
      const Tile tile = tile_of<TILES_N, GROUP_M>(cluster, tiles_m);
      loaded = max(0, min(STAGES, k_tiles));
      for (int i = 0; i < loaded; i++) {
        barrier_expect(full + i * 8, STEP_BYTES);
        load_b(i, tile, k_first + i);
        load_a(i, tile, k_first + i);
      }
      stage = loaded % STAGES;
      phase = loaded == STAGES ? 0 : 1;
    }
  }
  if (warp == CONSUMERS * 4) __syncwarp();
  if (CLUSTER > 1) cluster_arrive();
  if (CLUSTER_M > 1) cluster_wait(); else __syncthreads();

  if (warpgroup >= CONSUMERS) {  // threads behind the producer are another tile's, and only meet the others
    if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 3 ? 32 : 40));
    if (leader) {
      for (int t = cluster; t < tiles; t += clusters) {
        const Tile tile = tile_of<TILES_N, GROUP_M>(t, tiles_m);
        for (int kt = loaded; kt < k_tiles; kt++) {
          barrier_wait(empty + stage * 8, phase);
          barrier_expect(full + stage * 8, STEP_BYTES);
          load_a(stage, tile, k_first + kt);
          load_b(stage, tile, k_first + kt);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
        loaded = 0;
      }
    }
    __syncwarp();
    if (SPLITS > 1 && CLUSTER_M == 1) cluster_wait();
  } else {
    if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 3 ? 160 : 232));
    Sum acc[WARPGROUP_ROWS][TILE_N / 2], part[WARPGROUP_ROWS][TILE_N / 2];
    stage = 0;
    phase = 0;
    const int thread = tid & 127;
    auto release = [&](int which) {
      if (CLUSTER_M == 1) { if (thread == 0) barrier_arrive(empty + which * 8); }
      else if (thread < CLUSTER_M) barrier_arrive_at(empty + which * 8, rank_k * CLUSTER_M + thread);
    };
    if (PING_PONG && warpgroup == 1) {
      stage = k_tiles % STAGES;
      phase = (k_tiles / STAGES) & 1;
      block_arrive(4, 256);
    }
    auto clear = [&] {
#pragma unroll
      for (int i = 0; i < WARPGROUP_ROWS; i++)
#pragma unroll
        for (int j = 0; j < TILE_N / 2; j++) acc[i][j] = 0;
    };
    if (SPLITS > 1 && k_tiles <= 0) clear();
    const int store_barrier = STORES_TOGETHER ? 1 : 1 + warpgroup;
    const bool stores = STORES_TOGETHER ? tid == 0 : thread == 0;
    int chunk = 0;
    auto bring_tile = [&](int t) {
      if (!AHEAD || SIZE_N < 16 || t >= tiles) return;
      const Tile tile = tile_of<TILES_N, GROUP_M>(t, tiles_m);
      const int first = (PING_PONG ? 0 : warpgroup * WARPGROUP_ROWS * 64) + (warp & 3) * 16 + (lane & 15);
#pragma unroll
      for (int i = 0; i < WARPGROUP_ROWS; i++) {
        const int m = min(row_at(tile.m * CLUSTER_M + rank_m, first + i * 64), size_m - 1);
#pragma unroll
        for (int n = 0; n < TILE_N; n += 32)
          bring_operands(tile.b, m, min(tile.n * TILE_N + n + (lane & 16), SIZE_N - 16), operands);
      }
    };
    bring_tile(cluster + (PING_PONG ? warpgroup * clusters : 0));
    for (int t = cluster + (PING_PONG ? warpgroup * clusters : 0); t < tiles; t += (PING_PONG ? 2 : 1) * clusters) {
      const Tile tile = tile_of<TILES_N, GROUP_M>(t, tiles_m);
      bring_tile(t + (PING_PONG ? 2 : 1) * clusters);
      if (PING_PONG) block_sync(4 + warpgroup, 256);
      const uint32_t rows_at = PING_PONG ? 0 : warpgroup * WARPGROUP_ROWS * 8192;
      auto multiply_step = [&](auto& sums, int adds) {
        barrier_wait(full + stage * 8, phase);
        mma_fence();
#pragma unroll
        for (int atom = 0; atom < K_ATOMS; atom++) {
          const uint64_t b = operand(shared_b + stage * B_BYTES + atom * TILE_N * 128, N_MAJOR ? 8192 : 16, 1024);
#pragma unroll
          for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < WARPGROUP_ROWS; i++) {
              const uint64_t a =
                  operand(shared_a + stage * A_BYTES + atom * TILE_M * 128 + rows_at + i * 8192, 16, 1024);
              multiply(sums[i], a + k * 2, b + k * (N_MAJOR ? 128 : 2), (adds | atom | k) != 0);
            }
        }
        mma_commit();
      };
      auto next_step = [&] { if (++stage == STAGES) { stage = 0; phase ^= 1; } };
      auto release_last = [&] { release(stage == 0 ? STAGES - 1 : stage - 1); };
      if constexpr (IS_PARTIAL) {
        clear();
        auto add_parts = [&] {
          mma_wait<0>();
          release_last();
#pragma unroll
          for (int i = 0; i < WARPGROUP_ROWS; i++) {
            hold(part[i]);
#pragma unroll
            for (int j = 0; j < TILE_N / 2; j++) acc[i][j] += part[i][j];
          }
        };
#pragma unroll 1
        for (int whole = 0; whole < k_tiles / STEPS_OF_PART; whole++) {
#pragma unroll
          for (int step = 0; step < STEPS_OF_PART; step++) {
            multiply_step(part, step);
            if (step) { mma_wait<1>(); release_last(); }
            next_step();
          }
          add_parts();
        }
#pragma unroll 1
        for (int left = 0; left < k_tiles % STEPS_OF_PART; left++) {
          multiply_step(part, 0);
          next_step();
          add_parts();
        }
      } else {
#pragma unroll 1
        for (int kt = 0; kt < k_tiles; kt++) {
          multiply_step(acc, kt);
          if (kt) { mma_wait<1>(); release_last(); }
          next_step();
        }
      }
      if (PING_PONG) block_arrive(4 + (warpgroup ^ 1), 256);
      if (!IS_PARTIAL) {
        mma_wait<0>();
#pragma unroll
        for (int i = 0; i < WARPGROUP_ROWS; i++) hold(acc[i]);
        if (k_tiles > 0) release_last();
      }
      if (PING_PONG) { int ahead = stage + k_tiles; phase ^= (ahead / STAGES) & 1; stage = ahead % STAGES; }
      const int row_tile = tile.m * CLUSTER_M + rank_m;
      const int row0 = PING_PONG ? 0 : warpgroup * WARPGROUP_ROWS * 64;
      const int n0 = tile.n * TILE_N;
      int first_block = 0;
      if (SPLITS > 1) {
        // Column group q of the partial sums goes into CTA q's shared memory; its barrier counts the bytes.
        if (CLUSTER_M == 1) cluster_wait();
        constexpr int group = COLUMN_BLOCKS / SPLITS;
        first_block = rank_k * group;
#pragma unroll
        for (int q = 0; q < SPLITS; q++)
          if (q != rank_k) {
            const uint32_t to = address_at(partials, q * CLUSTER_M + rank_m);
            const uint32_t bar = address_at(reduced, q * CLUSTER_M + rank_m);
            const int slot = rank_k < q ? rank_k : rank_k - 1;
#pragma unroll
            for (int i = 0; i < WARPGROUP_ROWS; i++)
#pragma unroll
              for (int j = 0; j < group; j++) {
                const Sum* v = &acc[i][(q * group + j) * 4];
                const int at = ((slot * WARPGROUP_ROWS + i) * group + j) * (CONSUMERS * 128) + tid;
                send(to + at * 16, bar, v[0], v[1], v[2], v[3]);
              }
          }
        barrier_wait(reduced, 0);
#pragma unroll
        for (int q = 0; q < SPLITS; q++)
          if (q == rank_k) {
#pragma unroll
            for (int i = 0; i < WARPGROUP_ROWS; i++)
#pragma unroll
              for (int j = 0; j < group; j++) {
                const Sum* own = &acc[i][(q * group + j) * 4];
                Sum sum[4] = {own[0], own[1], own[2], own[3]};
#pragma unroll
                for (int p = 0; p < SPLITS - 1; p++) {
                  const int at = ((p * WARPGROUP_ROWS + i) * group + j) * (CONSUMERS * 128) + tid;
                  add_from(partials + at * 16, sum);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j * 4 + e] = sum[e];
              }
          }
      }
      const int row = (warp & 3) * 16, quad = (lane & 3) * 2;
      if constexpr (BY_TMA) {
#pragma unroll
        for (int c = 0; c < TILE_N / 64; c++, chunk = (chunk + 1) % BUFFERS) {
          const uint32_t to = shared_c + (chunk * CONSUMERS + warpgroup) * CHUNK_BYTES;
          uint32_t pairs[WARPGROUP_ROWS][16];  // all before the first store: the compiler moves no load over it
#pragma unroll
          for (int i = 0; i < WARPGROUP_ROWS; i++) {
            const int first = row0 + i * 64 + row + (lane >> 2);
            const int m[2] = {row_at(row_tile, first), row_at(row_tile, first + 8)};
#pragma unroll
            for (int p = 0; p < 16; p++) {
              const int n = n0 + c * 64 + p / 2 * 8 + quad;
              const Done f = finish(&acc[i][c * 32 + p * 2], tile.b, m[p & 1], n, operands);
              pairs[i][p] = pack<Out>(f.x, f.y);
            }
          }
          if (stores) stores_read<BUFFERS - 1>();
          block_sync(store_barrier, STORERS);
#pragma unroll
          for (int i = 0; i < WARPGROUP_ROWS; i++) {
            const int r = i * 64 + row + (lane & 15);
#pragma unroll
            for (int j = 0; j < 8; j += 2)
              store_matrix(to + r * 128 + (((j + (lane >> 4)) ^ (r & 7)) << 4), pairs[i][j * 2], pairs[i][j * 2 + 1],
                           pairs[i][j * 2 + 2], pairs[i][j * 2 + 3]);
          }
          fence_async();
          block_sync(store_barrier, STORERS);
          if (stores) { store_rows(map_c, to, n0 + c * 64, row_tile, row0, tile.b); stores_commit(); }
        }
      } else {
        constexpr int blocks = COLUMN_BLOCKS / SPLITS, batch = blocks % 4 == 0 ? 4 : blocks % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int i = 0; i < WARPGROUP_ROWS; i++) {
          const int first = row0 + i * 64 + row + (lane >> 2);
          const int m[2] = {row_at(row_tile, first), row_at(row_tile, first + 8)};
#pragma unroll
          for (int j = 0; j < blocks; j += batch) {
            const int n = n0 + (first_block + j) * 8 + quad;
            Done done[batch * 2];
#pragma unroll
            for (int p = 0; p < batch * 2; p++)
              done[p] = finish(&acc[i][j * 4 + p * 2], tile.b, m[p & 1], n + p / 2 * 8, operands);
            if constexpr (sizeof(Out) == 1 && batch == 4) {
              // A thread has two bytes in each of four blocks of columns; then all eight of one, so that the four
              // threads of a row store the 32 bytes of a sector.
              const int at_n = n0 + (first_block + j + (lane & 3)) * 8;
#pragma unroll
              for (int half = 0; half < 2; half++) {
                const uint32_t low = Bytes<Out>::of(done[half], done[2 + half]);
                const uint2 block = turned(low, Bytes<Out>::of(done[4 + half], done[6 + half]));
                const bool is_inside = m[half] < size_m && at_n < SIZE_N;
                if (is_inside) *(uint2*)(C + ((Place)tile.b * size_m + m[half]) * SIZE_N + at_n) = block;
              }
            } else {
#pragma unroll
              for (int p = 0; p < batch * 2; p++) {
                const int at_m = m[p & 1], at_n = n + p / 2 * 8;
                if (at_m < size_m && at_n < SIZE_N)
                  store_pair(C + ((Place)tile.b * size_m + at_m) * SIZE_N + at_n, done[p].x, done[p].y);
              }
            }
          }
        }
      }
    }
    if (BY_TMA && thread == 0) stores_read<0>();
  }
  if (CLUSTER_M > 1) { cluster_arrive(); cluster_wait(); }  // nobody may still signal a CTA that left
}
