// Writing a row once its state is known, over SIMD lanes. Read once per target.
#include "cpu/chunk_ops.hpp"
#include "softfold/lift/lanes_chunk.hpp"

#include <algorithm>

#if defined(SOFTFOLD_CPU_WRITE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_CPU_WRITE_INL_HPP
#undef SOFTFOLD_CPU_WRITE_INL_HPP
#else
#define SOFTFOLD_CPU_WRITE_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

inline constexpr std::uintptr_t kLine = 64;
template <class S>
inline constexpr int kLineOf = static_cast<int>(kLine / sizeof(S));

/// Elements from y to the next cache line.
template <class S>
HWY_INLINE int to_line(const S* y) {
  return static_cast<int>((kLine - reinterpret_cast<std::uintptr_t>(y) % kLine) % kLine / sizeof(S));
}

/// Whether values say that they may be rounded natively (store_as).
template <class Value>
inline constexpr bool kNativeOf = false;
template <class Value>
requires Value::kNative inline constexpr bool kNativeOf<Value> = true;

/// y[from..to), at most a line, of n >= kCount results, and no byte beside it: a line next to it may be on its way to
/// memory, and would be fetched again. Nothing beyond n is asked for.
template <class T, class S, class Value>
HWY_INLINE void write_part(std::int64_t from, std::int64_t to, std::int64_t n, S* y, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  HWY_ALIGN S buffer[kLineOf<S> + 2 * w];
  S* part = buffer + w;
  std::int64_t i = from;
  for (int k = 0; k < kLineOf<S> && i < to && i + w <= n; k += w, i += w)
    store_as<S, false, T, kNativeOf<Value>>(value(i), part + k);
  // The bounds say what the loop has left, for compilers that do not see it.
  if (i < to)
    store_as<S, false, T, kNativeOf<Value>>(value(n - w),
                                            part + std::clamp<std::int64_t>(n - w - from, -w, kLineOf<S>));
  std::memcpy(y + from, part, static_cast<std::size_t>(to - from) * sizeof(S));
}

/// Vectors' worth of elements that is a whole number of cache lines.
template <class T, class S>
inline constexpr int kRun = std::max(kLineOf<S>, Lanes<T>::kCount);

/// y[i .. i + kRun) = value(i) stored as S past the cache.
template <class T, class S, class Value>
HWY_INLINE void stream_run(std::int64_t i, S* y, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<S, fold::BFloat16> && kNativeOf<Value>) {
    const auto low = value(i), high = value(i + w);
    const hn::ScalableTag<std::uint16_t> d;
    hn::Vec<decltype(d)> both;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both.raw) : "v"(low.raw), "v"(high.raw));
    return hn::Stream(both, d, reinterpret_cast<std::uint16_t*>(y + i));
  }
#endif
  for (std::int64_t j = i; j < i + kRun<T, S>; j += w) store_as<S, true, T, kNativeOf<Value>>(value(j), y + j);
}

/// y[0..n) = value(i) stored as S, vector by vector, n >= kCount, past the cache but for the ends of lines. y is not x.
template <class T, class S, class Value>
HWY_INLINE void write_lines(std::int64_t n, S* y, const Value& value) {
  std::int64_t i = std::min<std::int64_t>(to_line(y), n);
  if (i != 0) write_part<T>(0, i, n, y, value);
  for (; i + kRun<T, S> <= n; i += kRun<T, S>) stream_run<T>(i, y, value);
  if (i != n) write_part<T>(i, n, n, y, value);
}

/// y[0..n) = value(i) stored as S, vector by vector, n >= kCount. value(i) may read x where y lies at i, no further:
/// the last vector, which overlaps its neighbour, is taken first and stored last.
template <class T, class S, class Value>
HWY_INLINE void write_vectors(std::int64_t n, S* y, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  const auto last = value(n - w);
  for (std::int64_t i = 0; i + w <= n; i += w) store_as<S, false, T, kNativeOf<Value>>(value(i), y + i);
  store_as<S, false, T, kNativeOf<Value>>(last, y + (n - w));
}

/// The same for any S and n. Values that have no vector form of their own as S leave through a small buffer.
template <class T, class S, class Value>
HWY_INLINE void write_values(std::int64_t n, S* y, bool stream, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  if constexpr (kStores<T, S>) {
    if (stream) {
      write_lines<T>(n, y, value);
    } else {
      write_vectors<T>(n, y, value);
    }
  } else {
    HWY_ALIGN T buffer[w];
    const auto put = [&](std::int64_t i, std::int64_t count) SOFTFOLD_LANES_INLINE {
      hn::Store(value(i), typename Lanes<T>::D(), buffer);
      for (std::int64_t j = 0; j < count; ++j) y[i + j] = fold::narrow<S>(buffer[j]);
    };
    std::int64_t i = 0;
    for (; i + w <= n; i += w) put(i, w);
    // The last, partial vector: its first elements are written already, and read no more.
    if (i < n) {
      hn::Store(value(n - w), typename Lanes<T>::D(), buffer);
      for (; i < n; ++i) y[i] = fold::narrow<S>(buffer[i - (n - w)]);
    }
  }
}

