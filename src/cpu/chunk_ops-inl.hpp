// The table of a target: reducing and writing chunks, alone and side by side. Read once per target.
#include "cpu/write-inl.hpp"

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

template <bool Keep, class S, class T = fold::FoldType<S>>
lift::Reduced<T> reduce(const void* x, int n, T c, T* terms, lift::Guess<T>& guess, bool far) {
  return reduce_chunk<Keep>(static_cast<const S*>(x), n, c, terms, guess, far);
}

template <class S, class T = fold::FoldType<S>>
bool covers(const void* x, int n, T c, double m) {
  if (n < Lanes<T>::kCount) return n == 0;
  const auto seen = look(static_cast<const S*>(x), n);
  return !seen.doubtful && (seen.top == -fold::infinity<T>() || fold::LogSumExp<T>::frame(seen.top, c).m <= m);
}

/// Whether rows of n elements are worth one loop for reading and writing: never where arithmetic is slower than memory.
template <class S>
constexpr bool are_beside(std::int64_t n) {
  return HWY_TARGET != HWY_SCALAR && n >= 4 * kRun<fold::FoldType<S>, S>;
}

/// y[0..n) = value(i), past the cache, a few lines at a time while something else is read.
template <class S, class T, class Value>
struct Written {
  S* y;
  std::int64_t n;
  const Value& value;
  std::int64_t at;  ///< what lies before is written; a cache line begins here

  HWY_INLINE Written(S* y_, std::int64_t n_, const Value& value_) : y(y_), n(n_), value(value_), at(to_line(y_)) {
    if (at != 0) write_part<T>(0, at, n, y, value);
  }
  HWY_INLINE void lines(std::int64_t end) {
    for (; at < end && at + kRun<T, S> <= n; at += kRun<T, S>) stream_run<T>(at, y, value);
  }
  /// What the lines from at + i on are made of is in the second-level cache, or nearer.
  HWY_INLINE void prefetch(int i) const {
    const auto* from = value.from() + at + i;
    for (int j = 0; j < kRun<T, S>; j += kLineOf<std::remove_cvref_t<decltype(*from)>>) prefetch_near(from + j);
  }
  /// Some processors hold a load back while a store is on its way whose address has the same last 20 bits; a store past
  /// the cache takes long. Where the next lines would meet so what is read from x on, some are written before it.
  HWY_INLINE void keep_clear_of(const S* x) {
    constexpr std::uintptr_t alike = std::uintptr_t{1} << 20, near = 384, lead = 512;
    const auto distance = reinterpret_cast<std::uintptr_t>(y + at) - reinterpret_cast<std::uintptr_t>(x);
    if (HWY_UNLIKELY(distance % alike < near)) lines(at + static_cast<std::int64_t>(lead / sizeof(S)));
  }
  HWY_INLINE void finish() {
    lines(n);
    if (at < n) write_part<T>(at, n, n, y, value);
    at = n;
  }
};

/// Reduces the chunk x[0..n) and writes as much, a line of each in turn: memory is then read and written all the time,
/// which two loops, one after the other, do not achieve. `terms` may be where the values come from. The caller has
/// taken the guess.
template <class S, class T, class Value>
HWY_INLINE lift::Reduced<T> reduce_beside(const S* x, int n, T c, T* terms, lift::Guess<T>& guess,
                                          Written<S, T, Value>& to) {
  using D = typename Lanes<T>::D;
  constexpr int w = Lanes<T>::kCount, run = kRun<T, S>;
  return reduce_chunk_guessing<true>(x, n, c, terms, guess, [&](GuessedTerms<T>& term) SOFTFOLD_LANES_INLINE {
    to.keep_clear_of(x);
    const int both = static_cast<int>(std::min<std::int64_t>(n, to.n - to.at));
    int i = 0;
    for (; i + run <= both; i += run) {
      prefetch(x + i);
      to.prefetch(i);
      stream_run<T>(to.at + i, to.y, to.value);
      for (int j = i; j < i + run; j += w) hn::Store(term(load(x + j)), D(), terms + j);
    }
    to.at += i;
    if (to.n - to.at < run) to.finish();  // before its last terms are overwritten
    for (; i + w <= n; i += w) hn::Store(term(load(x + i)), D(), terms + i);
    if (n % w != 0) hn::StoreU(term(load(x + (n - w))), D(), terms + (n - w));
    return halve_terms(terms, n);
  });
}

