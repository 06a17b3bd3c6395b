// One chunk to one state over SIMD lanes: lift::reduce_chunk, bit for bit. Read once per target, as lanes.hpp is.
//
// The definition looks for the largest element first, because its n is the frame of the others. Here a frame is
// guessed, from the chunk before, and the look is left out: bits do not depend on the frame as long as nothing is
// flushed in it. What the guess needs is found on the way (the largest and smallest n); when it was wrong, the chunk is
// done again, exactly.
#include "softfold/lift/guess.hpp"
#include "softfold/lift/lanes.hpp"

#include <algorithm>
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

/// Terms of one chunk in the frame s, an even integer: 2^f * 2^(n - s). kMagic - s is added instead of kMagic, so that
/// n - s stands in the lowest bits of the sum z, ready to be added to an exponent. s is even because the parity of n
/// must decide ties as it does in fold::split.
template <class T>
struct TermsIn {
  using A = Lanes<T>;
  using V = typename A::V;
  V c, base;

  HWY_INLINE TermsIn(T c_, T s) : c(A::set(c_)), base(A::set(fold::Real<T>::kMagic - s)) {}

  HWY_INLINE V term(V x, V* z) const {
    *z = A::fma(x, c, base);
    const V p = exp2_fraction<A>(A::fms(x, c, A::sub(*z, base)));
    const typename A::DBits bits;
    const auto shift = hn::ShiftLeft<A::kMantissaBits>(hn::BitCast(bits, *z));
    return hn::BitCast(typename A::D(), hn::Add(hn::BitCast(bits, p), shift));
  }
};

/// In the frame of the largest element itself: what is too small is flushed, as the definition does.
template <class T>
struct ExactTerms : TermsIn<T> {
  using A = Lanes<T>;
  using typename TermsIn<T>::V;
  V least;

  HWY_INLINE ExactTerms(T c_, T m, T s)
      : TermsIn<T>(c_, s), least(A::set(fold::Real<T>::kMagic + (m - s) + fold::Real<T>::kFlush)) {}
  HWY_INLINE V operator()(V x) const {
    V z;
    return (*this)(x, &z);
  }
  HWY_INLINE V operator()(V x, V* z) const {
    const V t = this->term(x, z);
    return hn::IfThenElseZero(hn::Ge(*z, least), t);
  }
};

/// In a guessed frame: nothing is flushed, and the extremes of z tell whether that was right. A NaN or an infinity is
/// among them too.
template <class T>
struct GuessedTerms : TermsIn<T> {
  using A = Lanes<T>;
  using typename TermsIn<T>::V;
  /// Within this of s nothing is flushed, neither in s nor in the frame of the largest element.
  static constexpr T kReach = sizeof(T) == 4 ? 62 : 500;
  /// Below every term.
  static constexpr T kLeast = sizeof(T) == 4 ? T(0x1p-63) : T(0x1p-501);

  HWY_INLINE GuessedTerms(T c_, T s) : TermsIn<T>(c_, s) {}

  HWY_INLINE V operator()(V x) {
    V z;
    const V t = this->term(x, &z);
    note(z);
    return t;
  }

  /// The largest z; NaN if the guess was wrong.
  HWY_INLINE T largest() const {
    T most, least;
    if constexpr (sizeof(T) == 4) {
      most = fold::bits_as<T>(hn::GetLane(hn::MaxOfLanes(DSeen(), high_)));
      least = fold::bits_as<T>(hn::GetLane(hn::MinOfLanes(DSeen(), low_)));
    } else {
      most = A::max_of_lanes(high_);
      least = -A::max_of_lanes(A::neg(low_));
      if (!hn::AllTrue(typename A::D(), hn::Eq(sum_, sum_))) return fold::canonical_nan<T>();
    }
    return most <= kHighest && least >= kLowest ? most : fold::canonical_nan<T>();
  }

