// One row of a backward pass: what it adds up, and what it writes. backward.cc decides which thread does what.
#pragma once

#include "cpu/gradient_ops.hpp"
#include "cpu/row_states.hpp"
#include "cpu/sink.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

inline int chunk_size(std::int64_t begin, std::int64_t end) {
  return static_cast<int>(std::min<std::int64_t>(lift::kChunk, end - begin));
}

/// How many of the elements [begin, end) are written next: as many as end at a cache line, so that no line is shared by
/// two runs when they go past the cache.
inline int piece_size(Sink& sink, std::int64_t begin, std::int64_t end) {
  const auto into_line = reinterpret_cast<std::uintptr_t>(sink.begin(begin)) % 64 / size_of(sink.dtype());
  return static_cast<int>(std::min<std::int64_t>(lift::kChunk - static_cast<std::int64_t>(into_line), end - begin));
}

/// Writes +0 where the mask says that nothing exists, among elements [from, to).
inline void clear_missing(const RowProblem& p, const Row& r, Sink& sink, std::int64_t from, std::int64_t to) {
  if (r.mask == nullptr) return;
  const std::int64_t stride = p[Slot::mask].axis_stride;
  for (std::int64_t i = from; i < to; ++i) {
    const std::int64_t begin = i;
    while (i < to && r.mask[i * stride] == 0) ++i;
    if (begin < i) sink.fill(begin, i, 0.);
  }
}

/// y and dy of one row as the operations want them: contiguous, of one dtype, 0 and -0 for what is not there. Read in
/// place where memory already looks like that, else gathered chunk by chunk.
template <class T>
class PairSource {
 public:
  PairSource(const RowProblem& p, const Row& r) : y_(p[Slot::x]), dy_(p[Slot::dy]), row_(r), mask_(p[Slot::mask]) {
    const auto size = static_cast<std::int64_t>(size_of(y_.dtype));
    const bool contiguous = (y_.axis_stride == size && dy_.axis_stride == size) || r.n == 1;
    in_place_ = contiguous && y_.dtype == dy_.dtype && r.mask == nullptr;
  }

  struct Run {
    const void* y;
    const void* dy;
  };
  DType dtype() const { return in_place_ ? y_.dtype : dtype_of<T>(); }
  /// Elements [begin, begin + n), n <= kChunk; `buffers` has room for 2 kChunk.
  Run at(std::int64_t begin, int n, T* buffers) const {
    if (in_place_) return {row_.x + begin * y_.axis_stride, row_.dy + begin * dy_.axis_stride};
    gather(y_, row_.x, begin, n, T(0), buffers);
    gather(dy_, row_.dy, begin, n, -T(0), buffers + lift::kChunk);
    return {buffers, buffers + lift::kChunk};
  }

  /// Whether every y that is there is `value`: then the row has nothing in it.
  bool all_are(T value) const {
    bool all = true;
    with_dtype(y_.dtype, [&]<class S>(S) {
      if constexpr (std::is_same_v<fold::FoldType<S>, T>) {
        for (std::int64_t i = 0; all && i < row_.length; ++i) {
          const bool there = row_.mask == nullptr || row_.mask[i * mask_.axis_stride] != 0;
          all = !there || fold::widen(*reinterpret_cast<const S*>(row_.x + i * y_.axis_stride)) == value;
        }
      }
    });
    return all;
  }

 private:
  void gather(const Operand& from, const char* row, std::int64_t begin, int n, T missing, T* to) const {
    const char* x = row + begin * from.axis_stride;
    with_dtype(from.dtype, [&]<class S>(S) {
      if constexpr (std::is_same_v<fold::FoldType<S>, T>)
        for (int i = 0; i < n; ++i) to[i] = fold::widen(*reinterpret_cast<const S*>(x + i * from.axis_stride));
    });
    if (row_.mask == nullptr) return;
    const char* mask = row_.mask + begin * mask_.axis_stride;
    for (int i = 0; i < n; ++i) to[i] = mask[i * mask_.axis_stride] != 0 ? to[i] : missing;
  }

  const Operand& y_;
  const Operand& dy_;
  const Row& row_;
  const Operand& mask_;
  bool in_place_;
};

/// softmax_backward and log_softmax_backward. Gradient is fold::SoftmaxGradient or fold::LogSoftmaxGradient.
template <class Gradient_, class T_>
class PairWorker {
 public:
  using T = T_;
  using Gradient = Gradient_;
  static constexpr bool kSums = true;

  PairWorker(const RowProblem& p, bool stream)
      : p_(p),
        pass_(p.op == Op::softmax_backward ? gradient_ops<T>().softmax : gradient_ops<T>().log_softmax),
        stream_(stream) {}

