// Attention of few queries to many keys: a cluster computes one tile of queries, each of its SPLITS CTAs over a part of the
// keys with a softmax of its own; then every CTA sends each other one its share of the results, and adds up what came.
// After "Flash-Decoding" (Dao et al., 2023), with distributed shared memory in place of a second kernel. One producer warp
// brings Q, K and V by TMA, and WARPS others consume them.
// Stands in a namespace that has defined: SPLITS, BLOCK, STAGES, ROWS of the tile, WARPS, RELEASES (arrivals that let go of
// a step), PARTS (of a softmax that `consume` leaves in shared memory beside the whole one), the problem as in
// `kernel.cuh`, `logit`, `merge`, `k_page` and `v_page`, the rows that are copied at once (K_STEP, V_STEP), `k_box` and
// `v_box`, which copy them, and the pages of a CTA (ENTRIES). Behind it stands `consume`.
using namespace hopper;

constexpr int ATOMS = (HEAD + 63) / 64;
constexpr int Q_BYTES = ROWS * ATOMS * 128, KV_BYTES = BLOCK * ATOMS * 128;
constexpr int BLOCKS = (KEYS + BLOCK - 1) / BLOCK;
constexpr int PITCH = HEAD + 2;  // a row of sums, then its largest logit and the sum of its powers
template <int VALUE> struct Just { static constexpr int value = VALUE; };
static_assert(QUERIES <= ROWS, "one tile of queries");
static_assert(SPLITS <= BLOCKS, "keys for every CTA");
constexpr int PART_BYTES = QUERIES * PITCH * 4;
// What a CTA sends to another: four columns of a row each, then the largest logit and the sum of the powers of each row.
constexpr int QUADS = QUERIES * HEAD / 4, SHARE = (QUADS + SPLITS - 1) / SPLITS, LETTER_BYTES = (SHARE + QUERIES) * 16;
constexpr int LETTERS_AT = ((PARTS + 1) * PART_BYTES + 15) / 16 * 16;  // those that come, behind its own sums
static_assert(LETTERS_AT + SPLITS * LETTER_BYTES <= 2 * STAGES * KV_BYTES, "all lie where keys and values were");

// Where Q, K and V lie in shared memory, the barriers of each step, and that of the letters.
struct Ring { uint32_t q, k, v, q_full, k_full, k_empty, v_full, v_empty, arrived; };

// What the other warps do: the softmax of the blocks from `last` - 1 down to `first` times their values, by rows of PITCH
// floats behind PARTS others where the keys were.
DEV void consume(const Ring& ring, int b, int h, int first, int last, const Operands& operands);

