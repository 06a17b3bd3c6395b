// The k best of one row, or of a part of one, and the row's state, in one read of its elements; then what leaves.
#pragma once

#include "cpu/operand_at.hpp"
#include "cpu/row_worker.hpp"
#include "cpu/topk_ops.hpp"
#include "softfold/fold/topk.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// The k best of what was offered, in `room` for size_for(k) entries.
template <class T>
class BestOf {
 public:
  using Entry = fold::Ranked<T>;
  /// Elements that are looked at before the threshold is raised.
  static constexpr int kPiece = 256;
  static std::size_t size_for(std::int64_t k) { return static_cast<std::size_t>(2 * k + 2 * kPiece); }

  BestOf(Entry* room, std::int64_t k) : entries_(room), k_(k) {}

  /// The next n <= kPiece elements, contiguous, stored as `dtype`; they begin at `index`. exists(i): whether x[i] does.
  template <class Exists>
  void offer(const void* x, DType dtype, int n, std::int64_t index, const Exists& exists) {
    if (k_ == 0 || (full_ && fold::is_nan(threshold_))) return;
    int at[kPiece + 16];
    int count = n;
    if (full_) count = topk_ops<T>().filter[cpu::index(dtype)](x, n, threshold_, at);
    for (int j = 0; j < count; ++j) {
      const int i = full_ ? at[j] : j;
      if (exists(i)) entries_[count_++] = Entry::of(element(x, dtype, i), index + i);
    }
    if (count_ >= 2 * k_ + kPiece || (!full_ && count_ >= k_)) shrink();
  }
  void offer(const Entry& e) {
    entries_[count_++] = e;
    if (count_ >= 2 * k_ + kPiece) shrink();
  }

  /// The best, in no order: at most k.
  std::int64_t finish() {
    shrink();
    return count_;
  }
  Entry* entries() const { return entries_; }

 private:
  static bool before(const Entry& a, const Entry& b) { return a.before(b); }
  static T element(const void* x, DType dtype, int i) {
    return with_dtype(dtype, [&]<class S>(S) { return static_cast<T>(fold::widen(static_cast<const S*>(x)[i])); });
  }

  void shrink() {
    if (count_ < k_ || k_ == 0) return;
    std::nth_element(entries_, entries_ + (k_ - 1), entries_ + count_, before);
    count_ = k_;
    threshold_ = entries_[k_ - 1].value();
    full_ = true;
  }

  Entry* entries_;
  std::int64_t k_, count_ = 0;
  bool full_ = false;  ///< there are k, and the threshold is the last of them
  T threshold_ = T(0);
};

template <class T>
class TopkWorker {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  using Entry = fold::Ranked<T>;

  explicit TopkWorker(const TopkProblem& p)
      : p_(p), worker_(p, Result::state), best_(thread_scratch().get<Entry>(Scratch::best, BestOf<T>::size_for(p.k))) {}

  static bool wants_state(const TopkProblem& p) {
    return p[TopkSlot::probabilities].given || p[TopkSlot::log_probabilities].given || p[TopkSlot::lse].given;
  }
  Entry* room() const { return best_; }

