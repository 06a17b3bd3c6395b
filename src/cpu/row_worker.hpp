// One row, start to end: to its state, and from its state to what the operation gives. The schedules
// (row_schedules.hpp) decide which rows, or which parts of a row, run where.
#pragma once

#include "cpu/scratch.hpp"
#include "cpu/sink.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// What leaves, once a row's state is known.
enum class Result : std::uint8_t { softmax, log_softmax, lse, state };

template <class T>
class RowWorker {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  using Tree = lift::TreeBuilder<Lse>;

  /// The longest row whose terms are kept between its sum and its write.
  static constexpr std::int64_t kFusedLimit = (std::int64_t{1} << 20) / static_cast<std::int64_t>(sizeof(T));

  RowWorker(const RowProblem& p, Result result)
      : p_(p), result_(result), ops_(chunk_ops<T>()), terms_(scratch<TermsTag, T>(ChunkOps<T>::kTermsRoom)) {}

  /// One read: the row's terms stay in the cache between its sum and its write.
  void fused(const Row& r) {
    const auto scale = fold::make_scale<T>(r.scale);
    const Source<T> source(p_, r, scale);
    const auto chunks = static_cast<std::size_t>(lift::chunk_count(r.length));
    T* terms = scratch<RowTag, T>(chunks * lift::kChunk + ChunkOps<T>::kTermsRoom);
    double* frames = scratch<FrameTag, double>(chunks);
    Tree tree;
    for (std::size_t i = 0; i < chunks; ++i) {
      const State s = reduce_chunk(source, r, static_cast<std::int64_t>(i), terms + i * lift::kChunk);
      frames[i] = s.m;
      tree.push(s);
    }
    const fold::Normaliser<T> row(tree.root());
    Sink sink(p_, r);
    if (!row.regular) return fill_special(r, sink, row.empty);
    const bool fast = Lse::is_fast(row.m);
    for (std::size_t i = 0; i < chunks; ++i) {
      const auto begin = static_cast<std::int64_t>(i) * lift::kChunk;
      if (fast && Lse::is_fast(frames[i])) {
        const int n = chunk_size(r, begin);
        ops_.write_terms[index(sink.dtype())](terms + i * lift::kChunk, n, row.multiplier(frames[i]), sink.begin(begin),
                                              false);
        sink.end(begin, n);
      } else {
        // Outside the fast range a term is only right in the row's own frame.
        write_chunk(source, r, sink, row, begin);
      }
    }
    sink.fill(r.length, r.n, 0.);
  }

  /// Two reads: the state first, then every element's term again.
  void tiled(const Row& r) { finish(r, reduce(r)); }

  State reduce(const Row& r) {
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    Tree tree;
    const std::int64_t chunks = lift::chunk_count(r.length);
    for (std::int64_t i = 0; i < chunks; ++i) tree.push(reduce_chunk(source, r, i, terms_));
    return tree.root();
  }

  /// What the operation gives for a row (or a shard of one) whose state is s.
  void finish(const Row& r, const State& s) {
    const auto scale = fold::make_scale<T>(r.scale);
    if (result_ == Result::state) return write_state(r, s);
    if (result_ == Result::lse) return write_lse(r, ops_.finish(s, scale));
    const Source<T> source(p_, r, scale);
    Sink sink(p_, r);
    const fold::Normaliser<T> row(s);
    if (!row.regular) return fill_special(r, sink, row.empty);
    if (result_ == Result::softmax) {
      for (std::int64_t i = 0; i < r.length; i += lift::kChunk) write_chunk(source, r, sink, row, i);
    } else {
      auto log_row = ops_.log_normaliser(s, scale);
      log_row.c = source.c();
      log_row.half_c = T(0.5) * source.c();
      for (std::int64_t i = 0; i < r.length; i += lift::kChunk) write_chunk(source, r, sink, log_row, i);
    }
    sink.fill(r.length, r.n, missing());
  }

 private:
  struct TermsTag;
  struct RowTag;
  struct FrameTag;

  static int chunk_size(const Row& r, std::int64_t begin) {
    return static_cast<int>(std::min<std::int64_t>(lift::kChunk, r.length - begin));
  }
  double missing() const { return result_ == Result::softmax ? 0. : -fold::infinity<double>(); }

  State reduce_chunk(const Source<T>& source, const Row& r, std::int64_t chunk, T* terms) {
    const std::int64_t begin = chunk * lift::kChunk;
    const int n = chunk_size(r, begin);
    return ops_.reduce[index(source.dtype())](source.at(begin, n, gathered_), n, source.c(), terms);
  }

  void write_chunk(const Source<T>& source, const Row& r, Sink& sink, const fold::Normaliser<T>& row,
                   std::int64_t begin) {
    const int n = chunk_size(r, begin);
    ops_.write[index(source.dtype())][index(sink.dtype())](source.at(begin, n, gathered_), n, source.c(), row,
                                                           sink.begin(begin), false);
    sink.end(begin, n);
  }
  void write_chunk(const Source<T>& source, const Row& r, Sink& sink, const fold::LogNormaliser<T>& row,
                   std::int64_t begin) {
    const int n = chunk_size(r, begin);
    ops_.write_log[index(source.dtype())][index(sink.dtype())](source.at(begin, n, gathered_), n, row,
                                                               sink.begin(begin), false);
    sink.end(begin, n);
  }

  /// An empty row, or one that holds +inf or NaN.
  void fill_special(const Row& r, Sink& sink, bool empty) {
    const double nan = fold::canonical_nan<double>();
    if (empty) return sink.fill(0, r.n, p_.empty == Empty::nan ? nan : missing());
    // In place, the mask decides what is written, never the row's own values.
    sink.fill(0, r.n, missing());
    sink.fill_present(0, r.length, nan);
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
  const ChunkOps<T>& ops_;
  T* terms_;
  alignas(64) T gathered_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
