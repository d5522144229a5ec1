DEV void groups(float* shared, const In* x, Out* out, const Operands operands) {
  In* const slab = (In*)shared;
  float2* const pairs = (float2*)(shared + HELD * WORKERS * 4);  // mean and squares of each thread's pairs of channels
  Part* const table = (Part*)(pairs + (LINES * PAIRS + 1) / 2 * 2);
  float2* const all = (float2*)(table + CLUSTER * PARTS * GROUPS);
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
  Added added;
  auto take = [&](const In* from, int i) { add(added, i, from, row(i), place(i), column, operands, across); };
  each_batch<0>([&](auto which) {
    constexpr int b = decltype(which)::value;
    copies_wait<BATCHES - 1 - b>();
#pragma unroll 4
    for (int i = b * HELD / BATCHES; i < min(held, (b + 1) * HELD / BATCHES); i++) take(mine(i), i);
  });
#pragma unroll 4
  for (int i = HELD; i < count; i++) take(x + place(i), i);
  if (works) keep(pairs + line * PAIRS + piece * (VECTOR / 2), added, count);
  __syncthreads();
  if (CLUSTER > 1) cluster_wait();
  for (int work = warp; work < GROUPS * PARTS; work += WARPS) {
    const int group = work / PARTS, part = work - group * PARTS;
    const Part own = part_of(pairs, group, part, pixels_of);
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
  add_up(all, table, warp);
  __syncthreads();
  Line of_channels;
  find(of_channels, all, works ? piece : 0, column, operands, across);
  auto store = [&](const In* from, int i) { give(out, from, of_channels, row(i), place(i), column, operands, across); };
#pragma unroll 4
  for (int i = 0; i < held; i++) store(mine(i), i);
#pragma unroll 4
  for (int i = HELD; i < count; i++) store(x + place(i), i);
}