  /// Elements [begin, end): their state, if anyone asks, and their k best in room(), in no order. begin is a multiple
  /// of a power of two of chunks that is no less than end - begin.
  State reduce(const Row& r, std::int64_t begin, std::int64_t end, std::int64_t* count) {
    const Source<T> source(p_, r, fold::make_scale<T>(1.));
    BestOf<T> best(best_, p_.k);
    end = std::min(end, r.length);
    const bool states = wants_state(p_);
    const auto spans = static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin) / kSpan + 1);
    State* nodes = thread_scratch().get<State>(Scratch::nodes, spans);
    std::int64_t node = 0;
    for (std::int64_t i = begin; i < end; i += kSpan) {
      const std::int64_t stop = std::min(end, i + kSpan);
      if (states) nodes[node++] = worker_.reduce(r, i, stop);
      for (std::int64_t j = i; j < stop; j += BestOf<T>::kPiece) {
        const int n = static_cast<int>(std::min<std::int64_t>(BestOf<T>::kPiece, stop - j));
        best.offer(source.at(j, n, gathered_), source.dtype(), n, j, [&](int k) { return exists(r, j + k); });
      }
    }
    *count = best.finish();
    return lift::reduce_nodes<Lse>(nodes, node);
  }

  /// Writes a row's results from its k best, which are put into order.
  void finish(const Row& r, std::int64_t index, const State& s, Entry* best, std::int64_t count) {
    std::sort(best, best + count,
              [&](const Entry& a, const Entry& b) { return p_.sorted ? a.before(b) : a.index < b.index; });
    for (std::int64_t j = 0; j < p_.k; ++j) {
      const bool there = j < count;
      put(TopkSlot::values, index, j, there ? element(r, best[j].index) : -fold::infinity<T>());
      const Operand& o = p_[TopkSlot::indices];
      put_integer(o, p_.at(o, index) + j * o.axis_stride, there ? best[j].index : -1);
    }
    if (wants_state(p_)) write_probabilities(r, index, s, best, count);
  }

 private:
  /// Elements whose state is found before they are offered: they are still in the cache then.
  static constexpr std::int64_t kSpan = 16 * lift::kChunk;

  bool exists(const Row& r, std::int64_t i) const {
    return r.mask == nullptr || r.mask[i * p_[Slot::mask].axis_stride] != 0;
  }
  T element(const Row& r, std::int64_t i) const {
    const Operand& x = p_[Slot::x];
    return with_dtype(x.dtype, [&]<class S>(S) {
      return static_cast<T>(fold::widen(*reinterpret_cast<const S*>(r.x + i * x.axis_stride)));
    });
  }
  void put(TopkSlot slot, std::int64_t row, std::int64_t j, T value) {
    const Operand& o = p_[slot];
    if (!o.given) return;
    char* to = p_.at(o, row) + j * o.axis_stride;
    with_dtype(o.dtype, [&]<class S>(S) { *reinterpret_cast<S*>(to) = fold::narrow<S>(value); });
  }

  /// Through the operations that write whole rows, on the few elements that were taken.
  void write_probabilities(const Row& r, std::int64_t index, const State& s, const Entry* best, std::int64_t count) {
    const auto scale = fold::make_scale<T>(r.scale);
    const Source<T> source(p_, r, scale);
    const fold::Normaliser<T> row(s);
    auto log_row = chunk_ops<T>().log_normaliser(s, scale);
    log_row.set_c(source.c());
    constexpr auto same = cpu::index(dtype_of<T>());
    const T nan = fold::canonical_nan<T>(), nothing = -fold::infinity<T>();
    const bool nan_rows = row.empty && p_.empty == Empty::nan;
    for (std::int64_t j = 0; j < p_.k; ++j) {
      T probability = nan_rows ? nan : T(0), log_probability = nan_rows ? nan : nothing, one[1];
      if (j < count && !row.empty && !row.regular) probability = log_probability = nan;
      if (j < count && row.regular) {
        const void* x = source.at(best[j].index, 1, one);
        chunk_ops<T>().write[cpu::index(source.dtype())][same](x, 1, source.c(), row, &probability, false);
        chunk_ops<T>().write_log[cpu::index(source.dtype())][same](x, 1, log_row, &log_probability, false);
      }
      put(TopkSlot::probabilities, index, j, probability);
      put(TopkSlot::log_probabilities, index, j, log_probability);
    }
    const Operand& lse = p_[TopkSlot::lse];
    if (!lse.given) return;
    const T value = chunk_ops<T>().finish(s, scale);
    with_dtype(lse.dtype, [&]<class S>(S) { *reinterpret_cast<S*>(p_.at(lse, index)) = fold::narrow<S>(value); });
  }

  const TopkProblem& p_;
  RowWorker<T> worker_;
  Entry* best_;
  alignas(64) T gathered_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