/// Stored terms times what brings them to the row's frame. A term whose product is too small to be written is looked
/// for, unless there can be none. No result is subnormal, so they may be rounded as `Native` says (store_as).
template <class T, bool MayFlush, bool Native>
struct ScaledTerms {
  using A = Lanes<T>;
  static constexpr bool kNative = Native;
  const T* terms;
  typename A::V factor, least;

  HWY_INLINE ScaledTerms(const T* terms_, T multiplier)
      : terms(terms_), factor(A::set(multiplier)), least(A::set(fold::Normaliser<T>::least_term(multiplier))) {}
  HWY_INLINE typename A::V operator()(std::int64_t i) const {
    const auto t = hn::LoadU(typename A::D(), terms + i);
    return A::mul(MayFlush ? A::at_least(t, least) : t, factor);
  }
  HWY_INLINE const T* from() const { return terms; }
};

/// The probabilities of x in the row's frame, if that is fast; none is subnormal. `Far`: x is asked for ahead of time.
template <class S, bool Far, bool Native, class T = fold::FoldType<S>>
struct RowValues {
  using A = Lanes<T>;
  static constexpr bool kNative = Native;
  const S* x;
  ExactTerms<T> term;
  typename A::V factor, least;

  HWY_INLINE RowValues(const S* x_, T c, const fold::Normaliser<T>& row)
      : RowValues(x_, c, row.reciprocal, fold::LogSumExp<T>::narrow(row.m)) {}
  HWY_INLINE typename A::V operator()(std::int64_t i) const {
    typename A::V z;
    return (*this)(i, &z);
  }
  /// z: n of the element, as term's kMagic and frame have it.
  HWY_INLINE typename A::V operator()(std::int64_t i, typename A::V* z) const {
    if constexpr (Far) prefetch(x + i);
    return A::mul(A::at_least(term(load(x + i), z), least), factor);
  }
  HWY_INLINE const S* from() const { return x; }

 private:
  HWY_INLINE RowValues(const S* x_, T c, T reciprocal, T m)
      : RowValues(x_, c, m, lift::even_frame(m), lift::even_frame(m) == m ? reciprocal : T(0.5) * reciprocal) {}
  HWY_INLINE RowValues(const S* x_, T c, T m, T s, T multiplier)
      : x(x_), term(c, m, s), factor(A::set(multiplier)), least(A::set(fold::Normaliser<T>::least_term(multiplier))) {}
};

/// (first p) second, of x's probabilities p in a row whose frame is fast; the canonical NaN for what cannot be in that
/// row, and for any other. All that it needs stays in registers.
template <class S, bool Far, class T = fold::FoldType<S>>
struct MultipleValues {
  using A = Lanes<T>;
  RowValues<S, Far, false> p;
  typename A::V highest, first, second;

  HWY_INLINE MultipleValues(const S* x, T c, const fold::Normaliser<T>& row, T first_, T second_)
      : p(x, c, row), highest(A::set(highest_z(row))), first(A::set(first_)), second(A::set(second_)) {}
  HWY_INLINE typename A::V operator()(std::int64_t i) const {
    typename A::V z;
    const auto value = A::mul(A::mul(first, p(i, &z)), second);
    const auto is_one = hn::And(hn::Le(z, highest), hn::Eq(value, value));
    return hn::IfThenElse(is_one, value, A::set(fold::canonical_nan<T>()));
  }

 private:
  static HWY_INLINE T highest_z(const fold::Normaliser<T>& row) {
    const T m = fold::LogSumExp<T>::narrow(row.m);
    return fold::Real<T>::kMagic + (m - lift::even_frame(m));
  }
};
/// n >= kCount. `stream`: x is asked for ahead of time, too.
template <class S, class Y, class T>
HWY_INLINE void write_multiples(const S* x, std::int64_t n, T c, const fold::Normaliser<T>& row, T first, T second,
                                Y* y, bool stream) {
  if (stream) return write_values<T>(n, y, true, MultipleValues<S, true>(x, c, row, first, second));
  write_values<T>(n, y, false, MultipleValues<S, false>(x, c, row, first, second));
}

/// The log-probabilities of x, if the row's frame is fast. `Native`: none is subnormal.
template <class S, bool Far, bool Native, class T = fold::FoldType<S>>
struct LogRowValues {
  using A = Lanes<T>;
  static constexpr bool kNative = Native;
  const S* x;
  typename A::V half_c, half_frame, half_log2_d, two_kappa;

  HWY_INLINE LogRowValues(const S* x_, const fold::LogNormaliser<T>& row)
      : x(x_),
        half_c(A::set(row.half_c)),
        half_frame(A::set(row.half_frame)),
        half_log2_d(A::set(row.half_log2_d)),
        two_kappa(A::set(row.two_kappa)) {}
  HWY_INLINE typename A::V operator()(std::int64_t i) const {
    if constexpr (Far) prefetch(x + i);
    const auto lp = A::mul(two_kappa, A::sub(A::fms(load(x + i), half_c, half_frame), half_log2_d));
    return hn::IfThenElseZero(hn::Lt(lp, A::zero()), lp);
  }
  HWY_INLINE const S* from() const { return x; }
};

