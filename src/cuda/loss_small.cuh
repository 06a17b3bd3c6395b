// Losses of short plain rows without smoothing and z-loss, a group of lanes each, by a grid, or with their sum by one
// cluster, whose first block all others write to; and the same cluster behind the nodes of a few longer rows.
#pragma once

#include "cuda/loss_alone.cuh"
#include "cuda/small_rows.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What is asked of the problem, as a LossProblem has it, but together, as SmallRows has what is asked of rows.
struct SmallLosses {
  struct Operand {
    char* data;
    std::int64_t strides[1], axis_stride;
    DType dtype;
    bool given;
  };
  SmallRows rows;
  std::int64_t n, ignore_index;
  double scale;
  int outer_rank;
  Reduction reduction;
  Empty empty;
  Operand x, states, targets, weight, loss, log_probability, status;

  __device__ __forceinline__ Operand operator[](Slot slot) const {
    return slot == Slot::x ? x : slot == Slot::states ? states : Operand{};
  }
  __device__ __forceinline__ Operand operator[](LossSlot slot) const {
    return slot == LossSlot::targets           ? targets
           : slot == LossSlot::weight          ? weight
           : slot == LossSlot::loss            ? loss
           : slot == LossSlot::log_probability ? log_probability
           : slot == LossSlot::status          ? status
                                               : Operand{};
  }
};

/// The sums over a cluster's rows, in its first block's shared memory.
class SmallLossSums {
 public:
  static constexpr int kThreads = 512, kMostRows = 4 * lift::kChunk, kMostBlocks = 16,
                       kMostWarps = kMostBlocks * kThreads / 32;

  /// A cluster of so many warps, or as many as it has: a block has as few as one for each scheduler while there are
  /// blocks left for others.
  static Grid cluster(const LossProblem& p, std::int64_t warps) {
    constexpr std::int64_t few = 4, most = kThreads / 32;
    const std::int64_t blocks = std::min<std::int64_t>(ceil_div(warps, few), kMostBlocks);
    const std::int64_t of_block = std::min(ceil_div(ceil_div(warps, blocks), few) * few, most);
    return {blocks, static_cast<int>(32 * of_block), static_cast<int>(blocks),
            static_cast<int>(2 * p.rows * static_cast<std::int64_t>(sizeof(double)))};
  }

  /// By all threads; `numbers`: room for two of each row. adds: there is a sum, and add() follows, for which all wait.
  __device__ __forceinline__ SmallLossSums(int rows, double* numbers, bool adds)
      : rows_(rows), waits_(adds), losses_(numbers), weights_(numbers + rows) {
    if (adds) lift::Cluster::arrive_relaxed();
  }
  /// Before the first put(), by all threads: the first block has begun.
  __device__ __forceinline__ void wait() {
    if (waits_) lift::Cluster::wait();
    waits_ = false;
  }
  __device__ __forceinline__ void put(int row, double loss, const TargetOf& target) {
    counted_ += target.is_class ? 1 : 0;
    store(losses_ + row, loss);
    store(weights_ + row, target.is_class ? static_cast<double>(target.weight) : fold::Sum<double>::identity());
  }
  /// Once all rows are put, by all threads.
  __device__ __forceinline__ void add(const SmallLosses& p) {
    wait();
    __shared__ int counts[kMostWarps];
    const int counted = __reduce_add_sync(lift::kWholeWarp, counted_), own = static_cast<int>(threadIdx.x) / 32;
    const auto of_block = static_cast<int>(blockDim.x) / 32, warps = static_cast<int>(gridDim.x) * of_block;
    if (threadIdx.x % 32 == 0)
      lift::Cluster::store(lift::Cluster::map(&counts[static_cast<int>(blockIdx.x) * of_block + own], 0), counted);
    lift::Cluster::arrive();
    lift::Cluster::wait();
    if (blockIdx.x != 0) return;
    const int chunks = (rows_ + lift::kChunk - 1) / lift::kChunk;
    __shared__ RowsSum sums[2][kMostRows / lift::kChunk];
    for (int i = own; i < 2 * chunks; i += of_block) {
      const int of = i % 2, chunk = i / 2;
      const double* numbers = of == 0 ? losses_ : weights_;
      const double sum = cuda::sum_of_chunk(chunk, rows_, [&](std::int64_t row) { return numbers[row]; });
      const int count = i == 1 ? sum_of(counts, warps) : 0;
      if (threadIdx.x % 32 == 0) sums[of][chunk] = {sum, count};
    }
    __syncthreads();
    put_whole(p, {sums[0], chunks}, divisor_of(p, {sums[1], chunks}));
  }

