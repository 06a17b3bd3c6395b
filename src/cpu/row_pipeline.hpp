// Rows that come from memory and go there: while one is read and reduced, the one before it is written, in one
// call, so that memory is read and written all the time.
#pragma once

#include "cpu/row_worker.hpp"

#include <utility>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// Whether every row is contiguous, stored alike in x and y, and scaled by one c > 0, with all of its elements there.
template <class T>
bool is_plain(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (p[Slot::offsets].given || p[Slot::length].given || p[Slot::mask].given || p[Slot::scales].given) return false;
  if (p.causal || !y.given || x.dtype != y.dtype || p.n == 0) return false;
  const T c = fold::make_scale<T>(p.scale).c;
  return (p.n == 1 || (x.axis_stride == size && y.axis_stride == size)) && c > T(0) && c < fold::infinity<T>();
}

template <class T>
class RowPipeline {
 public:
  using Lse = fold::LogSumExp<T>;

  /// How a row is written: from its terms, kept since it was reduced, or from its elements once more.
  enum class From : std::uint8_t { terms, elements };

  /// For a plain problem.
  RowPipeline(const RowProblem& p, Result result, From from, RowWorker<T>& worker)
      : p_(p),
        worker_(worker),
        ops_(chunk_ops<T>()),
        scale_(fold::make_scale<T>(p.scale)),
        result_(result),
        from_(from),
        dtype_(index(p[Slot::x].dtype)),
        size_(static_cast<std::int64_t>(size_of(p[Slot::x].dtype))),
        chunks_(static_cast<std::size_t>(lift::chunk_count(p.n))) {
    Scratch& scratch = thread_scratch();
    terms_ = scratch.get<T>(Scratch::row_terms,
                            (from == From::terms ? chunks_ : 1) * lift::kChunk + ChunkOps<T>::kTermsRoom);
    auto* reduced = scratch.get<lift::Reduced<T>>(Scratch::reduced_chunks, 2 * chunks_);
    ahead_.chunks = reduced;
    behind_.chunks = reduced + chunks_;
    nodes_ = scratch.get<typename Lse::State>(Scratch::nodes, chunks_);
  }

  /// Rows [first, last).
  void run(std::int64_t first, std::int64_t last) {
    for (RowCursor cursor(p_, first); first < last; ++first, cursor.next()) {
      ahead_.row = cursor.row();
      if (reduce()) std::swap(ahead_, behind_);
    }
    for (std::int64_t begin = 0; behind_.regular && begin < p_.n; begin += step())
      ops_.write_behind[dtype_](part(begin));
  }

 private:
  struct InFlight {
    Row row;
    lift::Reduced<T>* chunks;
    bool regular = false;  ///< it is to be written
    T multiplier = 0;      ///< of all of its terms; NaN if each chunk has its own, or they cannot be used
    T least = 0;           ///< no term of it lies between 0 and this
    fold::Normaliser<T> normaliser{Lse::identity()};
    fold::LogNormaliser<T> log_normaliser{Lse::identity(), fold::make_scale<T>(1)};
  };

  /// How much is written at a time of the row behind: all, if one multiplier serves all of it, else a chunk.
  std::int64_t step() const { return fold::is_nan(behind_.multiplier) ? lift::kChunk : p_.n; }

  /// Reduces the row ahead while the one behind is written. False if it is special, and written already.
  bool reduce() {
    const bool keep = from_ == From::terms;
    for (std::int64_t begin = 0; begin < p_.n; begin += step())
      ops_.reduce_and_write[dtype_]({ahead_.row.x + begin * size_, std::min(step(), p_.n - begin), scale_.c,
                                     terms_ + (keep ? begin : 0), keep, ahead_.chunks + begin / lift::kChunk},
                                    worker_.guess(), part(begin));
    ahead_.least = fold::infinity<T>();
    for (std::size_t j = 0; j < chunks_; ++j) {
      nodes_[j] = ahead_.chunks[j].state;
      ahead_.least = std::min(ahead_.least, ahead_.chunks[j].least);
    }
    const auto state = lift::reduce_nodes<Lse>(nodes_, static_cast<std::int64_t>(chunks_));
    behind_.regular = false;
    ahead_.normaliser = fold::Normaliser<T>(state);
    ahead_.regular = ahead_.normaliser.regular;
    if (ahead_.regular) ahead_.multiplier = common_multiplier(ahead_);
    if (!ahead_.regular) {
      worker_.finish(ahead_.row, state);
    } else if (result_ == Result::log_softmax) {
      ahead_.log_normaliser = ops_.log_normaliser(state, scale_);
    }
    return ahead_.regular;
  }

  /// What all chunks' terms are multiplied by, if it is the same.
  T common_multiplier(const InFlight& r) const {
    if (from_ == From::elements) return T(0);
    for (std::size_t j = 1; j < chunks_; ++j)
      if (!(r.chunks[j].frame == r.chunks[0].frame)) return fold::canonical_nan<T>();
    return RowWorker<T>::multiplier_of(r.normaliser, r.chunks[0].frame);
  }

  /// What is written next of the row behind, from the element `begin` on.
  Behind<T> part(std::int64_t begin) const {
    Behind<T> b;
    if (!behind_.regular) return b;
    b.n = std::min(step(), p_.n - begin);
    b.y = behind_.row.y + begin * size_;
    b.from = behind_.row.x + begin * size_;
    b.c = scale_.c;
    b.normaliser = &behind_.normaliser;
    b.log_normaliser = &behind_.log_normaliser;
    b.kind = result_ == Result::log_softmax ? Behind<T>::log_row : Behind<T>::row;
    if (from_ == From::elements) return b;
    b.multiplier = behind_.multiplier;
    if (fold::is_nan(b.multiplier))
      b.multiplier = RowWorker<T>::multiplier_of(behind_.normaliser, behind_.chunks[begin / lift::kChunk].frame);
    if (fold::is_nan(b.multiplier)) return b;
    b.least = behind_.least;
    b.kind = Behind<T>::terms;
    b.from = terms_ + begin;
    return b;
  }

  const RowProblem& p_;
  RowWorker<T>& worker_;
  const ChunkOps<T>& ops_;
  fold::Scale<T> scale_;
  Result result_;
  From from_;
  std::size_t dtype_;
  std::int64_t size_;
  std::size_t chunks_;
  InFlight ahead_, behind_;
  T* terms_;  ///< of both: those behind are read just before those ahead take their place
  typename Lse::State* nodes_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