/// Writes what is behind, alone.
template <class S, bool Native, class T = fold::FoldType<S>>
void write_behind(const cpu::Behind<T>& b) {
  switch (b.kind) {
    case cpu::Behind<T>::nothing: return;
    case cpu::Behind<T>::terms:
      return write_terms<S, Native>(static_cast<const T*>(b.from), b.n, b.multiplier, b.least, b.y, true);
    case cpu::Behind<T>::row: return write<S, S, Native>(b.from, b.n, b.c, *b.normaliser, b.y, true);
    case cpu::Behind<T>::log_row: return write_log<S, S, Native>(b.from, b.n, *b.log_normaliser, b.y, true);
  }
}

template <class S, bool Native, class T = fold::FoldType<S>>
void reduce_and_write(const cpu::Ahead<T>& a, lift::Guess<T>& guess, const cpu::Behind<T>& b) {
  const S* x = static_cast<const S*>(a.x);
  const auto reduce_alone = [&](std::int64_t i, T* terms) {
    a.chunks[i / lift::kChunk] = reduce_chunk<true>(
        x + i, static_cast<int>(std::min<std::int64_t>(lift::kChunk, a.n - i)), a.c, terms, guess, true);
  };
  const std::int64_t keep = a.keep ? lift::kChunk : 0, n_behind = b.n;
  const auto beside = [&](const auto& value) SOFTFOLD_LANES_INLINE {
    Written<S, T, std::remove_cvref_t<decltype(value)>> to(static_cast<S*>(b.y), n_behind, value);
    T* terms = a.terms;
    for (std::int64_t i = 0; i < a.n; i += lift::kChunk, terms += keep) {
      const int n = static_cast<int>(std::min<std::int64_t>(lift::kChunk, a.n - i));
      if (are_beside<S>(n) && guess.take()) {
        a.chunks[i / lift::kChunk] = reduce_beside(x + i, n, a.c, terms, guess, to);
      } else {
        to.lines(i + n);
        if (to.n - to.at < kRun<T, S>) to.finish();
        reduce_alone(i, terms);
      }
    }
    to.finish();
  };
  if (are_beside<S>(n_behind)) {
    if (b.kind == cpu::Behind<T>::terms && !may_flush(b.multiplier, b.least))
      return beside(ScaledTerms<T, false, Native>(static_cast<const T*>(b.from), b.multiplier));
    if (b.kind == cpu::Behind<T>::row && fold::LogSumExp<T>::is_fast(b.normaliser->m))
      return beside(RowValues<S, false, Native>(static_cast<const S*>(b.from), b.c, *b.normaliser));
    if (b.kind == cpu::Behind<T>::log_row && b.log_normaliser->fast) {
      const S* from = static_cast<const S*>(b.from);
      if constexpr (Native) {
        if (none_subnormal(*b.log_normaliser)) return beside(LogRowValues<S, false, true>(from, *b.log_normaliser));
      }
      return beside(LogRowValues<S, false, false>(from, *b.log_normaliser));
    }
  }
  write_behind<S, Native>(b);
  T* terms = a.terms;
  for (std::int64_t i = 0; i < a.n; i += lift::kChunk, terms += keep) reduce_alone(i, terms);
}

/// A row of at most kChunk elements that is reduced and not yet written.
template <class S, bool Native, class T>
struct SmallRow {
  T* terms;
  S* y;
  T multiplier, least;

  HWY_INLINE void reduced(const lift::Reduced<T>& r) {
    const T distance = r.frame - fold::LogSumExp<T>::narrow(r.state.m);
    multiplier = fold::Scalar<T>::times_power_of_two(fold::Scalar<T>::div(T(1), r.state.d), distance);
    least = r.least;
  }
  HWY_INLINE void write(int n, bool stream) const {
    constexpr int w = Lanes<T>::kCount;
    if (n >= w) return write_scaled<S, Native>(terms, n, multiplier, least, y, stream);
    S vector[w];
    write_scaled<S, Native>(terms, w, multiplier, least, vector, false);
    std::memcpy(y, vector, static_cast<std::size_t>(n) * sizeof(S));
  }
};

