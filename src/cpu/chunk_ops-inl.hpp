// Writing a row once its state is known, over SIMD lanes, and the table of a target. Read once per target.
#include "cpu/chunk_ops.hpp"
#include "softfold/lift/lanes_chunk.hpp"

#include <algorithm>
#include <cstring>

#if defined(SOFTFOLD_CPU_CHUNK_OPS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_CPU_CHUNK_OPS_INL_HPP
#undef SOFTFOLD_CPU_CHUNK_OPS_INL_HPP
#else
#define SOFTFOLD_CPU_CHUNK_OPS_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

inline constexpr std::uintptr_t kLine = 64;

/// y[from, to) = value(i) past the cache, from where y lies at a line to as far as whole lines go; returns that place.
template <class T, class S, class Value>
HWY_INLINE std::int64_t stream_lines(std::int64_t from, std::int64_t to, S* y, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  constexpr std::int64_t line = std::max<std::int64_t>(static_cast<std::int64_t>(kLine / sizeof(S)), w);
  std::int64_t i = from;
  for (; i + line <= to; i += line)
    for (std::int64_t j = i; j < i + line; j += w) store_as<S, true, T>(value(j), y + j);
  return i;
}

/// y[0..n) = value(i) stored as S, vector by vector, n >= kCount. value(i) may read x where y lies at i, no further:
/// the last vector, which overlaps its neighbour, is taken first and stored last. With Stream, whole cache lines go
/// past the cache, and nothing else touches them: a store through the cache would wait for the line to be read back.
template <bool Stream, class T, class S, class Value>
HWY_INLINE void write_vectors(std::int64_t n, S* y, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  const auto last = value(n - w);
  std::int64_t i = 0;
  S vector[w];
  if constexpr (Stream) {
    const auto into_line = reinterpret_cast<std::uintptr_t>(y) % kLine;
    const auto head = static_cast<std::int64_t>((kLine - into_line) % kLine / sizeof(S));
    if (into_line % sizeof(S) == 0 && n >= head + w) {
      for (; i + w <= head; i += w) store_as<S, false, T>(value(i), y + i);
      if (i < head) {
        store_as<S, false, T>(value(i), vector);
        std::memcpy(y + i, vector, static_cast<std::size_t>(head - i) * sizeof(S));
      }
      i = stream_lines<T>(head, n, y, value);
    }
  }
  for (; i + w <= n; i += w) store_as<S, false, T>(value(i), y + i);
  if (i == n) return;
  if constexpr (Stream) {
    store_as<S, false, T>(last, vector);
    std::memcpy(y + i, vector + (w - (n - i)), static_cast<std::size_t>(n - i) * sizeof(S));
  } else {
    store_as<S, false, T>(last, y + (n - w));
  }
}

