// The instructions of sm_80 that the kernels are built of, one function each; every later device has them: PTX ISA 7.0,
// "mma", "ldmatrix", "cp.async". After hopper.cuh, whose values it shares; included once a translation unit.
#ifndef RELAXC_AMPERE
#define RELAXC_AMPERE
namespace ampere {

// ---- copies by threads, in groups; without a source, zeros
template <int BYTES> DEV void copy(uint32_t to, const void* from, bool has_source) {
  if constexpr (BYTES == 16) {
    hopper::copy_vector(to, from, has_source);
  } else if constexpr (BYTES == 2) {  // no such copy is apart from the thread
    const unsigned short value = has_source ? *(const unsigned short*)from : (unsigned short)0;
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(value) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(to), "l"(from), "n"(BYTES), "r"(has_source ? BYTES : 0) : "memory");
  }
}

// ---- four matrices of 8 rows of 16 bytes; each lane names a row
DEV void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
DEV void load_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}

DEV uint32_t load_word(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

// ---- parts of fp32
DEV uint32_t larger(uint32_t x, uint32_t y) {  // of two pairs of bf16, the second of any sign, by size
  uint32_t z;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y & 0x7fff7fffu));
  return z;
}
DEV uint32_t upper_halves(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7632); }
DEV uint32_t in_tf32(uint32_t x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// ---- d[16, 8] += a[16, 16] * b[16, 8] of a warp
template <class In> struct Product;
template <> struct Product<__half> {
  static DEV void add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};
template <> struct Product<__nv_bfloat16> {
  static DEV void add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <> struct Product<float> {  // of tf32: d[16, 8] += a[16, 8] * b[8, 8]
  static DEV void add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// ---- two numbers of 16 bits at once, and loads of what is read once
template <class In> DEV uint32_t fused(uint32_t a, uint32_t b, uint32_t c);  // a * b + c
template <> DEV uint32_t fused<__half>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
template <> DEV uint32_t fused<__nv_bfloat16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
DEV uint32_t masked(uint32_t x, uint32_t mask, uint32_t base) {  // (x & mask) | base, by one instruction
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "r"(mask), "r"(base));
  return y;
}
DEV uint4 load_once(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
  return x;
}

// ---- between lanes
// Each of four neighbouring lanes has a part of four rows; it gets its own row, the parts in the lanes' order.
DEV void gather_rows(uint32_t (&parts)[4], int lane) {
#pragma unroll
  for (int by = 1; by < 4; by *= 2) {
    const bool is_upper = lane & by;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & by) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffff, is_upper ? parts[i] : parts[i + by], by);
      if (is_upper) parts[i] = got; else parts[i + by] = got;
    }
  }
}

}  // namespace ampere
#endif