/// Rows that come from a cache and stay in it: one after the other.
template <class S, bool Native, class T = fold::FoldType<S>>
std::int64_t small_rows(const char* x, std::int64_t x_stride, char* y, std::int64_t y_stride, std::int64_t rows, int n,
                        T c, T* terms, lift::Guess<T>& guess) {
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    const auto reduced = reduce_chunk<true>(reinterpret_cast<const S*>(x), n, c, terms, guess);
    if (HWY_UNLIKELY(fold::is_nan(reduced.frame))) return r;
    SmallRow<S, Native, T> row{terms, reinterpret_cast<S*>(y), T(0), T(0)};
    row.reduced(reduced);
    row.write(n, false);
  }
  return rows;
}

/// Rows that come from memory and go there: each is written while the next one is read.
template <class S, bool Native, class T = fold::FoldType<S>>
std::int64_t small_rows_far(const char* x, std::int64_t x_stride, char* y, std::int64_t y_stride, std::int64_t rows,
                            int n, T c, T* terms, lift::Guess<T>& guess) {
  // Both rows' terms lie in one place: those behind are read just before those ahead replace them.
  SmallRow<S, Native, T> behind{terms, nullptr, T(0), T(0)}, ahead = behind;
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride) {
    const S* from = reinterpret_cast<const S*>(x);
    ahead.y = reinterpret_cast<S*>(y);
    const bool beside = r != 0 && are_beside<S>(n) && !may_flush(behind.multiplier, behind.least) && guess.take();
    lift::Reduced<T> reduced;
    if (beside) {
      const ScaledTerms<T, false, Native> value(behind.terms, behind.multiplier);
      Written<S, T, ScaledTerms<T, false, Native>> to(behind.y, n, value);
      reduced = reduce_beside(from, n, c, terms, guess, to);
      to.finish();
    } else {
      if (r != 0) behind.write(n, true);
      reduced = reduce_chunk<true>(from, n, c, terms, guess, true);
    }
    if (HWY_UNLIKELY(fold::is_nan(reduced.frame))) return r;
    ahead.reduced(reduced);
    behind = ahead;
  }
  if (rows != 0) behind.write(n, true);
  return rows;
}

/// `Native`: bfloat16 results leave through AVX512-BF16 (store_as).
template <class S, class T, bool Native>
void add_source(cpu::ChunkOps<T>& ops) {
  constexpr bool native = Native && std::is_same_v<S, fold::BFloat16>;
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.reduce[i] = reduce<false, S>;
  ops.reduce_keeping[i] = reduce<true, S>;
  ops.reduce_and_write[i] = reduce_and_write<S, native>;
  ops.covers[i] = covers<S>;
  ops.write_behind[i] = write_behind<S, native>;
  ops.small_rows[i] = small_rows<S, native>;
  ops.small_rows_far[i] = ops.small_rows[i];
  if constexpr (HWY_TARGET != HWY_SCALAR) ops.small_rows_far[i] = small_rows_far<S, native>;
  const auto add = [&]<class Y>(Y) {
    constexpr auto j = cpu::index(cpu::dtype_of<Y>());
    constexpr bool native_result = Native && std::is_same_v<Y, fold::BFloat16>;
    ops.write[i][j] = write_as < S, Y, native_result && native > ;
    ops.write_log[i][j] = write_log_as < S, Y, native_result && native > ;
    ops.write_terms[j] = write_terms<Y, native_result, T>;
  };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

template <class T, bool Native = false>
cpu::ChunkOps<T> make_chunk_ops() {
  using Lse = fold::LogSumExp<T>;
  static_assert(kTermsRoom<T> <= cpu::ChunkOps<T>::kTermsRoom);
  cpu::ChunkOps<T> ops{};
  add_source<T, T, Native>(ops);
  if constexpr (sizeof(T) == 4) {
    add_source<fold::Float16, T, Native>(ops);
    add_source<fold::BFloat16, T, Native>(ops);
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
