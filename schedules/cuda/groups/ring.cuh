// The same by CTAs that stay, for more chunks than there are CTAs: BRINGERS threads bring the slabs of one chunk after the
// other, each in BATCHES, into a ring of STAGES, and TEAMS of THREADS take the slabs in turn: one reads its slab and waits for
// the cluster while another one stores. A batch's place is free again when it is stored.
// Has defined besides: STAGES, TEAMS, and CLUSTERS that there are; HELD is TURNS.
constexpr int BRINGERS = 128, TASKS = IMAGES * CHUNKS;
constexpr int TURNS_OF_BATCH = (HELD + BATCHES - 1) / BATCHES;  // at most
constexpr int STAGE = TURNS_OF_BATCH * WORKERS * VECTOR;        // elements
constexpr int TABLE = CLUSTER * PARTS * GROUPS;                 // parts that a CTA gets of its cluster
static_assert(HELD == TURNS && TEAMS < 8, "whole slabs, a barrier for each team");
// A team waits for a batch whose place it has seen full before, or for the first there: so the parity tells which.
constexpr int LATER = TASKS > CLUSTERS ? 1 : 0;  // whether a cluster has a second slab
static_assert(STAGES >= BATCHES + LATER && STAGES >= (TEAMS - 1) * BATCHES + LATER, "the slabs of all other teams, and a batch");

