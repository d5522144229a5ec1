DEV void groups(float* shared, const In* x, Out* out, const Operands operands) {
  In* const slab = (In*)shared;
  float2* const pairs = (float2*)(shared + HELD * WORKERS * 4);  // mean and squares of each thread's pairs of channels
  Part* const table = (Part*)(pairs + (LINES * PAIRS + 1) / 2 * 2);
  float2* const all = (float2*)(table + CLUSTER * PARTS * GROUPS);
  next_kernel_may_start();
  if (CLUSTER > 1) cluster_arrive();  // nobody may send to a CTA that has not begun
  if (blockIdx.x == 0) warm(operands);
  earlier_kernels_done();
  const int cluster = blockIdx.x / CLUSTER, rank = blockIdx.x - cluster * CLUSTER, image = cluster / CHUNKS;
  const int line = threadIdx.x / PIECES, piece = threadIdx.x - line * PIECES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const bool works = line < LINES;
  const int behind = min(rank * SLAB + SLAB, PIXELS);  // of the CTA's pixels, the one behind
  auto pixels_of = [&](int l) { return (max(behind - rank * SLAB - l, 0) + LINES - 1) / LINES; };
  const int count = works ? pixels_of(line) : 0, held = min(count, HELD);
  const int column = (cluster - image * CHUNKS) * CHUNK + piece * VECTOR;
  auto row = [&](int i) { return image * PIXELS + rank * SLAB + line + i * LINES; };
  const int first = row(0) * CHANNELS + column;
  auto place = [&](int i) { return first + i * (LINES * CHANNELS); };
  auto mine = [&](int i) { return slab + (i * WORKERS + threadIdx.x) * VECTOR; };
  each_batch<0>([&](auto which) {
    constexpr int b = decltype(which)::value;
#pragma unroll 4
    for (int i = b * HELD / BATCHES; i < min(held, (b + 1) * HELD / BATCHES); i++)
      copy_vector(shared_address(mine(i)), x + place(i), true);
    copies_commit();
  });
  Across across;
  if (works) fetch(across, column, operands);
  float origin[VECTOR / 2], sums[VECTOR / 2], squares[VECTOR / 2];
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++) origin[p] = sums[p] = squares[p] = 0.f;
  auto take = [&](const In* from, int i) {
    float of[VECTOR];
    load_vector<VECTOR>(of, from);
    Here here;
    fetch(here, place(i), operands);
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) {
      const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
      const float2 two = term<0>(pair, sums, row(i), column + p * 2, operands, across, here, p * 2);
      if (i == 0) origin[p] = two.x;
      const float one = two.x - origin[p], other = two.y - origin[p];
      sums[p] += one + other;
      squares[p] = fmaf(one, one, fmaf(other, other, squares[p]));
    }
  };
  each_batch<0>([&](auto which) {
    constexpr int b = decltype(which)::value;
    copies_wait<BATCHES - 1 - b>();
#pragma unroll 4
    for (int i = b * HELD / BATCHES; i < min(held, (b + 1) * HELD / BATCHES); i++) take(mine(i), i);
  });
#pragma unroll 4
  for (int i = HELD; i < count; i++) take(x + place(i), i);
  if (works) {
    const float by = count > 0 ? 0.5f / count : 0.f;
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++)
      pairs[line * PAIRS + piece * (VECTOR / 2) + p] =
          make_float2(fmaf(sums[p], by, origin[p]), fmaxf(fmaf(-sums[p] * by, sums[p], squares[p]), 0.f));
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_wait();
  for (int work = warp; work < GROUPS * PARTS; work += WARPS) {
    const int group = work / PARTS, part = work - group * PARTS;
    const Part own = together<(OF_GROUP + PARTS - 1) / PARTS, 32>([&](int i) -> Part {
      const int at = i * PARTS + part, of_line = at / (WIDTH / 2), pair = at - of_line * (WIDTH / 2);
      if (at >= OF_GROUP) return {0.f, 0.f, 0.f, 0.f};
      const float2 both = pairs[of_line * PAIRS + group * (WIDTH / 2) + pair];
      return {2.f * pixels_of(of_line), both.x, both.y, 0.f};
    });
    Part* const to = table + (group * CLUSTER + rank) * PARTS + part;
    const float4 of_part = make_float4(own.count, own.mean, own.squares, 0.f);
    if constexpr (CLUSTER > 1) {
      if (lane < CLUSTER) write_at((float*)to, lane, of_part);
    } else if (lane == 0) {
      *(float4*)to = of_part;
    }
  }
  if (CLUSTER > 1) {
    cluster_arrive_release();
    cluster_wait();
  } else {
    __syncthreads();
  }
  for (int group = warp; group < GROUPS; group += WARPS) {
    constexpr int COUNT = CLUSTER * PARTS;
    const Part whole = together<COUNT, COUNT < 32 ? COUNT : 32>([&](int i) { return table[group * COUNT + i]; });
    if (lane == 0) all[group] = make_float2(whole.mean * whole.count, whole.squares);
  }
  __syncthreads();
  float line_of[3 * VECTOR];  // factor, summand and mean of each channel
#pragma unroll
  for (int p = 0; p < VECTOR / 2; p++) {
    const float2 both = all[works ? (piece * VECTOR + p * 2) / WIDTH : 0];
    const float found[2] = {both.x, both.y};
    const float2 none = make_float2(0.f, 0.f);
    const Here here = {};
    const float2 m = mean(none, found, 0, column + p * 2, operands, across, here, p * 2);
    const float2 f = factor(none, found, 0, column + p * 2, operands, across, here, p * 2);
    const float2 s = summand(none, found, 0, column + p * 2, operands, across, here, p * 2);
    line_of[p * 2] = f.x;
    line_of[p * 2 + 1] = f.y;
    line_of[VECTOR + p * 2] = FOLDED ? fmaf(-m.x, f.x, s.x) : s.x;
    line_of[VECTOR + p * 2 + 1] = FOLDED ? fmaf(-m.y, f.y, s.y) : s.y;
    line_of[2 * VECTOR + p * 2] = m.x;
    line_of[2 * VECTOR + p * 2 + 1] = m.y;
  }
  auto give = [&](const In* from, int i) {
    float of[VECTOR], done[VECTOR];
    load_vector<VECTOR>(of, from);
    Here here;
    fetch(here, place(i), operands);
#pragma unroll
    for (int p = 0; p < VECTOR / 2; p++) {
      const float2 pair = make_float2(of[p * 2], of[p * 2 + 1]);
      const float2 two = result(pair, line_of, row(i), column + p * 2, operands, across, here, p * 2);
      done[p * 2] = two.x;
      done[p * 2 + 1] = two.y;
    }
    store_vector<VECTOR>(out + place(i), done);
  };
#pragma unroll 4
  for (int i = 0; i < held; i++) give(mine(i), i);
#pragma unroll 4
  for (int i = HELD; i < count; i++) give(x + place(i), i);
}