 private:
  static __device__ __forceinline__ void store(const double* to, double number) {
    lift::Cluster::store(lift::Cluster::map(to, 0), static_cast<std::uint64_t>(__double_as_longlong(number)));
  }
  static __device__ __forceinline__ int sum_of(const int* counts, int warps) {
    int count = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < warps; i += 32) count += counts[i];
    return __reduce_add_sync(lift::kWholeWarp, count);
  }

  int rows_, counted_ = 0;
  bool waits_;
  double *losses_, *weights_;
};

/// A row's loss, to where it is asked for, by one thread.
__device__ __forceinline__ double finish_small_loss(const SmallLosses& p, const PlainPlace& place,
                                                    const fold::LogSumExp<float>::State& state, const TargetOf& target,
                                                    float element, const RowLosses& to) {
  const Row row{p.x.data, nullptr, nullptr, p.n, p.n, p.scale, 0};
  return finish_alone(p, place, PlainLossRow{p.rows, row, state}, target, element, to);
}

/// A group of lanes a row. If rows leave something `to` the sums over them, or none are asked for, clusters are of one
/// block.
template <class E, int kLanes, int kCount>
__global__ void __launch_bounds__(SmallLossSums::kThreads)
    cross_entropy_small(const __grid_constant__ SmallLosses p, const RowLosses to) {
  begin_in_order();
  using Access = PlainAccess<E>;
  extern __shared__ double numbers[];
  constexpr int kGroups = 32 / kLanes;
  const SmallRows& rows = p.rows;
  const bool adds = p.reduction != Reduction::none && to.losses == nullptr;
  SmallLossSums sums(rows.rows, numbers, adds);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int warps = static_cast<int>(gridDim.x * blockDim.x) / 32;
#pragma unroll 1
  for (int first = warp * kGroups; first < rows.rows; first += warps * kGroups) {
    const SmallRow<Access, kLanes, kCount> row(rows, static_cast<unsigned>(first + lane / kLanes), lane % kLanes);
    const PlainPlace place(p, row.inner);
    const TargetOf target(p, place);
    const float element = target.scaled_element(p, rows, place);
    const auto state = state_of_small_row(rows, row);
    sums.wait();
    if (!row.writes || row.lane != 0) continue;
    const double loss = finish_small_loss(p, place, state, target, element, to);
    if (adds) sums.put(static_cast<int>(row.inner), loss, target);
  }
  if (adds) sums.add(p);
}

/// Longer rows, a warp each, from their nodes. early: as finish_short_losses.
static __global__ void __launch_bounds__(SmallLossSums::kThreads)
    finish_few_losses(const __grid_constant__ SmallLosses p, const RowNodes nodes, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  extern __shared__ double numbers[];
  SmallLossSums sums(p.rows.rows, numbers, true);
  const auto index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int row = min(index, p.rows.rows - 1);
  const PlainPlace place(p, row);
  // The target and its element are on their way while the states are merged.
  const TargetOf target(p, place);
  const float element = target.scaled_element(p, p.rows, place);
  wait_for_before();
  const auto state = nodes.root_by_warp(row);
  sums.wait();
  if (index == row && threadIdx.x % 32 == 0)
    sums.put(row, finish_small_loss(p, place, state, target, element, {}), target);
  sums.add(p);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
