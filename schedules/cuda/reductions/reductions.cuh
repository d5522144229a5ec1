// Groups of members: sums over the members of a group, each of a term of operands and of the sums before it, then a
// result for each member, or one for the group. A team of TX * TY threads has a group, or where lanes are ACROSS groups
// TX vectors of them; a block has TEAMS. SHARERS blocks have a group together: as a cluster (CLUSTER), whose blocks add
// up parts of the members, or each by itself, all sums made by every one of them; of the results each writes its part.
// Every sum is added up in an order that sizes alone decide.
// Stands in a namespace that has defined: TX, TY, TEAMS, SHARERS, CLUSTER, ACROSS, `outer_of` (groups, without the
// axis that lanes are across), `columns_of` (vectors of that axis), SUM_LANES, KEPT_AT (bytes of shared memory before what is kept),
// SUM_BYTES (of each sum there), the types Out, Operands, Sums, Space<i>, Sum<i>, and `every_sum`. A space has `size` (of
// its vectors), LANES, TERM_BYTES (of what terms read of a vector), TURNS (vectors of a thread), KEEPS (what terms read, 1: in registers, 2: in shared memory) and
// BATCH (vectors that are read at a time where it does not).
constexpr int TEAM = TX * TY, THREADS = TEAMS * TEAM, WARPS = TEAM < 32 ? 1 : TEAM / 32;
static_assert(TEAM < 32 ? 32 % TEAM == 0 : TEAM % 32 == 0, "of warps, or whole ones");
static_assert(THREADS % 32 == 0 && 32 % TX == 0 && (CLUSTER == 1 || TEAMS == 1), "whole warps, one group of a cluster");

struct Run {
  char* shared;
  const Operands& operands;
  int team, tx, first, rank, column;
  unsigned int outer;
  bool is_inside;
  Sums sums;

  DEV Run(char* shared, const Operands& operands) : shared(shared), operands(operands) {
    const int t = threadIdx.x % TEAM;
    team = threadIdx.x / TEAM;
    tx = t % TX;
    first = ACROSS ? t / TX : t;
    rank = blockIdx.x % SHARERS;
    const unsigned int tile = blockIdx.x / SHARERS * TEAMS + team;
    const unsigned int groups = outer_of(operands), columns = columns_of(operands), tiles = (columns + TX - 1) / TX;
    outer = ACROSS ? tile / tiles : tile;
    const int vector = ACROSS ? (int)(tile % tiles) * TX + tx : 0;
    is_inside = outer < groups && vector < (int)columns;
    outer = min(outer, groups - 1);  // behind the end, the last again
    column = (vector < (int)columns ? vector : (int)columns - 1) * SUM_LANES;
  }
  static constexpr int STRIDE = ACROSS ? TY : TEAM;
  template <int SHARES> DEV int member(int turn) const { return (turn * SHARES + (SHARES > 1 ? rank : 0)) * STRIDE + first; }

  template <class S> static constexpr bool FITS = sizeof(typename S::Terms) <= S::TERM_BYTES;
  // What is kept of a space, if anything is: first all is read, then all is used.
  template <class S> struct Kept { typename S::Terms in[S::KEEPS == 1 ? S::TURNS : 1]; };
  template <class S> DEV typename S::Terms& kept(Kept<S>& own, int turn) const {
    if constexpr (S::KEEPS == 2) return ((typename S::Terms*)(shared + KEPT_AT))[turn * THREADS + threadIdx.x];
    else return own.in[S::KEEPS == 1 ? turn : 0];
  }
  template <class S> DEV void keep(Kept<S>& own) const {
    static_assert(FITS<S>, "what is kept is as large as was reckoned");
    if (S::KEEPS == 0) return;
    typename S::Place at;
    S::to_group(at, outer, column, operands);
#pragma unroll
    for (int i = 0; i < S::TURNS; i++)
      if (member<CLUSTER>(i) < S::size(operands)) {
        S::to_member(at, member<CLUSTER>(i));
        S::read(kept<S>(own, i), at, operands);
      }
  }
  // f(terms, place) of each vector of members that the thread has among SHARES blocks.
  template <class S, int SHARES, bool IS_KEPT, class F> DEV void each(Kept<S>& own, F f) const {
    typename S::Place at;
    S::to_group(at, outer, column, operands);
    if constexpr (IS_KEPT) {
#pragma unroll
      for (int i = 0; i < S::TURNS; i++)
        if (member<SHARES>(i) < S::size(operands)) {
          S::to_member(at, member<SHARES>(i));
          f(kept<S>(own, i), at);
        }
    } else {
      for (int start = 0; member<SHARES>(start) < S::size(operands); start += S::BATCH) {
        typename S::Terms in[S::BATCH];
#pragma unroll
        for (int i = 0; i < S::BATCH; i++) {
          S::to_member(at, min(member<SHARES>(start + i), S::size(operands) - 1));
          S::read(in[i], at, operands);
        }
#pragma unroll
        for (int i = 0; i < S::BATCH; i++)
          if (member<SHARES>(start + i) < S::size(operands)) {
            S::to_member(at, member<SHARES>(start + i));
            f(in[i], at);
          }
      }
    }
  }