  /// What is not there, [length, n) or everything, becomes +0. False if that was everything.
  bool begin(const Row& r) const {
    const bool nothing = PairSource<T>(p_, r).all_are(Gradient::nothing());
    Sink(p_, r).fill(nothing ? 0 : r.length, r.n, 0.);
    return !nothing;
  }

  /// `count` rows. While one is written, the next is added up: so memory is read and written at once.
  void rows(RowCursor& cursor, std::int64_t count) {
    Row row = cursor.row();
    bool live = begin(row);
    T total = live ? sum(row, 0, row.length) : T(0);
    for (; count > 0; --count) {
      if (count > 1) cursor.next();
      const Row next = cursor.row();
      const bool next_live = count > 1 && begin(next);
      const PairSource<T> next_source(p_, next);
      Tree tree;
      std::int64_t summed = next_live ? 0 : next.length;
      const auto sum_more = [&] {
        if (summed >= next.length) return;
        tree.push(chunk_sum(next_source, summed, next.length));
        summed += lift::kChunk;
      };
      if (live) write(row, 0, row.length, total, sum_more);
      while (summed < next.length) sum_more();
      row = next, live = next_live, total = tree.root();
    }
  }

  /// The sum of the leaves [from, to), by the canonical tree; from a multiple of a power of two of chunks that is no
  /// less than to - from.
  T sum(const Row& r, std::int64_t from, std::int64_t to) {
    const PairSource<T> source(p_, r);
    Tree tree;
    for (std::int64_t i = from; i < to; i += lift::kChunk) tree.push(chunk_sum(source, i, to));
    return tree.root();
  }

  /// Elements [from, to) of dx; `after` is called after each chunk.
  template <class After>
  void write(const Row& r, std::int64_t from, std::int64_t to, T sum, const After& after) {
    const PairSource<T> source(p_, r);
    Sink sink(p_, r);
    const auto write = pass_.write[index(source.dtype())][index(sink.dtype())];
    const T scale = static_cast<T>(r.scale);
    for (std::int64_t i = from; i < to;) {
      const int n = piece_size(sink, i, to);
      const auto run = source.at(i, n, gathered_);
      write(run.y, run.dy, n, sum, scale, sink.begin(i), stream_);
      sink.end(i, n);
      i += n;
      after();
    }
    clear_missing(p_, r, sink, from, to);
  }

 private:
  using Tree = lift::TreeBuilder<fold::Sum<T>>;

  T chunk_sum(const PairSource<T>& source, std::int64_t begin, std::int64_t end) {
    const int n = chunk_size(begin, end);
    const auto run = source.at(begin, n, gathered_);
    return pass_.sum[index(source.dtype())](run.y, run.dy, n, room_, stream_);
  }

  const RowProblem& p_;
  const typename GradientOps<T>::Pass& pass_;
  bool stream_;
  alignas(64) T gathered_[2 * lift::kChunk];
  alignas(64) T room_[lift::kChunk];
};

/// logsumexp_backward.
template <class T_>
class LseWorker {
 public:
  using T = T_;
  static constexpr bool kSums = false;

  LseWorker(const RowProblem& p, bool stream) : p_(p), ops_(gradient_ops<T>()), stream_(stream) {}

  bool begin(const Row& r) const {
    Sink sink(p_, r);
    const fold::Normaliser<T> row(state_of<T>(stored_state(r)));
    sink.fill(row.regular ? r.length : 0, r.n, 0.);
    // In place the mask still says where a NaN belongs, x no longer does.
    if (!row.regular && !row.empty) sink.fill_present(0, r.length, fold::canonical_nan<double>());
    return row.regular;
  }

  void rows(RowCursor& cursor, std::int64_t count) {
    for (; count > 0; --count, cursor.next()) {
      const Row r = cursor.row();
      if (begin(r)) write(r, 0, r.length, T(0), [] {});
    }
  }

  template <class After>
  void write(const Row& r, std::int64_t from, std::int64_t to, T, const After&) {
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    Sink sink(p_, r);
    const fold::LogSumExpGradient<T> row{fold::Normaliser<T>(state_of<T>(stored_state(r))), source.c(), dlse(r),
                                         static_cast<T>(r.scale)};
    const auto write = ops_.logsumexp[index(source.dtype())][index(sink.dtype())];
    for (std::int64_t i = from; i < to;) {
      const int n = piece_size(sink, i, to);
      write(source.at(i, n, gathered_), n, row, sink.begin(i), stream_);
      sink.end(i, n);
      i += n;
    }
    clear_missing(p_, r, sink, from, to);
  }

 private:
  T dlse(const Row& r) const {
    return with_dtype(p_[Slot::row].dtype, [&]<class S>(S) -> T {
      return fold::narrow<T>(fold::widen(*reinterpret_cast<const S*>(r.result)));
    });
  }

  const RowProblem& p_;
  const GradientOps<T>& ops_;
  bool stream_;
  alignas(64) T gathered_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