DEV void write_pair(uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
DEV float2 read_own(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}
DEV void decoding(uint8_t* raw, const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, Out* O,
                  const Operands operands) {
  Ring ring;
  ring.q = (shared_address(raw) + 1023) & ~1023u;
  ring.k = ring.q + Q_BYTES;
  ring.v = ring.k + STAGES * KV_BYTES;
  ring.q_full = ring.v + STAGES * KV_BYTES;
  ring.k_full = ring.q_full + 8;
  ring.k_empty = ring.k_full + STAGES * 8;
  ring.v_full = ring.k_empty + STAGES * 8;
  ring.v_empty = ring.v_full + STAGES * 8;
  ring.arrived = ring.v_empty + STAGES * 8;
  const int tid = threadIdx.x, warp = tid >> 5;
  const int rank = cluster_rank(), tile = blockIdx.x / SPLITS, b = tile / HEADS, h = tile % HEADS;
  const int first = rank * BLOCKS / SPLITS, last = (rank + 1) * BLOCKS / SPLITS;
  if (tid == 0) {
    barrier_init(ring.q_full, 1);
    barrier_init(ring.arrived, 1);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(ring.k_full + i * 8, 1);
      barrier_init(ring.k_empty + i * 8, RELEASES);
      barrier_init(ring.v_full + i * 8, 1);
      barrier_init(ring.v_empty + i * 8, RELEASES);
    }
    barriers_visible();
    fence_async();
    barrier_expect(ring.arrived, SPLITS * ((QUADS - rank + SPLITS - 1) / SPLITS + QUERIES) * 16);
  }
  __syncthreads();
  earlier_kernels_done();
  // Pages of the keys and values that this CTA brings: a table's entries would be waited for one after the other.
  int* const k_pages = (int*)(raw + (ring.arrived + 8 - shared_address(raw)));
  int* const v_pages = k_pages + ENTRIES;
  const int k_page0 = first * BLOCK / K_PAGE, v_page0 = first * BLOCK / V_PAGE;
  if constexpr (K_PAGED || V_PAGED) {
    for (int i = tid; i < ENTRIES; i += blockDim.x) {
      if (K_PAGED) k_pages[i] = k_page(b, (k_page0 + i) * K_PAGE, operands);
      if (V_PAGED) v_pages[i] = v_page(b, (v_page0 + i) * V_PAGE, operands);
    }
    __syncthreads();
  }

  if (warp == WARPS) {
    if (elect()) {
      int k_stage = 0, k_phase = 1, v_stage = 0, v_phase = 1;
      // Rows in pages come by STEP of one page; those behind the last key are zeros, of a page that is not there.
      auto load = [&](auto box, auto step, bool paged, int rows, int none, const int* pages, int page0, const TensorMap* map,
                      uint32_t to, uint32_t full, uint32_t empty, int& stage, int& phase, int j, int row, int head) {
        constexpr int STEP = decltype(step)::value;
        barrier_wait(empty + stage * 8, phase);
        barrier_expect(full + stage * 8, KV_BYTES);
#pragma unroll
        for (int s = 0; s < BLOCK; s += STEP) {
          const int n = j * BLOCK + s, page = !paged ? b : n < KEYS ? pages[n / rows - page0] : none;
#pragma unroll
          for (int a = 0; a < ATOMS; a++)
            box(to + stage * KV_BYTES + a * BLOCK * 128 + s * 128, map, full + stage * 8, a * 64,
                paged ? n % rows : row + n, head, page);
        }
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      };
      auto load_k = [&](int j) {
        load(k_box, Just<K_STEP>(), K_PAGED, K_PAGE, K_PAGES, k_pages, k_page0, map_k, ring.k, ring.k_full, ring.k_empty,
             k_stage, k_phase, j, K_ROW, K_HEAD + h / GROUP);
      };
      auto load_v = [&](int j) {
        load(v_box, Just<V_STEP>(), V_PAGED, V_PAGE, V_PAGES, v_pages, v_page0, map_v, ring.v, ring.v_full, ring.v_empty,
             v_stage, v_phase, j, V_ROW, V_HEAD + h / GROUP);
      };
      barrier_expect(ring.q_full, Q_BYTES);
#pragma unroll
      for (int a = 0; a < ATOMS; a++) load_image(ring.q + a * ROWS * 128, map_q, ring.q_full, a * 64, Q_ROW, Q_HEAD + h, b);
      load_k(last - 1);
      for (int j = last - 2; j >= first; j--) { load_k(j); load_v(j + 1); }
      load_v(first);
    }
    __syncwarp();
  } else {
    consume(ring, b, h, first, last, operands);
  }
  __syncthreads();
  // Nobody writes where another still has keys, and every barrier is there. No memory is waited for: letters count bytes.
  cluster_arrive();
  cluster_wait();
  const uint32_t results = ring.k + PARTS * PART_BYTES, letters = ring.k + LETTERS_AT;
  auto write_to = [&](int to, int place, float2 x, float2 y) {
    send(address_at(letters + rank * LETTER_BYTES + place * 16, to), address_at(ring.arrived, to), x.x, x.y, y.x, y.y);
  };
  for (int at = tid; at < QUADS; at += blockDim.x) {
    const uint32_t from = results + (at / (HEAD / 4) * PITCH + at % (HEAD / 4) * 4) * 4;
    write_to(at % SPLITS, at / SPLITS, read_own(from), read_own(from + 8));
  }
  for (int at = tid; at < QUERIES * SPLITS; at += blockDim.x) {
    const int m = at / SPLITS;
    write_to(at % SPLITS, SHARE + m, read_own(results + (m * PITCH + HEAD) * 4), make_float2(0.f, 0.f));
  }
  barrier_wait(ring.arrived, 0);
  for (int place = tid, at = tid * SPLITS + rank; at < QUADS; place += blockDim.x, at += blockDim.x * SPLITS) {
    const int m = at / (HEAD / 4), column = at % (HEAD / 4) * 4;
    float tops[SPLITS], totals[SPLITS], weights[SPLITS];
#pragma unroll
    for (int i = 0; i < SPLITS; i++) {
      const float2 both = read_own(letters + i * LETTER_BYTES + (SHARE + m) * 16);
      tops[i] = both.x;
      totals[i] = both.y;
    }
    const float all = merge(tops, totals, weights);
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < SPLITS; i++) {
      const uint32_t from = letters + i * LETTER_BYTES + place * 16;
      const float2 x = read_own(from), y = read_own(from + 8);
      sums[0] = fmaf(weights[i], x.x, sums[0]);
      sums[1] = fmaf(weights[i], x.y, sums[1]);
      sums[2] = fmaf(weights[i], y.x, sums[2]);
      sums[3] = fmaf(weights[i], y.y, sums[3]);
    }
    // A row without a finite logit has NaN, or zeros where the model says so.
    const bool empty = EMPTY == NEVER_NAN ? !(all > 0.f) : EMPTY == ZERO && all == 0.f;
    const float by = 1.f / all;
    Out* to = O + (size_t)b * O_BATCH + (size_t)h * O_HEAD + (size_t)m * O_ROW + column;
    store_pair<Out>(to, empty ? 0.f : sums[0] * by, empty ? 0.f : sums[1] * by);
    store_pair<Out>(to + 2, empty ? 0.f : sums[2] * by, empty ? 0.f : sums[3] * by);
  }
}