/// Whether no log-probability of a row is subnormal: half of log2 d, unless it is 0, is at least 2^-25, since d is a
/// float, and the difference of two floats of which one is so large is 0 or at least 2^-49.
template <class T>
HWY_INLINE bool none_subnormal(const fold::LogNormaliser<T>& row) {
  return row.half_log2_d != T(0) && row.two_kappa >= T(0.5);
}

/// Whether a product of a term and a multiplier may be too small to be written; no term lies between 0 and `least`.
template <class T>
HWY_INLINE bool may_flush(T multiplier, T least) {
  return !(multiplier >= fold::Real<T>::kSmallest / least);
}

/// n >= kCount.
template <class S, bool Native, class T>
HWY_INLINE void write_scaled(const T* terms, std::int64_t n, T multiplier, T least, S* y, bool stream) {
  if (may_flush(multiplier, least)) {
    write_values<T>(n, y, stream, ScaledTerms<T, true, Native>(terms, multiplier));
  } else {
    write_values<T>(n, y, stream, ScaledTerms<T, false, Native>(terms, multiplier));
  }
}

template <class S, bool Native, class T>
HWY_NOINLINE void write_terms(const T* terms, std::int64_t n, T multiplier, T least, void* to, bool stream) {
  S* y = static_cast<S*>(to);
  if (n >= Lanes<T>::kCount) return write_scaled<S, Native>(terms, n, multiplier, least, y, stream);
  for (std::int64_t i = 0; i < n; ++i) y[i] = fold::narrow<S>(fold::Normaliser<T>::probability(terms[i], multiplier));
}

template <class S, class Y, bool Native, class T = fold::FoldType<S>>
HWY_NOINLINE void write(const void* from, std::int64_t n, T c, const fold::Normaliser<T>& row, void* to, bool stream) {
  using Lse = fold::LogSumExp<T>;
  const S* x = static_cast<const S*>(from);
  Y* y = static_cast<Y*>(to);
  const bool fast = Lse::is_fast(row.m);
  if (fast && n >= Lanes<T>::kCount) {
    if (stream) return write_values<T>(n, y, true, RowValues<S, true, Native>(x, c, row));
    return write_values<T>(n, y, false, RowValues<S, false, Native>(x, c, row));
  }
  const T multiplier = row.multiplier(row.m);
  for (std::int64_t i = 0; i < n; ++i) {
    const T v = fold::widen(x[i]);
    const T t = fast ? fold::term<fold::Scalar<T>>(v, c, Lse::narrow(row.m)) : fold::term_wide(v, c, row.m);
    y[i] = fold::narrow<Y>(fold::Normaliser<T>::probability(t, multiplier));
  }
}

template <class S, class Y, bool Native, class T = fold::FoldType<S>>
HWY_NOINLINE void write_log(const void* from, std::int64_t n, const fold::LogNormaliser<T>& row, void* to,
                            bool stream) {
  if constexpr (Native) {
    if (!none_subnormal(row)) return write_log<S, Y, false>(from, n, row, to, stream);
  }
  const S* x = static_cast<const S*>(from);
  Y* y = static_cast<Y*>(to);
  if (row.fast && n >= Lanes<T>::kCount) {
    if (stream) return write_values<T>(n, y, true, LogRowValues<S, true, Native>(x, row));
    return write_values<T>(n, y, false, LogRowValues<S, false, Native>(x, row));
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = fold::narrow<Y>(row.log_probability(fold::widen(x[i])));
}

/// y = value, written in the fold's own precision by `write_exact` and rounded from there: for the pairs of dtypes that
/// are too rare to have a loop of their own. n <= kChunk.
template <class Y, class T, class WriteExact>
void write_rounded(std::int64_t n, void* to, const WriteExact& write_exact) {
  T exact[lift::kChunk];
  write_exact(exact);
  Y* y = static_cast<Y*>(to);
  for (std::int64_t i = 0; i < n; ++i) y[i] = fold::narrow<Y>(exact[i]);
}

template <class S, class Y, bool Native, class T = fold::FoldType<S>>
void write_as(const void* x, std::int64_t n, T c, const fold::Normaliser<T>& row, void* y, bool stream) {
  if constexpr (std::is_same_v<Y, S> || std::is_same_v<Y, T>) {
    write<S, Y, Native>(x, n, c, row, y, stream);
  } else {
    write_rounded<Y, T>(n, y, [&](T* exact) { write<S, T, false>(x, n, c, row, exact, false); });
  }
}

template <class S, class Y, bool Native, class T = fold::FoldType<S>>
void write_log_as(const void* x, std::int64_t n, const fold::LogNormaliser<T>& row, void* y, bool stream) {
  if constexpr (std::is_same_v<Y, S> || std::is_same_v<Y, T>) {
    write_log<S, Y, Native>(x, n, row, y, stream);
  } else {
    write_rounded<Y, T>(n, y, [&](T* exact) { write_log<S, T, false>(x, n, row, exact, false); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
