// The larger and the smaller of two floats, NaN where either is: CUDA's `max` and `fmaxf` give the other one.
#ifndef RELAXC_EXTREMES
#define RELAXC_EXTREMES
template <class T> __device__ __forceinline__ T relaxc_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T relaxc_min(T a, T b) { return a < b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float relaxc_max<float>(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
template <> __device__ __forceinline__ float relaxc_min<float>(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#endif
#endif
