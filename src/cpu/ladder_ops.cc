// The first rungs of the ladder over SIMD lanes. Each lane sums its own elements, and the lanes meet at the end: the
// order of the additions follows the vector's width, so these bits are not portable ones.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ladder_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/ladder_ops.hpp"
#include "softfold/lift/lanes.hpp"

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {
namespace {

template <class T>
using RowState = typename fold::LogSumExp<T>::State;

/// 2^t with no maximum taken off: the last factor of 2 is what overflows. NaN for NaN and +inf, in which split() sees
/// no number.
template <class A>
HWY_INLINE typename A::V naive_term(typename A::V x, typename A::V c) {
  using T = typename A::Element;
  const auto s = split<A>(x, c);
  const auto most = A::set(sizeof(T) == 4 ? T(128) : T(1024));
  const auto k = A::sub(A::least(s.n, most), A::set(T(1)));
  const auto term = A::mul(A::times_power_of_two(exp2_fraction<A>(s.f), k), A::set(T(2)));
  return A::if_at_most(x, A::set(std::numeric_limits<T>::max()), term, A::set(fold::canonical_nan<T>()));
}

/// The same names over vectors and over the elements that are left at a row's end.
template <class T>
struct Wide : Lanes<T> {
  static HWY_INLINE auto least(typename Lanes<T>::V a, typename Lanes<T>::V b) { return hn::Min(a, b); }
};
template <class T>
struct One : fold::Scalar<T> {
  static HWY_INLINE T least(T a, T b) { return a < b ? a : b; }
};

/// Calls wide(i) for whole vectors and one(i) for the rest.
template <class T, class WideBody, class OneBody>
HWY_INLINE void sweep(std::int64_t n, const WideBody& wide, const OneBody& one) {
  std::int64_t i = 0;
  for (; i + Lanes<T>::kCount <= n; i += Lanes<T>::kCount) wide(i);
  for (; i < n; ++i) one(i);
}

template <class T>
RowState<T> naive_sum(const T* x, std::int64_t n, T c) {
  using A = Wide<T>;
  auto lanes = A::zero();
  T rest = 0;
  sweep<T>(
      n, [&](std::int64_t i) HWY_ATTR { lanes = A::add(lanes, naive_term<A>(load(x + i), A::set(c))); },
      [&](std::int64_t i) HWY_ATTR { rest += naive_term<One<T>>(x[i], c); });
  return {0, A::halve(lanes) + rest};
}

template <class T>
void naive_write(const T* x, std::int64_t n, T c, const RowState<T>& row, T* y) {
  using A = Wide<T>;
  const T r = T(1) / row.d;
  sweep<T>(
      n,
      [&](std::int64_t i)
          HWY_ATTR { hn::StoreU(A::mul(naive_term<A>(load(x + i), A::set(c)), A::set(r)), typename A::D(), y + i); },
      [&](std::int64_t i) HWY_ATTR { y[i] = naive_term<One<T>>(x[i], c) * r; });
}

/// Whether x holds a NaN; every rung must notice, and a maximum does not.
template <class A, class V>
HWY_INLINE auto or_nan(V seen, V x) {
  return hn::Or(seen, hn::VecFromMask(typename A::D(), hn::IsNaN(x)));
}

template <class T>
RowState<T> safe_sum(const T* x, std::int64_t n, T c) {
  using A = Wide<T>;
  using Lse = fold::LogSumExp<T>;
  auto most = A::set(-fold::infinity<T>()), nan = A::zero();
  T largest = -fold::infinity<T>();
  bool any_nan = false;
  sweep<T>(
      n,
      [&](std::int64_t i) HWY_ATTR {
        const auto v = load(x + i);
        most = A::max(most, v);
        nan = or_nan<A>(nan, v);
      },
      [&](std::int64_t i) HWY_ATTR {
        any_nan |= fold::is_nan(x[i]);
        largest = x[i] > largest ? x[i] : largest;
      });
  const T top = A::max_of_lanes(most);
  largest = top > largest ? top : largest;
  any_nan |= !hn::AllFalse(typename A::D(), hn::MaskFromVec(nan));
  if (any_nan || !(std::fabs(largest) < fold::infinity<T>()) || !Lse::frame(largest, c).fast)
    return lift::reduce_row(x, n, c);  // special values and far frames: by the definition
  const double frame = Lse::frame(largest, c).m;
  const T m = Lse::narrow(frame);
  auto lanes = A::zero();
  T rest = 0;
  sweep<T>(
      n, [&](std::int64_t i) HWY_ATTR { lanes = A::add(lanes, term<A>(load(x + i), A::set(c), A::set(m))); },
      [&](std::int64_t i) HWY_ATTR { rest += fold::term<fold::Scalar<T>>(x[i], c, m); });
  return {frame, A::halve(lanes) + rest};
}

template <class T>
RowState<T> online_sum(const T* x, std::int64_t n, T c) {
  using A = Wide<T>;
  using Lse = fold::LogSumExp<T>;
  const Lse lse{{0, c}};
  auto m = A::set(-fold::infinity<T>()), d = A::zero(), nan = A::zero();
  typename Lse::State row = Lse::identity();
  const auto one = A::set(T(1));
  sweep<T>(
      n,
      [&](std::int64_t i) HWY_ATTR {
        const auto v = load(x + i);
        const auto s = split<A>(v, A::set(c));
        const auto next = A::max(m, s.n);
        const auto kept = A::mul(d, A::times_power_of_two(one, A::sub(m, next)));
        d = A::add(kept, A::times_power_of_two(exp2_fraction<A>(s.f), A::sub(s.n, next)));
        m = next;
        nan = or_nan<A>(nan, v);
      },
      [&](std::int64_t i) HWY_ATTR { row = lse.push(row, x[i]); });
  alignas(64) T ms[A::kCount], ds[A::kCount];
  hn::Store(m, typename A::D(), ms);
  hn::Store(d, typename A::D(), ds);
  if (!hn::AllFalse(typename A::D(), hn::MaskFromVec(nan))) return Lse::not_a_number();
  for (int i = 0; i < A::kCount && n >= A::kCount; ++i) {
    // A lane of -inf alone, or one whose product overflowed: by the definition.
    if (!(ms[i] >= fold::Real<T>::kFastLowest && ms[i] <= fold::Real<T>::kFastHighest))
      return lift::reduce_row(x, n, c);
    row = Lse::merge(row, {static_cast<double>(ms[i]) / fold::Real<T>::kUnit, ds[i]});
  }
  return row;
}

template <class T>
void write(const T* x, std::int64_t n, T c, const RowState<T>& row, T* y) {
  using A = Wide<T>;
  using Lse = fold::LogSumExp<T>;
  const fold::Normaliser<T> normaliser(row);
  const T r = normaliser.multiplier(row.m);
  if (!Lse::is_fast(row.m)) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = fold::Normaliser<T>::probability(fold::term_wide(x[i], c, row.m), r);
    return;
  }
  const T m = Lse::narrow(row.m), least = fold::Normaliser<T>::least_term(r);
  sweep<T>(
      n,
      [&](std::int64_t i) HWY_ATTR {
        const auto t = A::at_least(term<A>(load(x + i), A::set(c), A::set(m)), A::set(least));
        hn::StoreU(A::mul(t, A::set(r)), typename A::D(), y + i);
      },
      [&](std::int64_t i)
          HWY_ATTR { y[i] = fold::Normaliser<T>::probability(fold::term<fold::Scalar<T>>(x[i], c, m), r); });
}

template <class T>
cpu::LadderOps<T> make_ladder_ops() {
  return {naive_sum<T>, safe_sum<T>, online_sum<T>, naive_write<T>, write<T>};
}

}  // namespace

cpu::LadderOps<float> ladder_ops_float() { return make_ladder_ops<float>(); }
cpu::LadderOps<double> ladder_ops_double() { return make_ladder_ops<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/target_choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

SOFTFOLD_TABLE_OF(LadderOps, ladder_ops, float)
SOFTFOLD_TABLE_OF(LadderOps, ladder_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
