// N neighbouring values in registers as floats, loaded and stored by up to 16 bytes: their place must be a multiple of N.
// After hopper.cuh; included once a translation unit.
#ifndef RELAXC_VECTORS
#define RELAXC_VECTORS
namespace hopper {

template <int BYTES> struct Piece;
template <> struct Piece<4> { typedef uint32_t type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<16> { typedef uint4 type; };

template <int N, class T> DEV void load_vector(float* to, const T* from) {
  constexpr int PART = N * sizeof(T) < 16 ? N : 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < N; i += PART) {
    const typename Piece<PART * sizeof(T)>::type raw = *(const typename Piece<PART * sizeof(T)>::type*)(from + i);
    const T* values = (const T*)&raw;
#pragma unroll
    for (int j = 0; j < PART; j++) to[i + j] = widen(values[j]);
  }
}

template <int N, class T> struct Stored {
  static DEV void at(T* to, const float* from) {
    if (N == 8) *(uint4*)to = make_uint4(pack<T>(from[0], from[1]), pack<T>(from[2], from[3]),
                                         pack<T>(from[N - 4], from[N - 3]), pack<T>(from[N - 2], from[N - 1]));
    else *(uint2*)to = make_uint2(pack<T>(from[0], from[1]), pack<T>(from[2], from[3]));
  }
};
template <int N> struct Stored<N, float> {
  static DEV void at(float* to, const float* from) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *(float4*)(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
  }
};
// Whole numbers within the range of T.
template <int N, class T> struct StoredBytes {
  static DEV void at(T* to, const float* from) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *(uint32_t*)(to + i) = pack_bytes(make_float2(from[i], from[i + 1]), make_float2(from[i + 2], from[i + 3]));
  }
};
template <int N> struct Stored<N, signed char> : StoredBytes<N, signed char> {};
template <int N> struct Stored<N, unsigned char> : StoredBytes<N, unsigned char> {};
// N is 4 or 8.
template <int N, class T> DEV void store_vector(T* to, const float* from) { Stored<N, T>::at(to, from); }

}  // namespace hopper
#endif