 private:
  static constexpr T kLowest = fold::Real<T>::kMagic - kReach, kHighest = fold::Real<T>::kMagic + kReach;
  // As an unsigned integer, a negative float or a NaN of either sign is larger than any that may stand here.
  using DSeen = std::conditional_t<sizeof(T) == 4, typename A::DBits, typename A::D>;
  using Seen = hn::Vec<DSeen>;

  static HWY_INLINE Seen seen(V z) { return hn::BitCast(DSeen(), z); }
  HWY_INLINE void note(V z) {
    high_ = hn::Max(high_, seen(z));
    low_ = hn::Min(low_, seen(z));
    if constexpr (sizeof(T) == 8) sum_ = A::add(sum_, z);
  }

  Seen high_ = seen(A::set(kLowest)), low_ = seen(A::set(kHighest));
  V sum_ = A::zero();  // of doubles, which Max and Min do not take NaN out of
};

/// Eight vectors, `stride` elements apart from i on, folded by halving: i meets i + 4 stride, then i + 2 stride, then
/// i + stride. Ordered so that few are alive at a time.
template <class A, class At>
HWY_INLINE typename A::V fold_eight(const At& at, int i, int stride) {
  const auto a = A::add(at(i), at(i + 4 * stride));
  const auto b = A::add(at(i + 2 * stride), at(i + 6 * stride));
  const auto ab = A::add(a, b);
  const auto c = A::add(at(i + stride), at(i + 5 * stride));
  const auto d = A::add(at(i + 3 * stride), at(i + 7 * stride));
  return A::add(ab, A::add(c, d));
}

/// Folds what lies in a[0 .. 2 half) by halving, in place; half a multiple of kCount, or 0 for one vector.
template <class T>
HWY_INLINE T halve_vectors(T* a, int half) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  for (; half >= w; half /= 2) {
    for (int i = 0; i < half; i += w) hn::Store(A::add(hn::Load(D(), a + i), hn::Load(D(), a + half + i)), D(), a + i);
  }
  return A::halve(hn::Load(D(), a));
}

/// The terms of x[0..n), folded by halving as they come: n a power of two of at least 8 vectors. With Keep they are
/// stored too.
template <bool Keep, class S, class T, class Terms>
HWY_INLINE T fold_terms(const S* x, int n, T* terms, Terms& term) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  const int stride = n / 8;
  const auto at = [&](int i) SOFTFOLD_LANES_INLINE {
    const auto t = term(load(x + i));
    if constexpr (Keep) hn::Store(t, D(), terms + i);
    return t;
  };
  HWY_ALIGN T partial[lift::kChunk / 8];
  for (int i = 0; i < stride; i += w) hn::Store(fold_eight<A>(at, i, stride), D(), partial + i);
  return halve_vectors(partial, stride / 2);
}

/// Folds n stored terms by halving without changing them. Room behind them, up to the next power of two and a vector,
/// is overwritten.
template <class T>
HWY_INLINE T halve_terms(T* terms, int n) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  const int whole = std::max(w, static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))));
  for (int i = n; i < whole; i += w) hn::StoreU(A::zero(), D(), terms + i);
  HWY_ALIGN T partial[lift::kChunk / 8];
  const auto at = [terms](int i) SOFTFOLD_LANES_INLINE { return hn::Load(D(), terms + i); };
  if (whole < 8 * w) {
    for (int i = 0; i < whole; i += w) hn::Store(at(i), D(), partial + i);
    return halve_vectors(partial, whole / 2);
  }
  const int stride = whole / 8;
  for (int i = 0; i < stride; i += w) hn::Store(fold_eight<A>(at, i, stride), D(), partial + i);
  return halve_vectors(partial, stride / 2);
}

/// Asks for what lies kNear bytes behind p, for the first-level cache. An address past the end of memory is harmless.
inline constexpr int kNear = 1024;
template <class S>
HWY_INLINE void prefetch_near(const S* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + kNear, 0, 3);
}