/// The same for any S and n. Values that have no vector form of their own as S leave through a small buffer.
template <class T, class S, class Value>
HWY_INLINE void write_values(std::int64_t n, S* y, bool stream, const Value& value) {
  constexpr int w = Lanes<T>::kCount;
  if constexpr (kStores<T, S>) {
    if (stream) {
      write_vectors<true, T>(n, y, value);
    } else {
      write_vectors<false, T>(n, y, value);
    }
  } else {
    HWY_ALIGN T buffer[w];
    const auto put = [&](std::int64_t i, std::int64_t count) HWY_ATTR {
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

template <class S, class T>
HWY_INLINE void write_scaled(const T* terms, std::int64_t n, T multiplier, T below, S* y, bool stream) {
  using A = Lanes<T>;
  const auto factor = A::set(multiplier);
  // Where no product can be too small to be written, that is not looked for.
  if (multiplier >= fold::Real<T>::kSmallest / below) {
    return write_values<T>(
        n, y, stream, [&](std::int64_t i) HWY_ATTR { return A::mul(hn::LoadU(typename A::D(), terms + i), factor); });
  }
  const auto least = A::set(fold::Real<T>::kSmallest);
  write_values<T>(n, y, stream, [&](std::int64_t i) HWY_ATTR {
    return A::at_least(A::mul(hn::LoadU(typename A::D(), terms + i), factor), least);
  });
}

template <class S, class T>
void write_terms(const T* terms, std::int64_t n, T multiplier, T below, void* to, bool stream) {
  S* y = static_cast<S*>(to);
  if (n >= Lanes<T>::kCount) return write_scaled(terms, n, multiplier, below, y, stream);
  for (std::int64_t i = 0; i < n; ++i) y[i] = fold::narrow<S>(fold::Normaliser<T>::probability(terms[i], multiplier));
}

template <class S, class T = fold::FoldType<S>>
std::int64_t small_rows(const char* x, std::int64_t x_stride, char* y, std::int64_t y_stride, std::int64_t rows, int n,
                        T c, T* terms, lift::Guess<T>& guess, bool stream) {
  constexpr int w = Lanes<T>::kCount;
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    const auto row = reduce_chunk<true>(reinterpret_cast<const S*>(x), n, c, terms, guess);
    if (HWY_UNLIKELY(fold::is_nan(row.frame))) return r;
    const T reciprocal = fold::Scalar<T>::div(T(1), row.state.d);
    const T distance = row.frame - fold::LogSumExp<T>::narrow(row.state.m);
    const T multiplier = fold::Scalar<T>::times_power_of_two(reciprocal, distance);
    if (n >= w) {
      write_scaled(terms, n, multiplier, row.least, reinterpret_cast<S*>(y), stream);
    } else {
      S vector[w];
      write_scaled(terms, w, multiplier, row.least, vector, false);
      std::memcpy(y, vector, static_cast<std::size_t>(n) * sizeof(S));
    }
  }
  return rows;
}

template <class S, class Y, class T = fold::FoldType<S>>
void write(const void* from, std::int64_t n, T c, const fold::Normaliser<T>& row, void* to, bool stream) {
  using A = Lanes<T>;
  using Lse = fold::LogSumExp<T>;
  const S* x = static_cast<const S*>(from);
  Y* y = static_cast<Y*>(to);
  const bool fast = Lse::is_fast(row.m);
  const T multiplier = row.multiplier(row.m);
  if (fast && n >= A::kCount) {
    const auto vc = A::set(c), vm = A::set(Lse::narrow(row.m));
    const auto factor = A::set(multiplier), least = A::set(fold::Real<T>::kSmallest);
    return write_values<T>(n, y, stream, [&](std::int64_t i) HWY_ATTR {
      return A::at_least(A::mul(term<A>(load(x + i), vc, vm), factor), least);
    });
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const T v = fold::widen(x[i]);
    const T t = fast ? fold::term<fold::Scalar<T>>(v, c, Lse::narrow(row.m)) : fold::term_wide(v, c, row.m);
    y[i] = fold::narrow<Y>(fold::Normaliser<T>::probability(t, multiplier));
  }
}

template <class S, class Y, class T = fold::FoldType<S>>
void write_log(const void* from, std::int64_t n, const fold::LogNormaliser<T>& row, void* to, bool stream) {
  using A = Lanes<T>;
  const S* x = static_cast<const S*>(from);
  Y* y = static_cast<Y*>(to);
  if (row.fast && n >= A::kCount) {
    const auto half_c = A::set(row.half_c), half_frame = A::set(-row.half_frame);
    const auto half_log2_d = A::set(row.half_log2_d), two_kappa = A::set(row.two_kappa);
    return write_values<T>(n, y, stream, [&](std::int64_t i) HWY_ATTR {
      const auto lp = A::mul(two_kappa, A::sub(A::fma(load(x + i), half_c, half_frame), half_log2_d));
      return hn::IfThenElseZero(hn::Lt(lp, A::zero()), lp);
    });
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = fold::narrow<Y>(row.log_probability(fold::widen(x[i])));
}

template <bool Keep, class S, class T = fold::FoldType<S>>
lift::Reduced<T> reduce(const void* x, int n, T c, T* terms, lift::Guess<T>& guess) {
  return reduce_chunk<Keep>(static_cast<const S*>(x), n, c, terms, guess);
}

template <class S, class T>
void add_source(cpu::ChunkOps<T>& ops) {
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.reduce[i] = reduce<false, S>;
  ops.reduce_keeping[i] = reduce<true, S>;
  ops.small_rows[i] = small_rows<S>;
  const auto add = [&]<class Y>(Y) {
    constexpr auto j = cpu::index(cpu::dtype_of<Y>());
    ops.write[i][j] = write<S, Y>;
    ops.write_log[i][j] = write_log<S, Y>;
    ops.write_terms[j] = write_terms<Y, T>;
  };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

template <class T>
cpu::ChunkOps<T> make_chunk_ops() {
  using Lse = fold::LogSumExp<T>;
  static_assert(kTermsRoom<T> <= cpu::ChunkOps<T>::kTermsRoom);
  cpu::ChunkOps<T> ops{};
  add_source<T>(ops);
  if constexpr (sizeof(T) == 4) {
    add_source<fold::Float16>(ops);
    add_source<fold::BFloat16>(ops);
  }
  // Here, and not in the schedules, because std::fma is one instruction only where the target has it.
  ops.log_normaliser = [](const typename Lse::State& s, const fold::Scale<T>& scale)
                           HWY_ATTR { return fold::LogNormaliser<T>(s, scale); };
  ops.finish = [](const typename Lse::State& s, const fold::Scale<T>& scale) HWY_ATTR { return Lse{scale}.finish(s); };
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
