// One row, or a part of one: to its state, and from its state to what the operation gives. The schedules
// (row_schedules.hpp) decide which rows, or which parts of a row, are done where.
#pragma once

#include "cpu/scratch.hpp"
#include "cpu/sink.hpp"
#include "cpu/tuning.hpp"

#include <hwy/cache_control.h>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// What leaves, once a row's state is known.
enum class Result : std::uint8_t { softmax, log_softmax, lse, state };

inline bool reads_far(const RowProblem& p) {
  return p.elements > tuning().far_bytes / static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
}

/// Whether y is written past the cache. In place that gains nothing: the line has been read.
inline bool streams(const RowProblem& p) {
  if (!p[Slot::y].given || p[Slot::x].data == p[Slot::y].data) return false;
  const auto size = size_of(p[Slot::x].dtype) + size_of(p[Slot::y].dtype);
  return p.elements > tuning().stream_bytes / static_cast<std::int64_t>(size);
}

/// What one thread needs to work on rows.
template <class T>
class RowWorker {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  using Normaliser = fold::Normaliser<T>;
  using LogNormaliser = fold::LogNormaliser<T>;

  RowWorker(const RowProblem& p, Result result)
      : p_(p),
        result_(result),
        far_(reads_far(p)),
        stream_(streams(p)),
        ops_(chunk_ops<T>()),
        scratch_(thread_scratch()),
        guess_(scratch_.guess<T>()),
        terms_(scratch_.get<T>(Scratch::chunk_terms, ChunkOps<T>::kTermsRoom)) {}
  ~RowWorker() {
    if (stream_) hwy::FlushStream();
  }
  RowWorker(const RowWorker&) = delete;
  RowWorker& operator=(const RowWorker&) = delete;

  /// Softmax in one read: the row's terms stay in the cache between its sum and its write.
  void fused(const Row& r) {
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    const auto chunks = static_cast<std::size_t>(lift::chunk_count(r.length));
    T* terms = scratch_.get<T>(Scratch::row_terms, chunks * lift::kChunk + ChunkOps<T>::kTermsRoom);
    auto* reduced = scratch_.get<lift::Reduced<T>>(Scratch::reduced_chunks, chunks);
    auto* nodes = scratch_.get<State>(Scratch::nodes, chunks);
    const auto reduce = ops_.reduce_keeping[index(source.dtype())];
    for (std::size_t i = 0; i < chunks; ++i) {
      const auto begin = static_cast<std::int64_t>(i) * lift::kChunk;
      const int n = chunk_size(r.length, begin);
      reduced[i] = reduce(source.at(begin, n, gathered_), n, source.c(), terms + begin, guess_, far_);
      nodes[i] = reduced[i].state;
    }
    const Normaliser row(lift::reduce_nodes<Lse>(nodes, static_cast<std::int64_t>(chunks)));
    Sink sink(p_, r);
    if (!row.regular) return fill_special(r, sink, row.empty, 0, r.n);
    const auto write = ops_.write_terms[index(sink.dtype())];
    for (std::size_t i = 0; i < chunks; ++i) {
      const auto begin = static_cast<std::int64_t>(i) * lift::kChunk;
      const int n = chunk_size(r.length, begin);
      const T multiplier = multiplier_of(row, reduced[i].frame);
      if (fold::is_nan(multiplier)) {
        write_chunk(source, sink, row, begin, n);
        continue;
      }
      write(terms + begin, n, multiplier, reduced[i].least, sink.begin(begin), stream_);
      sink.end(begin, n);
    }
    sink.fill(r.length, r.n, 0.);
  }

  /// Softmax of rows that lie alike, of at most kChunk elements, all of which exist: how many of them were done.
  std::int64_t small_rows(const Row& first, std::int64_t x_stride, std::int64_t y_stride, std::int64_t rows, T c) {
    const auto run = (stream_ ? ops_.small_rows_far : ops_.small_rows)[index(p_[Slot::x].dtype)];
    return run(first.x, x_stride, first.y, y_stride, rows, static_cast<int>(first.n), c, terms_, guess_);
  }

  /// The state of the elements [begin, end) of a row; begin is a multiple of kChunk.
  State reduce(const Row& r, std::int64_t begin, std::int64_t end) {
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    const auto reduce = ops_.reduce[index(source.dtype())];
    end = std::min(end, r.length);
    lift::TreeBuilder<Lse> tree;
    for (std::int64_t i = begin; i < end; i += lift::kChunk) {
      const int n = chunk_size(end, i);
      tree.push(reduce(source.at(i, n, gathered_), n, source.c(), terms_, guess_, far_).state);
    }
    return tree.root();
  }

  /// Writes the results [begin, end) of a row (or of a shard of one) whose state is s.
  void write(const Row& r, const State& s, std::int64_t begin, std::int64_t end) {
    const auto scale = fold::make_scale<T>(r.scale);
    const Source<T> source(p_, r, scale);
    Sink sink(p_, r);
    const Normaliser row(s);
    end = std::min(end, r.n);
    if (!row.regular) return fill_special(r, sink, row.empty, begin, end);
    const std::int64_t present = std::clamp(r.length, begin, end);
    if (result_ == Result::softmax) {
      for (std::int64_t i = begin; i < present; i += lift::kChunk)
        write_chunk(source, sink, row, i, chunk_size(present, i));
    } else {
      auto log_row = ops_.log_normaliser(s, scale);
      log_row.set_c(source.c());
      for (std::int64_t i = begin; i < present; i += lift::kChunk)
        write_chunk(source, sink, log_row, i, chunk_size(present, i));
    }
    sink.fill(present, end, missing());
  }