/// The same for what comes from memory: it is asked for twice, first into the second-level cache, where more requests
/// can be under way than in the first. Measured (docs/performance.md): from 4 KiB ahead on it does not matter how far.
inline constexpr int kAhead = 8192;
template <class S>
HWY_INLINE void prefetch(const S* x) {
  __builtin_prefetch(reinterpret_cast<const char*>(x) + kAhead, 0, 2);
  prefetch_near(x);
}

/// The sum of the terms of x[0..n), n >= kCount. `far`: x comes from memory; then it is read from front to back.
template <bool Keep, class S, class T, class Terms>
HWY_INLINE T sum_terms(const S* x, int n, T* terms, Terms& term, bool far) {
  using D = typename Lanes<T>::D;
  constexpr int w = Lanes<T>::kCount;
  if (!far && (n & (n - 1)) == 0 && n >= 8 * w) return fold_terms<Keep>(x, n, terms, term);
  for (int i = 0; i + w <= n; i += w) {
    if (far) prefetch(x + i);
    hn::Store(term(load(x + i)), D(), terms + i);
  }
  if (n % w != 0) hn::StoreU(term(load(x + (n - w))), D(), terms + (n - w));
  return halve_terms(terms, n);
}

/// The sum of the terms of n < kCount elements. What is noted of the other lanes is the first element again.
template <class S, class T>
HWY_INLINE T sum_few(const Padded<S>& padded, int n, T* terms, GuessedTerms<T>& term) {
  using A = Lanes<T>;
  const typename A::D d;
  const auto exists = hn::FirstN(d, static_cast<std::size_t>(n));
  const auto v = load(padded.x);
  const auto t = hn::IfThenElseZero(exists, term(hn::IfThenElse(exists, v, A::set(hn::GetLane(v)))));
  hn::Store(t, d, terms);
  return A::halve(t);
}

/// What a look at a run of elements finds: the largest, and whether there may be a NaN (their sum is one; a sum that
/// overflows before it meets -inf raises a false alarm, which only costs a second look).
template <class T>
struct Look {
  T top;
  bool doubtful;
};

/// n >= kCount.
template <class S>
HWY_INLINE auto look(const S* x, int n) {
  using T = fold::FoldType<S>;
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  auto top0 = load(x), sum0 = top0;
  auto top1 = load(x + (n - w)), sum1 = top1;
  int i = w;
  for (; i + 2 * w <= n; i += 2 * w) {
    const auto a = load(x + i), b = load(x + i + w);
    top0 = A::max(top0, a), top1 = A::max(top1, b);
    sum0 = A::add(sum0, a), sum1 = A::add(sum1, b);
  }
  if (i + w <= n) {
    const auto a = load(x + i);
    top0 = A::max(top0, a), sum0 = A::add(sum0, a);
  }
  const auto sum = A::add(sum0, sum1);
  return Look<T>{A::max_of_lanes(A::max(top0, top1)), !hn::AllTrue(typename A::D(), hn::Eq(sum, sum))};
}

/// A chunk whose frame is outside the fast range, an element at a time.
template <class S, class T>
HWY_NOINLINE typename fold::LogSumExp<T>::State reduce_chunk_wide(const S* x, int n, T c) {
  T wide[lift::kChunk], terms[lift::kChunk];
  for (int i = 0; i < n; ++i) wide[i] = fold::widen(x[i]);
  return lift::reduce_chunk(wide, n, c, terms);
}

/// Whether there is a NaN among n >= kCount elements.
template <class S>
HWY_NOINLINE bool has_nan(const S* x, int n) {
  using A = Lanes<fold::FoldType<S>>;
  const auto is_number = [x](int i) HWY_ATTR {
    const auto v = load(x + i);
    return hn::AllTrue(typename A::D(), hn::Eq(v, v));
  };
  for (int i = 0; i + A::kCount <= n; i += A::kCount)
    if (!is_number(i)) return true;
  return !is_number(n - A::kCount);
}

/// Room that reduce_chunk needs behind `terms`.
template <class T>
inline constexpr int kTermsRoom = lift::kChunk + Lanes<T>::kCount;

