// fold_shard on the CPU: a row a thread.
#include "cpu/operand_at.hpp"
#include "cpu/row_schedules.hpp"
#include "cpu/shards.hpp"
#include "cpu/topk_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

template <class T>
class ShardFolder {
 public:
  explicit ShardFolder(const ShardProblem& p)
      : p_(p),
        worker_(p, Result::state),
        layout_(p.shard.offset, p.shard.offset + p.n, p.shard.size),
        best_(thread_scratch().get<Entry>(Scratch::best, BestOf<T>::size_for(p.k))) {}

  void run(const Row& r, std::int64_t index) {
    const Source<T> source(p_, r, fold::make_scale<T>(r.scale));
    auto* to = reinterpret_cast<double*>(r.states);
    double* const end = to + p_.width;
    to[kVersion] = SOFTFOLD_BITS_VERSION;
    to[kDigits] = fold::Real<T>::kDigits;
    to[kScale] = fold::canonical(r.scale);
    to[kSize] = static_cast<double>(p_.shard.size);
    to[kOffset] = static_cast<double>(p_.shard.offset);
    to[kLength] = static_cast<double>(p_.n);
    to[kBest] = static_cast<double>(p_.k);
    write_target(source, r, index, to);
    to = write_best(r, to + kPartialWords);
    to = write_elements(source, r, layout_.begin, layout_.first, to);
    layout_.for_nodes([&](std::int64_t chunk, int level) {
      const std::int64_t from = chunk * lift::kChunk - layout_.begin, n = std::int64_t{lift::kChunk} << level;
      const auto s = worker_.reduce(r, from, std::min(from + n, p_.n));
      *to++ = s.m;
      *to++ = fold::canonical(static_cast<double>(s.d));
    });
    to = write_elements(source, r, layout_.last, layout_.end, to);
    std::fill(to, end, 0.);
  }

 private:
  using Entry = fold::Ranked<T>;

  /// The target's element as it is folded, where it lies in this shard, and its index: the targets of rows that the
  /// join ignores may be any numbers.
  void write_target(const Source<T>& source, const Row& r, std::int64_t index, double* to) {
    const Operand& targets = p_[LossSlot::targets];
    const std::int64_t t = targets.given ? integer_at(targets, p_.at(targets, index)) : -1;
    const std::int64_t offset = p_.shard.offset;
    to[kHasTarget] = targets.given ? 1. : 0.;
    to[kTarget] = t >= offset && t - offset < p_.n ? element(source, r, t - offset) : 0.;
    to[kTargetIndex] = t >= 0 && t < p_.shard.size ? static_cast<double>(t) : -1.;
  }

  /// What does not exist is -inf, as the identity is.
  double element(const Source<T>& source, const Row& r, std::int64_t i) {
    if (i >= r.length) return -fold::infinity<double>();
    T one[1];
    const void* at = source.at(i, 1, one);
    return with_dtype(source.dtype(), [&]<class S>(S) {
      return fold::canonical(static_cast<double>(fold::widen(*static_cast<const S*>(at))));
    });
  }

  double* write_elements(const Source<T>& source, const Row& r, std::int64_t begin, std::int64_t end, double* to) {
    for (; begin < end; ++begin) *to++ = element(source, r, begin - layout_.begin);
    return to;
  }

  double* write_best(const Row& r, double* to) {
    const Source<T> values(p_, r, fold::make_scale<T>(1.));
    const auto exists = [&](std::int64_t i) {
      return r.mask == nullptr || r.mask[i * p_[Slot::mask].axis_stride] != 0;
    };
    BestOf<T> best(best_, p_.k);
    for (std::int64_t i = 0; p_.k > 0 && i < r.length; i += BestOf<T>::kPiece) {
      const int n = static_cast<int>(std::min<std::int64_t>(BestOf<T>::kPiece, r.length - i));
      best.offer(values.at(i, n, gathered_), values.dtype(), n, i, [&](int j) { return exists(i + j); });
    }
    const std::int64_t count = best.finish();
    std::sort(best_, best_ + count, [](const Entry& a, const Entry& b) { return a.before(b); });
    for (std::int64_t j = 0; j < p_.k; ++j) {
      *to++ = j < count ? element(values, r, best_[j].index) : -fold::infinity<double>();
      *to++ = j < count ? static_cast<double>(p_.shard.offset + best_[j].index) : -1.;
    }
    return to;
  }

  const ShardProblem& p_;
  RowWorker<T> worker_;
  lift::ShardLayout layout_;
  Entry* best_;
  alignas(64) T gathered_[lift::kChunk];
};

}  // namespace

void fold_shard(const ShardProblem& p, const Context& context) {
  if (p.rows == 0) return;
  with_fold_type(p, [&]<class T>(T) {
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      ShardFolder<T> folder(p);
      for (RowCursor cursor(p, first); first < last; ++first, cursor.next()) folder.run(cursor.row(), first);
    });
  });
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