  /// The same for a state that was given, not found here: what it does not cover becomes NaN.
  void write_given(const Row& r, const State& s, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t run = 16 * lift::kChunk;  // what has been looked at is still in the cache when it is written
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    const auto covers = ops_.covers[index(source.dtype())];
    end = std::min(end, r.n);
    for (std::int64_t i = begin, j = begin; i < end; i = j) {
      const std::int64_t most = std::min(end, i + run);
      for (; j < most; j += lift::kChunk) {
        const int n = chunk_size(std::max(j, r.length), j);
        if (!covers(source.at(j, n, gathered_), n, source.c(), s.m)) break;
      }
      if (j == i) {
        j = std::min(end, i + lift::kChunk);
        write_doubtful(r, s, source, i, static_cast<int>(j - i));
      } else {
        write(r, s, i, j);
      }
    }
  }

  /// What the operation gives for a whole row whose state is s.
  void finish(const Row& r, const State& s) {
    switch (result_) {
      case Result::state: return write_state(r, s);
      case Result::lse: return write_lse(r, ops_.finish(s, fold::make_scale<T>(r.scale)));
      default: return write(r, s, 0, r.n);
    }
  }

  /// What an operation's own fold of a chunk is given.
  lift::Guess<T>& guess() { return guess_; }
  T* terms() { return terms_; }
  bool far() const { return far_; }

  /// What a chunk's stored terms are multiplied by; NaN if they cannot be used: there are none, the row's frame is not
  /// fast, or the chunk lies so far below it that results may be flushed.
  static T multiplier_of(const Normaliser& row, T frame) {
    constexpr T far = sizeof(T) == 4 ? -70 : -900;
    if (!Lse::is_fast(row.m)) return fold::canonical_nan<T>();
    const T distance = frame - Lse::narrow(row.m);
    if (!(distance >= far)) return fold::canonical_nan<T>();
    return fold::Scalar<T>::times_power_of_two(row.reciprocal, distance);
  }

 private:
  static int chunk_size(std::int64_t end, std::int64_t begin) {
    return static_cast<int>(std::min<std::int64_t>(lift::kChunk, end - begin));
  }
  double missing() const { return result_ == Result::softmax ? 0. : -fold::infinity<double>(); }

  /// write_given of n elements from `begin` on, one by one. y may be x, so what is not covered is noted first.
  void write_doubtful(const Row& r, const State& s, const Source<T>& source, std::int64_t begin, int n) {
    const int present = chunk_size(std::clamp(r.length, begin, begin + n), begin);
    const Lse fold{{r.scale, source.c()}};
    std::array<bool, lift::kChunk> covered;
    with_dtype(source.dtype(), [&]<class S>(S) {
      if constexpr (std::is_same_v<fold::FoldType<S>, T>) {
        const auto* x = static_cast<const S*>(source.at(begin, present, gathered_));
        for (int i = 0; i < present; ++i) covered[static_cast<std::size_t>(i)] = fold.covers(s, fold::widen(x[i]));
      }
    });
    write(r, s, begin, begin + n);
    Sink sink(p_, r);
    for (int i = 0; i < present; ++i)
      if (!covered[static_cast<std::size_t>(i)]) sink.fill(begin + i, begin + i + 1, fold::canonical_nan<double>());
  }

  void write_chunk(const Source<T>& source, Sink& sink, const Normaliser& row, std::int64_t begin, int n) {
    ops_.write[index(source.dtype())][index(sink.dtype())](source.at(begin, n, gathered_), n, source.c(), row,
                                                           sink.begin(begin), stream_);
    sink.end(begin, n);
  }
  void write_chunk(const Source<T>& source, Sink& sink, const LogNormaliser& row, std::int64_t begin, int n) {
    ops_.write_log[index(source.dtype())][index(sink.dtype())](source.at(begin, n, gathered_), n, row,
                                                               sink.begin(begin), stream_);
    sink.end(begin, n);
  }

  /// The elements [begin, end) of an empty row, or of one that holds +inf or NaN.
  void fill_special(const Row& r, Sink& sink, bool empty, std::int64_t begin, std::int64_t end) {
    const double nan = fold::canonical_nan<double>();
    if (empty) return sink.fill(begin, end, p_.empty == Empty::nan ? nan : missing());
    sink.fill(begin, end, missing());
    sink.fill_present(begin, std::clamp(r.length, begin, end), nan);
  }

  void write_state(const Row& r, const State& s) {
    auto* to = reinterpret_cast<double*>(r.states);
    to[0] = s.m;
    to[1] = static_cast<double>(s.d);
    to[2] = r.scale;
    to[3] = fold::Real<T>::kDigits;
  }

  void write_lse(const Row& r, T lse) {
    with_dtype(p_[Slot::row].dtype, [&]<class S>(S) { *reinterpret_cast<S*>(r.result) = fold::narrow<S>(lse); });
  }

  const RowProblem& p_;
  Result result_;
  bool far_, stream_;
  const ChunkOps<T>& ops_;
  Scratch& scratch_;
  lift::Guess<T>& guess_;
  T* terms_;
  alignas(64) T gathered_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