/// The exact way: the largest element, then the terms in its frame. n >= kCount.
template <bool Keep, class S, class T>
HWY_NOINLINE lift::Reduced<T> reduce_chunk_exactly(const S* x, int n, T c, T* terms) {
  using Lse = fold::LogSumExp<T>;
  const auto seen = look(x, n);
  const T top = seen.top;
  const auto special = [](const typename Lse::State& s) { return lift::Reduced<T>{s, fold::canonical_nan<T>(), T(0)}; };
  if (HWY_UNLIKELY(seen.doubtful && has_nan(x, n))) return special(Lse::not_a_number());
  if (HWY_UNLIKELY(std::fabs(top) == fold::infinity<T>()))
    return special(top > T(0) ? Lse::plus_infinity() : Lse::identity());
  const auto frame = Lse::frame(top, c);
  if (HWY_UNLIKELY(!frame.fast)) return {reduce_chunk_wide(x, n, c), fold::canonical_nan<T>(), T(0)};
  const T m = Lse::narrow(frame.m), s = lift::even_frame(m);
  ExactTerms<T> term(c, m, s);
  // s is m or one less: the sum is right but for a factor of 1 or 2.
  const T sum = sum_terms<Keep>(x, n, terms, term, false);
  return {{frame.m, s == m ? sum : T(0.5) * sum}, s, T(0)};
}

/// reduce_chunk for n >= kCount when a guess is to be tried: sum(term) gives the sum of term(x[i]) over the chunk.
template <bool Keep, class S, class T, class Sum>
HWY_INLINE lift::Reduced<T> reduce_chunk_guessing(const S* x, int n, T c, T* terms, lift::Guess<T>& guess,
                                                  const Sum& sum_of) {
  const T s = guess.frame;
  GuessedTerms<T> term(c, s);
  const T sum = sum_of(term);
  const T m = s + (term.largest() - fold::Real<T>::kMagic);
  if (HWY_LIKELY(m >= fold::Real<T>::kFastLowest && m <= fold::Real<T>::kFastHighest)) {
    // A guess that is near enough stays: then the next chunk need not wait for this one's m.
    if (HWY_UNLIKELY(std::fabs(m - s) > GuessedTerms<T>::kReach / 4)) guess.frame = lift::even_frame(m);
    return {{static_cast<double>(m) / fold::Real<T>::kUnit, fold::Scalar<T>::times_power_of_two(sum, s - m)},
            s,
            GuessedTerms<T>::kLeast};
  }
  guess.pause = lift::Guess<T>::kPause;
  return guess.found(reduce_chunk_exactly<Keep>(x, n, c, terms));
}

/// The state of x[0..n), 0 < n <= kChunk, for a finite c > 0; an -inf is an element that is not there. The terms are
/// left in `terms` (aligned, with room for kTermsRoom numbers) if the result names their frame; without Keep it is
/// scratch. `far`: x comes from memory, not from a cache.
template <bool Keep, class S, class T = fold::FoldType<S>>
HWY_INLINE lift::Reduced<T> reduce_chunk(const S* x, int n, T c, T* terms, lift::Guess<T>& guess, bool far = false) {
  if (n < Lanes<T>::kCount) {
    constexpr int w = Lanes<T>::kCount;
    const Padded<S> padded(x, n);
    if (HWY_UNLIKELY(!guess.take())) return guess.found(reduce_chunk_exactly<Keep>(padded.x, w, c, terms));
    const auto sum_of = [&](GuessedTerms<T>& term) SOFTFOLD_LANES_INLINE { return sum_few(padded, n, terms, term); };
    return reduce_chunk_guessing<Keep>(padded.x, w, c, terms, guess, sum_of);
  }
  if (HWY_UNLIKELY(!guess.take())) return guess.found(reduce_chunk_exactly<Keep>(x, n, c, terms));
  return reduce_chunk_guessing<Keep>(x, n, c, terms, guess, [&](GuessedTerms<T>& term) SOFTFOLD_LANES_INLINE {
    return sum_terms<Keep>(x, n, terms, term, far);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
