// From the partials of all shards to what the whole rows give, on the GPU: a warp a row.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/levels.cuh"
#include "cuda/loss.cuh"
#include "cuda/shards.cuh"
#include "cuda/shards.hpp"
#include "cuda/states.hpp"
#include "cuda/topk_row.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Warps of a block, and blocks of which a processor has registers for: most of a row's time is spent waiting.
constexpr int kJoinWarps = 4, kJoinBlocks = 6;

/// A warp's row and its partials.
struct JoinedRow {
  std::int64_t index;
  RowPlace place;
  GatheredRow whole;
  bool leads;  ///< this lane writes what there is one of

  __device__ __forceinline__ JoinedRow(const RowProblem& p, const Gathered& gathered, std::int64_t row)
      : index(row), place(p, row), whole(p, gathered, row), leads(threadIdx.x % 32 == 0) {}

  static __device__ __forceinline__ std::int64_t of_warp() {
    return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  }
  template <class T>
  __device__ __forceinline__ void put_number(const Operand& o, T value) const {
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  }
  template <class T>
  __device__ __forceinline__ void put_state(const Operand& o, const typename fold::LogSumExp<T>::State& s,
                                            double scale) const {
    if (o.given) *reinterpret_cast<StoredState*>(o.data + place.offset(o)) = stored_state<T>(s, scale);
  }
  /// Of a row whose partials are not sound.
  __device__ __forceinline__ void put_no_state(const Operand& o) const {
    put_state<float>(o, fold::LogSumExp<float>::not_a_number(), fold::canonical_nan<double>());
  }
};

template <class T>
__device__ __forceinline__ void join_state(const RowProblem& p, const JoinedRow& r) {
  const auto s = r.whole.state<T>();
  if (r.leads) r.put_state<T>(p[Slot::states], s, r.whole.scale());
}

__global__ void __launch_bounds__(32 * kJoinWarps, kJoinBlocks)
    join_state_rows(const __grid_constant__ RowProblem p, const __grid_constant__ Gathered partials) {
  begin_in_order();
  if (JoinedRow::of_warp() >= p.rows) return;
  const JoinedRow r(p, partials, JoinedRow::of_warp());
  if (!r.whole.are_sound()) {
    if (r.leads) r.put_no_state(p[Slot::states]);
  } else if (r.whole.is_double()) {
    join_state<double>(p, r);
  } else {
    join_state<float>(p, r);
  }
}

/// What the rows leave for the sums over them; null where nobody asks.
struct JoinedLosses {
  RowsSum *losses, *targets;
};

/// A row's loss as it counts, and its target's weight.
struct JoinedLoss {
  double log_probability, loss, weight;
};

/// As finish_row() does, of a target that is a class of the row.
template <class T>
__device__ __forceinline__ JoinedLoss finish_joined(const LossProblem& p, const JoinedRow& r,
                                                    const typename fold::LogSumExp<T>::State& s, std::int64_t target) {
  const auto scale = fold::make_scale<T>(r.whole.scale());
  const T element = static_cast<T>(r.whole.part_of(target)[kTarget]);
  fold::LogNormaliser<T> log_row(s, scale);
  log_row.set_c(FoldedScale<T>(r.whole.scale()).c);
  T lp = fold::canonical_nan<T>();
  if (log_row.empty && p.empty != Empty::nan) lp = -fold::infinity<T>();
  if (!log_row.empty && log_row.regular) lp = log_row.log_probability(element);
  const auto weight = static_cast<double>(weight_at<T>(p, target));
  const double lse = p.z_loss != 0 ? static_cast<double>(fold::LogSumExp<T>{scale}.finish(s)) : 0.;
  const fold::CrossEntropy terms(0., p.z_loss, weight, 1., 0.);
  return {static_cast<double>(lp), terms.loss(static_cast<double>(lp), 0., lse), weight};
}

template <class T>
__device__ __forceinline__ JoinedLoss join_loss(const LossProblem& p, const JoinedRow& r, std::int64_t target,
                                                bool counts) {
  if (!counts && !p[Slot::states].given) return {};
  const auto s = r.whole.state<T>();
  if (r.leads) r.put_state<T>(p[Slot::states], s, r.whole.scale());
  return counts ? finish_joined<T>(p, r, s, target) : JoinedLoss{};
}

