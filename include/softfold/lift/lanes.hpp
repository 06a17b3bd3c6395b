// How a fold crosses the lanes of a SIMD vector (Highway). Read once per target, inside a foreach_target file:
//
//   #include "softfold/lift/simd_targets.hpp"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "this_file.cc"
//   #include <hwy/foreach_target.h>
//   #include "softfold/lift/lanes.hpp"
//
// Everything here lies in softfold::HWY_NAMESPACE, because a function can only inline operations of its own target.
#include "softfold/fold/float16.hpp"
#include "softfold/lift/chunks.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

/// On a lambda: it has the target's instructions, and is inlined, so that what it captures stays in registers.
#ifndef SOFTFOLD_LANES_INLINE
#define SOFTFOLD_LANES_INLINE HWY_ATTR __attribute__((always_inline))
#endif

#if defined(SOFTFOLD_LIFT_LANES_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_LIFT_LANES_HPP
#undef SOFTFOLD_LIFT_LANES_HPP
#else
#define SOFTFOLD_LIFT_LANES_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#include "softfold/fold/exp2-inl.hpp"

/// The arithmetic adaptor: fold::Scalar's names over vectors of T.
template <class T>
struct Lanes {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Bits = typename fold::Real<T>::Bits;
  using DBits = hn::RebindToUnsigned<D>;
  static constexpr int kCount = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kMantissaBits = fold::Real<T>::kMantissaBits;