  Kept<Space0> of_results;
  template <class S> DEV Kept<S>& kept_of(Kept<S>& other) { return other; }
  DEV Kept<Space0>& kept_of(Kept<Space0>&) { return of_results; }

  template <class R> DEV void reduce() {
    typedef typename R::T T;
    typedef typename R::Space S;
    T made[S::LANES], all[S::LANES], whole[S::LANES], own[SUM_LANES];
#pragma unroll
    for (int l = 0; l < S::LANES; l++) all[l] = whole[l] = R::start();
    Kept<S> other;
    // Long sums are made of sums of blocks: what is added to a large sum is rounded to its digits.
    constexpr int BLOCK = 256;
    constexpr bool IS_LONG = S::TURNS > BLOCK;
    int count = 0;
    each<S, CLUSTER, S::KEEPS != 0>(kept_of(other), [&](const typename S::Terms& in, const typename S::Place& at) {
      R::term(made, in, at, sums);
#pragma unroll
      for (int l = 0; l < S::LANES; l++) all[l] = R::both(all[l], made[l]);
      if (IS_LONG && ++count % BLOCK == 0) {
#pragma unroll
        for (int l = 0; l < S::LANES; l++) {
          whole[l] = R::both(whole[l], all[l]);
          all[l] = R::start();
        }
      }
    });
    if (IS_LONG)
#pragma unroll
      for (int l = 0; l < S::LANES; l++) all[l] = R::both(whole[l], all[l]);
    if constexpr (ACROSS) {
#pragma unroll
      for (int l = 0; l < SUM_LANES; l++) own[l] = all[l];
    } else {
#pragma unroll
      for (int by = S::LANES / 2; by; by /= 2)
#pragma unroll
        for (int l = 0; l < by; l++) all[l] = R::both(all[l], all[l + by]);
      own[0] = all[0];
    }
    over_team<R>(own);
    R::keep(sums, own);
  }

  // The sum over the threads of a team that have the same columns, in each of them. No two sums have the same memory.
  template <class R> DEV void over_team(typename R::T (&own)[SUM_LANES]) {
    typedef typename R::T T;
#pragma unroll
    for (int by = (TEAM < 32 ? TEAM : 32) / 2; by >= TX; by /= 2)
#pragma unroll
      for (int l = 0; l < SUM_LANES; l++) own[l] = R::both(own[l], (T)__shfl_xor_sync(0xffffffff, own[l], by));
    if constexpr (WARPS > 1 || CLUSTER > 1) {
      // `parts` of each warp, then the `total` of the block, that of the cluster, which all read
      constexpr int COUNT = TX * SUM_LANES, PARTS = TEAMS * WARPS * COUNT, TOTALS = TEAMS * COUNT;
      T* const parts = (T*)(shared + R::AT * SUM_BYTES);
      T *const total = parts + PARTS, *const every = total + TOTALS;
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      if (lane < TX)
#pragma unroll
        for (int l = 0; l < SUM_LANES; l++) parts[(warp * TX + lane) * SUM_LANES + l] = own[l];
      __syncthreads();
      for (int i = threadIdx.x; i < TOTALS; i += THREADS) {
        const T* from = parts + i / COUNT * WARPS * COUNT + i % COUNT;
        T sum = from[0];
#pragma unroll 8
        for (int w = 1; w < WARPS; w++) sum = R::both(sum, from[w * COUNT]);
        total[i] = sum;
      }
      if constexpr (CLUSTER > 1) {
        cluster_arrive_release();
        cluster_wait();
        for (int i = threadIdx.x; i < TOTALS; i += THREADS) {
          T sum = (T)read_at((const float*)total + i, 0);
#pragma unroll
          for (int cta = 1; cta < CLUSTER; cta++) sum = R::both(sum, (T)read_at((const float*)total + i, cta));
          every[i] = sum;
        }
      }
      __syncthreads();
      const T* from = (CLUSTER > 1 ? every : total) + team * COUNT + tx * SUM_LANES;
#pragma unroll
      for (int l = 0; l < SUM_LANES; l++) own[l] = from[l];
    }
  }

  DEV void results(Out* out) {
    typedef Space0 S;
    each<S, SHARERS, S::KEEPS != 0>(of_results, [&](const S::Terms& in, const S::Place& at) {
      S::Rest rest;
      S::read(in, rest, at, operands);
      if (is_inside) S::result(out + S::position(at), in, rest, at, sums);
    });
  }
};

DEV void reductions(char* shared, Out* out, const Operands operands) {
  if (outer_of(operands) == 0 || columns_of(operands) == 0) return earlier_kernels_done();  // known at the call: no cluster
  Run run(shared, operands);
  earlier_kernels_done();
  run.keep(run.of_results);
  every_sum(run);
  run.results(out);
  if (CLUSTER > 1) {  // a block stays as long as others read its sums
    cluster_arrive();
    cluster_wait();
  }
}