__global__ void __launch_bounds__(32 * kJoinWarps, kJoinBlocks)
    join_loss_rows(const __grid_constant__ LossProblem p, const __grid_constant__ Gathered partials, JoinedLosses to) {
  begin_in_order();
  if (JoinedRow::of_warp() >= p.rows) return;
  const JoinedRow r(p, partials, JoinedRow::of_warp());
  const Operand& targets = p[LossSlot::targets];
  const std::int64_t target = integer_at(targets.dtype, targets.data + r.place.offset(targets));
  const bool ignored = target == p.ignore_index;
  const bool sound =
      r.whole.are_sound() && r.whole.has_targets() && (!p[LossSlot::weight].given || r.whole.size() == p.n);
  const bool counts = sound && !ignored && target >= 0 && target < r.whole.size() && r.whole.have_target(target);
  const bool lost = !counts && !(sound && ignored);
  JoinedLoss row{};
  if (!sound) {
    if (r.leads) r.put_no_state(p[Slot::states]);
  } else if (r.whole.is_double()) {
    row = join_loss<double>(p, r, target, counts);
  } else {
    row = join_loss<float>(p, r, target, counts);
  }
  if (!r.leads) return;
  if (lost) {
    row.log_probability = row.loss = fold::canonical_nan<double>();
    if (p[LossSlot::status].given) atomicAdd(reinterpret_cast<int*>(p[LossSlot::status].data), 1);
  }
  r.put_number(p[LossSlot::log_probability], row.log_probability);
  if (p.reduction == Reduction::none) r.put_number(p[LossSlot::loss], row.loss);
  if (to.losses != nullptr) to.losses[r.index] = {counts || lost ? row.loss : fold::Sum<double>::identity(), 1};
  if (to.targets != nullptr) to.targets[r.index] = counts ? RowsSum{row.weight, 1} : RowsFold::identity();
}

/// A block a chunk of rows.
__global__ void __launch_bounds__(kRowThreads) sum_joined(std::int64_t rows, const RowsSum* of_rows, RowsSum* chunks) {
  begin_in_order();
  RowsSum own = RowsFold::identity();
  for_chunk_of_rows(rows, [&](std::int64_t row) { own = RowsFold::merge(own, of_rows[row]); });
  put_chunk(chunks, own);
}

/// The candidates of all shards for a row's k largest, each shard's in order: a lane a candidate.
template <class T>
class BestOfShards {
 public:
  using Entry = fold::Ranked<T>;

  __device__ __forceinline__ BestOfShards(const TopkProblem& p, const JoinedRow& r)
      : p_(p), whole_(r.whole), each_(r.whole.best()), all_(r.whole.parts() * each_) {}

  __device__ __forceinline__ void join(const JoinedRow& r, bool with_states) const {
    __shared__ Entry last_of_warps[kJoinWarps];
    Entry& last = last_of_warps[threadIdx.x / 32];  // that is taken
    auto state = fold::LogSumExp<T>::identity();
    if (with_states) state = whole_.state<T>();
    const TopkRow<T> result(p_, r.index, state);
    std::int64_t there = 0;
    for (std::int64_t part = 0; part < whole_.parts(); ++part) there += count_before(part, none());
    const std::int64_t taken = min(there, p_.k);
    for_candidates([&](const Entry& e, T value) {
      const std::int64_t place = place_of(e);
      if (p_.sorted && place < taken) result.put_element(place, e.index, value);
      if (place == taken - 1) last = e;
    });
    __syncwarp();
    if (!p_.sorted && taken > 0) put_by_index(result, last);
    for (std::int64_t j = taken + threadIdx.x % 32; j < p_.k; j += 32) result.put_element(j, -1);
    if (r.leads) result.put_lse();
  }

 private:
  static __device__ __forceinline__ Entry none() { return {0, INT64_MAX}; }