  static HWY_INLINE V set(T a) { return hn::Set(D(), a); }
  static HWY_INLINE V zero() { return hn::Zero(D()); }
  static HWY_INLINE V neg(V a) { return hn::Neg(a); }
  static HWY_INLINE V add(V a, V b) { return hn::Add(a, b); }
  static HWY_INLINE V sub(V a, V b) { return hn::Sub(a, b); }
  static HWY_INLINE V mul(V a, V b) { return hn::Mul(a, b); }
  static HWY_INLINE V div(V a, V b) { return hn::Div(a, b); }
  static HWY_INLINE V max(V a, V b) { return hn::Max(a, b); }
  static HWY_INLINE V fma(V a, V b, V c) {
#if HWY_TARGET == HWY_SCALAR
    return set(std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
    return hn::MulAdd(a, b, c);
#endif
  }

  /// The nearest integer, ties to even.
  static HWY_INLINE V round(V a) { return hn::Round(a); }
  /// k <= limit ? a : b, so b for a NaN k.
  static HWY_INLINE V if_at_most(V k, V limit, V a, V b) { return hn::IfThenElse(hn::Le(k, limit), a, b); }
  /// a, with every NaN replaced by the canonical one.
  static HWY_INLINE V canonical(V a) { return hn::IfThenElse(hn::Eq(a, a), a, set(fold::canonical_nan<T>())); }
  /// a * b - c, rounded once.
  static HWY_INLINE V fms(V a, V b, V c) {
#if HWY_TARGET == HWY_SCALAR
    return fma(a, b, neg(c));
#else
    return hn::MulSub(a, b, c);
#endif
  }

  /// a * 2^k, and +0 where k < kFlush or k is NaN. An integer added to kMagic stands in the sum's lowest bits, where
  /// one shift brings it to the exponent.
  static HWY_INLINE V times_power_of_two(V a, V k) {
    const auto shift = hn::ShiftLeft<kMantissaBits>(hn::BitCast(DBits(), add(k, set(fold::Real<T>::kMagic))));
    const V scaled = hn::BitCast(D(), hn::Add(hn::BitCast(DBits(), a), shift));
    return hn::IfThenElseZero(hn::Ge(k, set(fold::Real<T>::kFlush)), scaled);
  }

  /// a where a >= least, else +0.
  static HWY_INLINE V at_least(V a, V least) { return hn::IfThenElseZero(hn::Ge(a, least), a); }

  /// The fold of all lanes by halving: lane i meets i + kCount/2, then i + kCount/4, ... then i + 1.
  static HWY_INLINE T halve(V a) {
    return reduce(D(), a, [](auto x, auto y) SOFTFOLD_LANES_INLINE { return hn::Add(x, y); });
  }
  static HWY_INLINE T max_of_lanes(V a) {
    return reduce(D(), a, [](auto x, auto y) SOFTFOLD_LANES_INLINE { return hn::Max(x, y); });
  }

  template <class DN, class VN, class Op>
  static HWY_INLINE T reduce([[maybe_unused]] DN d, VN a, [[maybe_unused]] const Op& op) {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (hn::MaxLanes(DN()) > 1) {
      const hn::Half<DN> half;
      return reduce(half, op(hn::LowerHalf(half, a), hn::UpperHalf(half, a)), op);
    }
#endif
    return hn::GetLane(a);
  }
};

/// Loads kCount elements stored as S, widened to the precision they are folded in.
template <class S>
HWY_INLINE auto load(const S* p) {
  using A = Lanes<fold::FoldType<S>>;
  if constexpr (!fold::Half<S>) {
    return hn::LoadU(typename A::D(), p);
#if HWY_TARGET == HWY_SCALAR
  } else {
    return A::set(fold::widen(*p));
  }
#else
  } else if constexpr (std::is_same_v<S, fold::Float16>) {
    const hn::Rebind<hwy::float16_t, typename A::D> half;
    return hn::PromoteTo(typename A::D(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    const hn::Rebind<std::uint16_t, typename A::D> half;
    const auto wide = hn::PromoteTo(typename A::DBits(), hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(p)));
    return hn::BitCast(typename A::D(), hn::ShiftLeft<16>(wide));
  }
#endif
}

/// Whether store() has a vector form for folding in T and storing as S.
template <class T, class S>
inline constexpr bool kStores = std::is_same_v<T, S> || (std::is_same_v<T, float> && fold::Half<S>);

/// Stores kCount numbers (no NaN) as S, rounded once to nearest even. With `Stream`, past the cache; p is aligned then.
/// With `Native`, bfloat16 is rounded by AVX512-BF16's instruction, which takes subnormal numbers for zero: there must
/// be none.
template <class S, bool Stream, class T, bool Native = false, class V>
HWY_INLINE void store_as(V v, S* p) {
  using A = Lanes<T>;
  const auto put = [](auto value, auto d, auto* to) SOFTFOLD_LANES_INLINE {
    if constexpr (Stream) {
      hn::Stream(value, d, to);
    } else {
      hn::StoreU(value, d, to);
    }
  };
  if constexpr (std::is_same_v<T, S>) {
    put(v, typename A::D(), p);
#if HWY_TARGET == HWY_SCALAR
  } else {
    *p = fold::narrow<S>(hn::GetLane(v));
  }
#else
  } else if constexpr (std::is_same_v<S, fold::Float16>) {
    const hn::Rebind<hwy::float16_t, typename A::D> half;
    put(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(p));
#if HWY_TARGET == HWY_AVX3
  } else if constexpr (Native) {
    const hn::Rebind<std::uint16_t, typename A::D> half;
    hn::Vec<decltype(half)> narrow;
    asm("vcvtneps2bf16 %1, %0" : "=v"(narrow.raw) : "v"(v.raw));
    put(narrow, half, reinterpret_cast<std::uint16_t*>(p));
#endif
  } else {
    // Highway's own bfloat16 truncates. The 16 bits that go are added to half a last place, ties to even.
    const hn::Rebind<std::uint16_t, typename A::D> half;
    const auto bits = hn::BitCast(typename A::DBits(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(typename A::DBits(), 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(typename A::DBits(), 0x7FFFU))));
#if HWY_TARGET <= HWY_AVX3
    put(hn::TruncateTo(half, rounded), half, reinterpret_cast<std::uint16_t*>(p));
#else
    const hn::RebindToSigned<typename A::D> wide;
    put(hn::DemoteTo(half, hn::BitCast(wide, rounded)), half, reinterpret_cast<std::uint16_t*>(p));
#endif
  }
#endif
}

/// The elements of a run shorter than a vector, padded with -inf.
template <class S>
struct Padded {
  static constexpr int kCount = Lanes<fold::FoldType<S>>::kCount;
  S x[kCount];
  HWY_INLINE Padded(const S* p, int n) {
    for (S& v : x) v = fold::narrow<S>(-fold::infinity<fold::FoldType<S>>());
    std::memcpy(x, p, static_cast<std::size_t>(n) * sizeof(S));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