// The barrier has the thread arrive when its copies so far are there.
DEV void copies_arrive(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

DEV int first_turn(int batch) { return batch * HELD / BATCHES; }

// Brings the CTA's slab of each of its cluster's chunks; `full` and `empty` have a barrier for each stage.
DEV void bring_slabs(In* ring, const In* x, uint32_t full, uint32_t empty, int cluster, int rank, int thread) {
  const int pixels = min(SLAB, PIXELS - rank * SLAB);
  int stage = 0, round = 0;
  for (int task = cluster; task < TASKS; task += CLUSTERS) {
    const int image = task / CHUNKS;
    const In* const from = x + (image * PIXELS + rank * SLAB) * CHANNELS + (task - image * CHUNKS) * CHUNK;
    for (int batch = 0; batch < BATCHES; batch++) {
      const int begin = first_turn(batch) * LINES, end = min(first_turn(batch + 1) * LINES, pixels);
      if (round > 0) barrier_wait(empty + stage * 8, (round - 1) & 1);
#pragma unroll 4
      for (int i = 0; i < (STAGE / VECTOR + BRINGERS - 1) / BRINGERS; i++) {
        const int at = i * BRINGERS + thread, pixel = begin + at / PIECES, piece = at % PIECES;
        if (pixel < end)
          copy_vector(shared_address(ring + stage * STAGE + at * VECTOR), from + pixel * CHANNELS + piece * VECTOR, true);
      }
      copies_arrive(full + stage * 8);
      if (++stage == STAGES) { stage = 0; round++; }
    }
  }
  copies_done();
}

DEV void groups(float* shared, const In* x, Out* out, const Operands operands) {
  In* const ring = (In*)shared;
  Part* const tables = (Part*)(ring + STAGES * STAGE);  // two of each team: the cluster may send for its next slab
  float2* const all_pairs = (float2*)(tables + TEAMS * 2 * TABLE);
  float2* const all_sums = all_pairs + TEAMS * LINES * PAIRS;
  const uint32_t full = shared_address(all_sums + TEAMS * GROUPS), empty = full + STAGES * 8, arrived = empty + STAGES * 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i * 8, BRINGERS);
      barrier_init(empty + i * 8, WARPS);
    }
    for (int i = 0; i < TEAMS * 2; i++) barrier_init(arrived + i * 8, 1);
    barriers_visible();
  }
  __syncwarp();
  if (CLUSTER > 1) cluster_arrive();  // nobody may send to a CTA that has not begun
  if (blockIdx.x == 0) warm(operands);
  earlier_kernels_done();
  __syncthreads();
  if (CLUSTER > 1) cluster_wait();
  const int cluster = blockIdx.x / CLUSTER, rank = blockIdx.x - cluster * CLUSTER;
  if (warp >= TEAMS * WARPS) {
    bring_slabs(ring, x, full, empty, cluster, rank, threadIdx.x - TEAMS * THREADS);
    return;
  }
  const int team = warp / WARPS, thread = threadIdx.x - team * THREADS, own_warp = warp - team * WARPS;
  float2* const pairs = all_pairs + team * LINES * PAIRS;
  float2* const all = all_sums + team * GROUPS;
  const int line = thread / PIECES, piece = thread - line * PIECES;
  const bool works = line < LINES;
  const int pixels = min(SLAB, PIXELS - rank * SLAB);
  auto pixels_of = [&](int l) { return (max(pixels - l, 0) + LINES - 1) / LINES; };
  const int count = works ? pixels_of(line) : 0;
  auto team_sync = [&]() { block_sync(1 + team, THREADS); };
  int slab = team, turn = 0;  // of those that come, and of the team's
  for (int task = cluster + team * CLUSTERS; task < TASKS; task += TEAMS * CLUSTERS, slab += TEAMS, turn++) {
    const int image = task / CHUNKS, column = (task - image * CHUNKS) * CHUNK + piece * VECTOR;
    Part* const table = tables + (team * 2 + (turn & 1)) * TABLE;
    const uint32_t parts_arrived = arrived + (team * 2 + (turn & 1)) * 8;
    auto row = [&](int i) { return image * PIXELS + rank * SLAB + line + i * LINES; };
    const int first = row(0) * CHANNELS + column;
    auto place = [&](int i) { return first + i * (LINES * CHANNELS); };
    // Calls `f` with each pixel of a batch that the thread has, and where that is in the ring.
    auto each_of = [&](int batch, auto f) {
      const In* const from = ring + (slab * BATCHES + batch) % STAGES * STAGE + thread * VECTOR;
#pragma unroll
      for (int i = 0; i < TURNS_OF_BATCH; i++) {
        const int at = first_turn(batch) + i;
        if (at < min(count, first_turn(batch + 1))) f(from + i * WORKERS * VECTOR, at);
      }
    };
    Across across;
    if (works) fetch(across, column, operands);
    Added added;
    for (int batch = 0; batch < BATCHES; batch++) {
      const int at = slab * BATCHES + batch;
      barrier_wait(full + at % STAGES * 8, at / STAGES & 1);
      each_of(batch, [&](const In* from, int i) { add(added, i, from, row(i), place(i), column, operands, across); });
    }
    if (works) keep(pairs + line * PAIRS + piece * (VECTOR / 2), added, count);
    team_sync();
    if (CLUSTER > 1 && thread == 0) barrier_expect(parts_arrived, TABLE * sizeof(Part));  // some may have come already
    for (int work = own_warp; work < GROUPS * PARTS; work += WARPS) {
      const int group = work / PARTS, part = work - group * PARTS;
      const Part own = part_of(pairs, group, part, pixels_of);
      Part* const to = table + (group * CLUSTER + rank) * PARTS + part;
      if constexpr (CLUSTER > 1) {
        if (lane < CLUSTER)
          send(address_at(shared_address(to), lane), address_at(parts_arrived, lane), own.count, own.mean, own.squares, 0.f);
      } else if (lane == 0) {
        *to = own;
      }
    }
    if (CLUSTER > 1) barrier_wait(parts_arrived, turn >> 1 & 1); else team_sync();
    add_up(all, table, own_warp);
    team_sync();
    Line of_channels;
    find(of_channels, all, works ? piece : 0, column, operands, across);
    for (int batch = 0; batch < BATCHES; batch++) {
      each_of(batch, [&](const In* from, int i) {
        give(out, from, of_channels, row(i), place(i), column, operands, across);
      });
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + (slab * BATCHES + batch) % STAGES * 8);
    }
  }
}
