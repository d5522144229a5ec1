// What the texts of elementwise kernels are made of: vectors of neighbours in registers, and functions of values.
using namespace hopper;

// Takes an axis of `size` off the position `rest`: returns the place along it. 64-bit divisions take several times as long.
DEV long long split(unsigned long long& rest, long long size) {
  if (((rest | size) >> 32) == 0) {
    const unsigned int low = (unsigned int)rest, by = (unsigned int)size, found = low / by;
    rest = found;
    return low - found * by;
  }
  const unsigned long long found = rest / size;
  const long long left = (long long)(rest - found * size);
  rest = found;
  return left;
}

template <int BYTES> struct Chunk;
template <> struct Chunk<1> { typedef unsigned char type; };
template <> struct Chunk<2> { typedef unsigned short type; };
template <> struct Chunk<4> { typedef unsigned int type; };
template <> struct Chunk<8> { typedef uint2 type; };
template <> struct Chunk<16> { typedef uint4 type; };
DEV void set_zero(uint4& x) { x = make_uint4(0, 0, 0, 0); }
DEV void set_zero(uint2& x) { x = make_uint2(0, 0); }
template <class T> DEV void set_zero(T& x) { x = 0; }

// LANES values as they are in memory, which are read TOGETHER at a time, up to 16 bytes.
template <class T, int LANES, int TOGETHER> struct Vector {
  static constexpr int BYTES = TOGETHER * (int)sizeof(T) < 16 ? TOGETHER * (int)sizeof(T) : 16;
  static constexpr int COUNT = LANES * (int)sizeof(T) / BYTES;
  typedef typename Chunk<BYTES>::type Part;
  Part raw[COUNT];
  DEV void clear() {
#pragma unroll
    for (int i = 0; i < COUNT; i++) set_zero(raw[i]);
  }
  DEV void read(const void* base, long long at) {
    const Part* from = (const Part*)((const T*)base + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++) raw[i] = from[i];
  }
  DEV void read_lane(int lane, const void* base, long long at) { raw[lane] = *(const Part*)((const T*)base + at); }
  DEV T operator[](int lane) const { return ((const T*)raw)[lane]; }
};

template <class T> DEV T as(float x) { return (T)x; }
template <> DEV __half as<__half>(float x) { return narrow<__half>(x); }
template <> DEV __nv_bfloat16 as<__nv_bfloat16>(float x) { return narrow<__nv_bfloat16>(x); }
template <> DEV Fp8 as<Fp8>(float x) { return narrow<Fp8>(x); }
template <class T, class H> DEV T as(H x) { return (T)x; }

DEV int bits_of(float x) {
  int bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
template <class T> DEV T max_of(T a, T b) { return a > b ? a : b; }
template <class T> DEV T min_of(T a, T b) { return a < b ? a : b; }
// Near 0 the fast ones lose digits that 16 bits have.
DEV float tanh_low(float x) { return fabsf(x) < 0.015f ? x : tanh_fast(x); }
DEV float erf_low(float x) { return fabsf(x) < 0.01f ? 1.1283791671f * x : erf_fast(x); }

// 16 bytes at a time, or all where they are fewer. `to` is aligned to as many.
template <int LANES, class T, class H> DEV void store_lanes(T* to, const H* made) {
  constexpr int BYTES = LANES * (int)sizeof(T), PART = BYTES < 16 ? BYTES : 16, COUNT = BYTES / PART;
  typedef typename Chunk<PART>::type Part;
  Part parts[COUNT];
  if constexpr (sizeof(T) == 2 && sizeof(H) == 4 && LANES > 1) {
#pragma unroll
    for (int l = 0; l < LANES; l += 2) ((uint32_t*)parts)[l / 2] = pack<T>(made[l], made[l + 1]);
  } else {
#pragma unroll
    for (int l = 0; l < LANES; l++) ((T*)parts)[l] = as<T>(made[l]);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) ((Part*)to)[i] = parts[i];
}

// A tile in shared memory of rows of COLUMNS values of T, in groups of GROUP neighbours, which are read from memory at
// once. Groups of a row stand in an order that changes every STEP rows, so that neither a warp that writes groups of a
// row nor one that reads a column meets itself in a bank.
template <class T, int COLUMNS, int GROUP, int STEP> struct Tile {
  static constexpr int GROUPS = COLUMNS / GROUP;
  typedef typename Chunk<GROUP * (int)sizeof(T)>::type Part;
  static DEV unsigned int at(unsigned int row, unsigned int group) {
    return row * COLUMNS + (group ^ ((row / STEP) % GROUPS)) * GROUP;
  }
  static DEV void write(void* base, unsigned int row, unsigned int group, const Part& part) {
    *(Part*)((T*)base + at(row, group)) = part;
  }
  // STEP values of a column, from row STEP * `step`.
  template <class V> static DEV void read(V& to, const void* base, unsigned int step, unsigned int column) {
    const T* from = (const T*)base + at(step * STEP, column / GROUP) + column % GROUP;
#pragma unroll
    for (int l = 0; l < STEP; l++) to.raw[l] = *(const typename V::Part*)(from + l * COLUMNS);
  }
};
