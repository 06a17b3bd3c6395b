// A reciprocal without the cases that a division has to tell apart.
#pragma once

#include "softfold/fold/real.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 1/a rounded to nearest, of a normal number with a normal reciprocal: a division calls a function for all others, and
/// what lives across a call leaves a kernel few registers. (cuda_shortcuts tests every significand.)
__device__ __forceinline__ float reciprocal_of_normal(float a) {
  using S = fold::Scalar<float>;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return S::fma(r, S::fma(-a, r, 1.F), r);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
