// The tensor cores of a warp-group: d += a b in 16-bit elements with float32 sums.
#pragma once

#include "softfold/fold/float16.hpp"

#include <cstdint>
#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a tile lies in shared memory, for wgmma (PTX ISA 9.7.15.5.1.2, matrix descriptor): panels of 64 columns, a
/// row of 128 bytes, in the 128-byte swizzle that the copy engine writes. `panel_bytes` is the distance between panels
/// and read only when the operand's columns are its M or N; 8 rows are 1024 bytes. `address` is a multiple of 16.
__device__ __forceinline__ std::uint64_t tile_descriptor(unsigned address, int panel_bytes) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62, eight_rows = std::uint64_t{1024 >> 4} << 32;
  return swizzle_128 | eight_rows | static_cast<std::uint64_t>(panel_bytes >> 4) << 16 | (address & 0x3FFFF) >> 4;
}

/// wgmma.fence (PTX ISA 9.7.15.7.1): before the first product, and wherever the warp-group touched its operands'
/// registers. commit and wait (9.7.15.7.2, .3): products since the last commit form a group; wait leaves at most
/// kPending groups unfinished.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads and writes of these registers across: a wgmma works on after its instruction.
template <class T, int kCount>
__device__ __forceinline__ void pin(T (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      asm volatile("" : "+f"(r[i])::"memory");
    } else {
      asm volatile("" : "+r"(r[i])::"memory");
    }
  }
}

/// Keeps the assembler, which moves waits freely over arithmetic, from waiting before a sum >= 0 is there: the
/// arithmetic that led to it is meant to run beside the products.
__device__ __forceinline__ void hold_for(float sum) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 0;\n}\n" ::"f"(sum));
}

/// wgmma.mma_async m64nNk16 (PTX ISA 9.7.15.5.2), N = 2 * kCount: d is this thread's part of 64 x N; d[4i .. 4i+3] are
/// columns 8i + 2(lane%4) + {0, 1} of rows 16 warp + lane/4 + {0, 8}.
/// multiply(): a and b in shared memory, both with k along the columns; `accumulate` false starts from 0.
/// multiply_add(): a in registers (as d's layout packs), b's columns are N.
template <class E, int kCount>
struct Product;

// Operand lists, in the order of an accumulator's registers.
#define SOFTFOLD_NAMES_32                                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SOFTFOLD_NAMES_40 \
  SOFTFOLD_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SOFTFOLD_NAMES_48 \
  SOFTFOLD_NAMES_40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SOFTFOLD_NAMES_64 \
  SOFTFOLD_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SOFTFOLD_NAMES_88                                                                                       \
  SOFTFOLD_NAMES_64                                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87"
#define SOFTFOLD_NAMES_96 \
  SOFTFOLD_NAMES_88       \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SOFTFOLD_NAMES_128                                                                                     \
  SOFTFOLD_NAMES_96                                                                                            \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, " \
  "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SOFTFOLD_SUMS_8(i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define SOFTFOLD_SUMS_32 SOFTFOLD_SUMS_8(0), SOFTFOLD_SUMS_8(8), SOFTFOLD_SUMS_8(16), SOFTFOLD_SUMS_8(24)
#define SOFTFOLD_SUMS_40 SOFTFOLD_SUMS_32, SOFTFOLD_SUMS_8(32)
#define SOFTFOLD_SUMS_48 SOFTFOLD_SUMS_40, SOFTFOLD_SUMS_8(40)
#define SOFTFOLD_SUMS_64 SOFTFOLD_SUMS_48, SOFTFOLD_SUMS_8(48), SOFTFOLD_SUMS_8(56)
#define SOFTFOLD_SUMS_88 SOFTFOLD_SUMS_64, SOFTFOLD_SUMS_8(64), SOFTFOLD_SUMS_8(72), SOFTFOLD_SUMS_8(80)
#define SOFTFOLD_SUMS_96 SOFTFOLD_SUMS_88, SOFTFOLD_SUMS_8(88)
#define SOFTFOLD_SUMS_128 \
  SOFTFOLD_SUMS_96, SOFTFOLD_SUMS_8(96), SOFTFOLD_SUMS_8(104), SOFTFOLD_SUMS_8(112), SOFTFOLD_SUMS_8(120)

#define SOFTFOLD_PRODUCT(E, type, n, count, r0, r1, r2, r3, r4)                                                       \
  template <>                                                                                                         \
  struct Product<E, count> {                                                                                          \
    static __device__ __forceinline__ void multiply(float (&d)[count], std::uint64_t a, std::uint64_t b,              \
                                                    int accumulate) {                                                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                                           \
                   ", 0;\n"                                                                                           \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" SOFTFOLD_NAMES_##count        \
                   "}, "                                                                                              \
                   "%" #r0 ", %" #r1 ", p, 1, 1, 0, 0;\n}\n"                                                          \
                   : SOFTFOLD_SUMS_##count                                                                            \
                   : "l"(a), "l"(b), "r"(accumulate));                                                                \
    }                                                                                                                 \
    static __device__ __forceinline__ void multiply_add(float (&d)[count], const std::uint32_t* a, std::uint64_t b) { \
      asm volatile(                                                                                                   \
          "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                  \
          "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" SOFTFOLD_NAMES_##count                 \
          "}, "                                                                                                       \
          "{%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1, 1;\n}\n"                                      \
          : SOFTFOLD_SUMS_##count                                                                                     \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                      \
    }                                                                                                                 \
  };
#define SOFTFOLD_PRODUCTS(n, count, r0, r1, r2, r3, r4)                  \
  SOFTFOLD_PRODUCT(fold::BFloat16, "bf16", n, count, r0, r1, r2, r3, r4) \
  SOFTFOLD_PRODUCT(fold::Float16, "f16", n, count, r0, r1, r2, r3, r4)

SOFTFOLD_PRODUCTS(64, 32, 32, 33, 34, 35, 36)
SOFTFOLD_PRODUCTS(80, 40, 40, 41, 42, 43, 44)
SOFTFOLD_PRODUCTS(96, 48, 48, 49, 50, 51, 52)
SOFTFOLD_PRODUCTS(128, 64, 64, 65, 66, 67, 68)
SOFTFOLD_PRODUCTS(176, 88, 88, 89, 90, 91, 92)
SOFTFOLD_PRODUCTS(192, 96, 96, 97, 98, 99, 100)
SOFTFOLD_PRODUCTS(256, 128, 128, 129, 130, 131, 132)

#undef SOFTFOLD_PRODUCTS
#undef SOFTFOLD_PRODUCT
#undef SOFTFOLD_SUMS_8
#undef SOFTFOLD_SUMS_32
#undef SOFTFOLD_SUMS_40
#undef SOFTFOLD_SUMS_48
#undef SOFTFOLD_SUMS_64
#undef SOFTFOLD_SUMS_88
#undef SOFTFOLD_SUMS_96
#undef SOFTFOLD_SUMS_128
#undef SOFTFOLD_NAMES_32
#undef SOFTFOLD_NAMES_40
#undef SOFTFOLD_NAMES_48
#undef SOFTFOLD_NAMES_64
#undef SOFTFOLD_NAMES_88
#undef SOFTFOLD_NAMES_96
#undef SOFTFOLD_NAMES_128

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
