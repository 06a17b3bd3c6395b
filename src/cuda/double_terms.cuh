// Terms of float64, several at a time, and the canonical tree over them.
#pragma once

#include "softfold/fold/exp2.hpp"
#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// fold's arithmetic on kWide doubles at a time: what is constant is brought to registers once for all of them, and
/// none waits for another.
template <int kWide>
struct Doubles {
  using Element = double;
  using S = fold::Scalar<double>;
  struct V {
    double of[kWide];
  };

  template <class Of>
  static __device__ __forceinline__ V each(const Of& of) {
    V r;
#pragma unroll
    for (int k = 0; k < kWide; ++k) r.of[k] = of(k);
    return r;
  }
  static __device__ __forceinline__ V set(double a) {
    return each([=](int) { return a; });
  }
  static __device__ __forceinline__ V fma(const V& a, const V& b, const V& c) {
    return each([&](int k) { return S::fma(a.of[k], b.of[k], c.of[k]); });
  }
};

/// 2^step times a number of exponent 0, or 0. Without a branch, which would keep elements from being worked on side by
/// side.
__device__ __forceinline__ double times_power_of_two(double a, unsigned step, bool counts) {
  const unsigned kept = counts ? ~0U : 0U, high = static_cast<unsigned>(__double2hiint(a)) + (step << 20);
  return __hiloint2double(static_cast<int>(high & kept), static_cast<int>(__double2loint(a) & kept));
}

/// The power of two of an element, rounded to an integer, as one of 32 bits.
struct PowerOfTwo {
  static constexpr int kFits = 0x43380000, kLowest = -0x7B000000;

  double t;  ///< the integer, by what was added to round it
  int fits;  ///< kFits if it has so many bits; else more, or, of lower ones, less

  __device__ __forceinline__ PowerOfTwo(double x, double c) {
    t = fold::Scalar<double>::fma(x, c, fold::Real<double>::kMagic);
    // One below 0 has borrowed one of the upper half.
    fits =
        static_cast<int>(static_cast<unsigned>(__double2hiint(t)) + (static_cast<unsigned>(__double2loint(t)) >> 31));
  }
  __device__ __forceinline__ int n() const { return __double2loint(t); }
  __device__ __forceinline__ bool counts(int floor) const { return fits >= kFits && n() >= floor; }
  __device__ __forceinline__ double rounded() const { return fold::Scalar<double>::sub(t, fold::Real<double>::kMagic); }
};

/// 2^(x(k) * c - top) of kWide numbers, 0 of those below 2^floor: fold::term() of numbers that are no more than 2^9
/// above top. What comes of others is to be thrown away.
template <int kWide, class X>
__device__ __forceinline__ typename Doubles<kWide>::V terms_of(const X& x, double c, int top, int floor) {
  using A = Doubles<kWide>;
  unsigned steps[kWide];  // of what counts above -2^11
  bool counts[kWide];
  const auto f = A::each([&](int k) {
    const PowerOfTwo power(x(k), c);
    steps[k] = static_cast<unsigned>(power.n()) - static_cast<unsigned>(top);
    counts[k] = power.counts(floor);
    return fold::Scalar<double>::fma(x(k), c, -power.rounded());
  });
  const auto fractions = fold::exp2_fraction<A>(f);
  return A::each([&](int k) { return times_power_of_two(fractions.of[k], steps[k], counts[k]); });
}

/// The canonical tree over leaf(0) ... leaf(kCount - 1), slots that lie kCount / 2 apart first.
template <int kCount, int kFirst = 0, int kStride = 1, class Leaf, class Join>
__device__ __forceinline__ double tree_of(const Leaf& leaf, const Join& join) {
  if constexpr (kStride == kCount) {
    return leaf(kFirst);
  } else {
    return join(tree_of<kCount, kFirst, 2 * kStride>(leaf, join),
                tree_of<kCount, kFirst + kStride, 2 * kStride>(leaf, join));
  }
}
template <int kCount, class Leaf>
__device__ __forceinline__ double sum_tree(const Leaf& leaf) {
  return tree_of<kCount>(leaf, [](double a, double b) { return fold::Scalar<double>::add(a, b); });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
