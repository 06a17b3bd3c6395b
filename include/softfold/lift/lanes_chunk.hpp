// One chunk to one state over SIMD lanes: lift::reduce_chunk, bit for bit. Read once per target, as lanes.hpp is.
#include "softfold/lift/lanes.hpp"

#include <bit>

#if defined(SOFTFOLD_LIFT_LANES_CHUNK_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_LIFT_LANES_CHUNK_HPP
#undef SOFTFOLD_LIFT_LANES_CHUNK_HPP
#else
#define SOFTFOLD_LIFT_LANES_CHUNK_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// Room that reduce_chunk needs behind `terms`: kChunk numbers and a vector's overhang.
template <class T>
inline constexpr int kTermsRoom = lift::kChunk + Lanes<T>::kCount;

/// What a look at a run of elements finds: the largest, and whether there may be a NaN (a sum that is NaN; a sum that
/// overflows before it meets -inf raises a false alarm, which only costs a second look).
template <class T>
struct Look {
  T top;
  bool doubtful;
};

/// n >= Lanes::kCount.
template <class S>
HWY_INLINE auto look(const S* x, int n) {
  using T = fold::FoldType<S>;
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  auto top0 = load(x), sum0 = top0;
  auto top1 = load(x + (n - w)), sum1 = top1;
  auto top2 = top0, top3 = top1, sum2 = A::zero(), sum3 = A::zero();
  int i = w;
  for (; i + 4 * w <= n; i += 4 * w) {
    const auto a = load(x + i), b = load(x + i + w), c = load(x + i + 2 * w), d = load(x + i + 3 * w);
    top0 = A::max(top0, a), top1 = A::max(top1, b), top2 = A::max(top2, c), top3 = A::max(top3, d);
    sum0 = A::add(sum0, a), sum1 = A::add(sum1, b), sum2 = A::add(sum2, c), sum3 = A::add(sum3, d);
  }
  for (; i + w <= n; i += w) {
    const auto a = load(x + i);
    top0 = A::max(top0, a), sum0 = A::add(sum0, a);
  }
  const auto sum = A::add(A::add(sum0, sum1), A::add(sum2, sum3));
  const auto top = A::max(A::max(top0, top1), A::max(top2, top3));
  // A NaN in the sum never leaves it; it also stands in `sum` when the maxima have lost it.
  const bool doubtful = !hn::AllTrue(typename A::D(), hn::Eq(sum, sum));
  return Look<T>{A::max_of_lanes(top), doubtful};
}

/// The terms of n = count * kCount elements from x on, in a fast frame, folded by halving as they come: count a power
/// of two of at least 8. With `Keep`, they are stored too.
template <bool Keep, class S, class T>
HWY_INLINE T fold_terms(const S* x, int n, T c, T m, T* terms) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const auto vc = A::set(c), vm = A::set(m);
  const int stride = n / 8;
  const auto at = [&](int i) HWY_ATTR {
    const auto t = term<A>(load(x + i), vc, vm);
    if constexpr (Keep) hn::Store(t, typename A::D(), terms + i);
    return t;
  };
  HWY_ALIGN T partial[lift::kChunk / 8];
  for (int i = 0; i < stride; i += w) {
    // Element i meets i + n/2, then i + n/4, then i + n/8.
    const auto a = A::add(at(i), at(i + 4 * stride));
    const auto b = A::add(at(i + 2 * stride), at(i + 6 * stride));
    const auto ab = A::add(a, b);
    const auto e = A::add(at(i + stride), at(i + 5 * stride));
    const auto f = A::add(at(i + 3 * stride), at(i + 7 * stride));
    hn::Store(A::add(ab, A::add(e, f)), typename A::D(), partial + i);
  }
  for (int half = stride / 2; half >= w; half /= 2) {
    for (int i = 0; i < half; i += w)
      hn::Store(A::add(hn::Load(typename A::D(), partial + i), hn::Load(typename A::D(), partial + half + i)),
                typename A::D(), partial + i);
  }
  return A::halve(hn::Load(typename A::D(), partial));
}

/// Folds n terms by halving without changing them. Behind them lies room up to kTermsRoom, which is overwritten.
template <class T>
HWY_INLINE T halve_terms(T* terms, int n) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  const int whole = std::max(w, static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))));
  for (int i = n; i < whole; i += w) hn::StoreU(A::zero(), D(), terms + i);
  if (whole == w) return A::halve(hn::Load(D(), terms));
  HWY_ALIGN T partial[lift::kChunk / 2];
  const T* from = terms;
  for (int half = whole / 2; half >= w; half /= 2) {
    for (int i = 0; i < half; i += w)
      hn::Store(A::add(hn::Load(D(), from + i), hn::Load(D(), from + half + i)), D(), partial + i);
    from = partial;
  }
  return A::halve(hn::Load(D(), partial));
}

/// A chunk whose frame is outside the fast range, an element at a time. The terms are not kept.
template <class S, class T>
HWY_NOINLINE typename fold::LogSumExp<T>::State reduce_chunk_wide(const S* x, int n, T c) {
  T wide[lift::kChunk], terms[lift::kChunk];
  for (int i = 0; i < n; ++i) wide[i] = fold::widen(x[i]);
  return lift::reduce_chunk(wide, n, c, terms);
}

/// The largest finite element of a run in which look() was doubtful or saw an infinity; a special state otherwise.
template <class S, class T>
HWY_NOINLINE bool is_special(const S* x, int n, T c, T* top, typename fold::LogSumExp<T>::State* special) {
  using Lse = fold::LogSumExp<T>;
  T wide[lift::kChunk];
  for (int i = 0; i < n; ++i) wide[i] = fold::widen(x[i]);
  const auto scan = lift::scan_chunk(wide, n, c);
  *top = scan.extreme;
  if (!scan.nan && !scan.plus && scan.any) return false;
  *special = scan.nan ? Lse::not_a_number() : scan.plus ? Lse::plus_infinity() : Lse::identity();
  return true;
}

/// The state of x[0..n), 0 < n <= kChunk, for a finite c > 0. `terms`, aligned and with room for kTermsRoom numbers,
/// gets every element's term in the chunk's frame if that frame is fast, else nothing of use; with Keep = false it is
/// scratch. An -inf is an element that is not there.
template <bool Keep, class S, class T = fold::FoldType<S>>
HWY_INLINE typename fold::LogSumExp<T>::State reduce_chunk(const S* x, int n, T c, T* terms) {
  using Lse = fold::LogSumExp<T>;
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  if (n < w) {
    const Padded<S> padded(x, n);
    return reduce_chunk<Keep>(padded.x, w, c, terms);
  }
  const auto seen = look(x, n);
  T top = seen.top;
  if (HWY_UNLIKELY(seen.doubtful || std::fabs(top) == fold::infinity<T>())) {
    typename Lse::State special;
    if (is_special(x, n, c, &top, &special)) return special;
  }
  const auto frame = Lse::frame(top, c);
  if (HWY_UNLIKELY(!frame.fast)) return reduce_chunk_wide(x, n, c);
  const T m = Lse::narrow(frame.m);
  if ((n & (n - 1)) == 0 && n >= 8 * w) return {frame.m, fold_terms<Keep>(x, n, c, m, terms)};
  const auto vc = A::set(c), vm = A::set(m);
  const auto last = term<A>(load(x + (n - w)), vc, vm);
  for (int i = 0; i + w <= n; i += w) hn::Store(term<A>(load(x + i), vc, vm), typename A::D(), terms + i);
  hn::StoreU(last, typename A::D(), terms + (n - w));
  return {frame.m, halve_terms(terms, n)};
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