  /// How many candidates of a shard stand before it in the order.
  __device__ __forceinline__ std::int64_t count_before(std::int64_t part, const Entry& e) const {
    const double* of = whole_.part(part);
    std::int64_t low = 0, high = each_;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (best_of<T>(of, middle).before(e)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ __forceinline__ std::int64_t place_of(const Entry& e) const {
    std::int64_t place = 0;
    for (std::int64_t part = 0; part < whole_.parts(); ++part) place += count_before(part, e);
    return place;
  }
  template <class Visit>
  __device__ __forceinline__ void for_candidates(const Visit& visit) const {
    for (std::int64_t i = threadIdx.x % 32; i < all_; i += 32) {
      const double* part = whole_.part(i / each_);
      const Entry e = best_of<T>(part, i % each_);
      if (e.before(none())) visit(e, static_cast<T>(part[kPartialWords + 2 * (i % each_)]));
    }
  }
  /// The taken ones in the order of the row.
  __device__ __forceinline__ void put_by_index(const TopkRow<T>& result, const Entry& last) const {
    for_candidates([&](const Entry& e, T value) {
      if (last.before(e)) return;
      std::int64_t place = 0;
      for (std::int64_t i = 0; i < all_; ++i) {
        const Entry other = best_of<T>(whole_.part(i / each_), i % each_);
        if (!last.before(other) && other.index < e.index) ++place;
      }
      result.put_element(place, e.index, value);
    });
  }

  const TopkProblem& p_;
  const GatheredRow& whole_;
  std::int64_t each_, all_;
};

/// Of a row whose partials are not sound.
__device__ __forceinline__ void put_no_best(const TopkProblem& p, const JoinedRow& r) {
  const float nan = fold::canonical_nan<float>();
  for (std::int64_t j = threadIdx.x % 32; j < p.k; j += 32) {
    for (const TopkSlot slot : {TopkSlot::values, TopkSlot::probabilities, TopkSlot::log_probabilities}) {
      const Operand& o = p[slot];
      if (o.given) put(o.dtype, o.data + r.place.offset(o) + j * o.axis_stride, nan);
    }
    const Operand& o = p[TopkSlot::indices];
    put_integer(o.dtype, o.data + r.place.offset(o) + j * o.axis_stride, -1);
  }
  if (r.leads) r.put_number(p[TopkSlot::lse], nan);
}

__global__ void __launch_bounds__(32 * kJoinWarps, kJoinBlocks)
    join_topk_rows(const __grid_constant__ TopkProblem p, const __grid_constant__ Gathered partials, bool with_states) {
  begin_in_order();
  if (JoinedRow::of_warp() >= p.rows) return;
  const JoinedRow r(p, partials, JoinedRow::of_warp());
  const Operand& indices = p[TopkSlot::indices];
  const bool fits = !indices.given || indices.dtype == DType::int64 || r.whole.part(0)[kSize] <= 0x1p31;
  if (!r.whole.are_sound() || p.k > r.whole.best() || !fits) {
    put_no_best(p, r);
  } else if (r.whole.is_double()) {
    BestOfShards<double>(p, r).join(r, with_states);
  } else {
    BestOfShards<float>(p, r).join(r, with_states);
  }
}

Grid rows_by_warps(const RowProblem& p) { return {ceil_div(p.rows, kJoinWarps), 32 * kJoinWarps}; }

/// The rows' losses, and the sums over them.
struct LossSums {
  RowProblem line;  ///< the rows as elements of one
  JoinedLosses rows{}, chunks{};

  LossSums(const LossProblem& p, Parts& parts) : line(p) {
    line.n = p.rows;
    line.rows = 1;
    const auto take = [&](bool wanted, RowsSum*& of_rows, RowsSum*& of_chunks) {
      if (!wanted) return;
      of_rows = parts.take<RowsSum>(p.rows);
      of_chunks = parts.bytes_for<RowsSum>(state_bytes<RowsSum>(line));
    };
    take(p.reduction != Reduction::none, rows.losses, chunks.losses);
    take(p.reduction == Reduction::mean, rows.targets, chunks.targets);
  }
  RowsTotal total(const RowsSum* of_rows, RowsSum* of_chunks, const Stream& stream) const {
    if (of_rows == nullptr) return {};
    const Grid grid{lift::chunk_count(line.n), kRowThreads};
    launch("sum_joined", sum_joined, grid, stream, line.n, of_rows, of_chunks);
    return total_of(line, of_chunks, stream);
  }
};

}  // namespace

void join_states(const RowProblem& p, const Gathered& partials, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(partials.first.data);
  launch("join_state_rows", join_state_rows, rows_by_warps(p), stream_of(context), p, partials);
}

void join_cross_entropy(const LossProblem& p, const Gathered& partials, const Context& context) {
  const DeviceOf device(p[LossSlot::loss].data);
  Parts counted(nullptr);
  const LossSums sizes(p, counted);
  const Scratch scratch(counted.used(), context);
  Parts parts(scratch.data());
  const LossSums sums(p, parts);
  Stream stream = stream_of(context);
  const Operand& status = p[LossSlot::status];
  if (status.given) check(cudaMemsetAsync(status.data, 0, sizeof(std::int32_t), stream), "status");
  launch("join_loss_rows", join_loss_rows, rows_by_warps(p), stream, p, partials, sums.rows);
  if (p.reduction == Reduction::none) return;
  if (p.rows > 0) stream = stream.following();
  const RowsTotal losses = sums.total(sums.rows.losses, sums.chunks.losses, stream);
  const RowsTotal targets = sums.total(sums.rows.targets, sums.chunks.targets, stream);
  launch("put_total", put_total, {1, 32}, stream, p, losses, targets);
}

void join_topk(const TopkProblem& given, const Gathered& partials, const Context& context) {
  if (given.rows == 0) return;
  const DeviceOf device(partials.first.data);
  TopkProblem p = given;  // TopkRow finds a row's scale in its first partial
  p[Slot::x] = p[Slot::scales] = partials.first;
  p[Slot::scales].data += kScale * sizeof(double);
  const bool with_states =
      p[TopkSlot::probabilities].given || p[TopkSlot::log_probabilities].given || p[TopkSlot::lse].given;
  launch("join_topk_rows", join_topk_rows, rows_by_warps(p), stream_of(context), p, partials, with_states);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
