// The gradients of softmax and log_softmax with one read: y and dy wait in registers between their sum and the write.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/rows.cuh"
#include "softfold/fold/gradient.hpp"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a row's elements lie, and its dy.
struct BackwardRow : Row {
  const char* dy;

  __device__ __forceinline__ BackwardRow(const Row& row, const char* dy_) : Row(row), dy(dy_) {}
  __device__ __forceinline__ BackwardRow(const RowProblem& p, const RowPlace& place)
      : BackwardRow(row_at(p, place), p[Slot::dy].data + place.offset(p[Slot::dy])) {}
};

/// y and dy of a lane, and which slots hold an element that is there. What is not there is `nothing` and -0, whose leaf
/// is -0: it neither counts nor changes the sum. The tree is lift::WarpFold's of kWidth.
template <template <class> class Gradient, int kWidth, int kLanes, int kCount>
struct GradientSlots {
  using Node = lift::SumNode;
  using Exchange = lift::ClusterSum<256>;
  static constexpr int kMinBlocks = 2;      ///< of 256 threads, that a processor has registers for
  static constexpr int kMostThreads = 512;  ///< of one block that it has registers for

  float y[kCount], dy[kCount];
  unsigned present;

  /// Slots that are not there.
  __device__ __forceinline__ void hide() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((present >> i & 1U) == 0) y[i] = Gradient<float>::nothing(), dy[i] = -0.F;
    }
  }
  /// The tree over the tile; `any` is of the lane's own elements.
  __device__ __forceinline__ lift::SumNode sum() const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) any |= !(y[i] == Gradient<float>::nothing());
    const float sum = lift::add_tree<kWidth, kLanes, float, kCount>(
        [&](int j, int k) { return Gradient<float>::leaf(y[j * kWidth + k], dy[j * kWidth + k]); });
    return {sum, any ? 1U : 0U};
  }
  /// dy becomes dx; 0 for what is not there.
  __device__ __forceinline__ void finish(const lift::SumNode& row, float scale) {
    const Gradient<float> through{row.sum, scale};
    if (row.any == 0) present = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) dy[i] = through(y[i], dy[i]);
    if (present == 0xFFFFFFFFU) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if ((present >> i & 1U) == 0) dy[i] = 0.F;
  }
};

/// Up to 32 * kLanes neighbouring elements of a row's y and dy, 32 a lane, in the layout of Tile.
template <class E, int kLanes_, template <class> class Gradient>
struct GradientTile : GradientSlots<Gradient, Tile<E, kLanes_>::kWidth, kLanes_, lift::kPerLane> {
  static constexpr int kLanes = kLanes_, kSize = static_cast<int>(sizeof(E));
  using Elements = Tile<E, kLanes>;
  static constexpr int kWidth = Elements::kWidth, kVectors = Elements::kVectors;

  Elements tile;

  __device__ __forceinline__ GradientTile(const RowProblem&, const char* row) : tile(row) {}

  /// Of elements from `begin` on the first `length`, where the mask, if any, is not 0.
  __device__ __forceinline__ void load(const RowProblem& p, const BackwardRow& r, std::int64_t begin, int length) {
    const std::int64_t stride = p[Slot::mask].axis_stride;
    uint4 raw_y[kVectors], raw_dy[kVectors];
    tile.gather(raw_y, r.x + begin * kSize, length, Gradient<float>::nothing());
    tile.gather(raw_dy, r.dy + begin * kSize, length, -0.F);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      Packed<E>::unpack(raw_y[j], this->y + j * kWidth);
      Packed<E>::unpack(raw_dy[j], this->dy + j * kWidth);
    }
    this->present = tile.present(r.mask == nullptr ? nullptr : r.mask + begin * stride, stride, length);
    if (r.mask != nullptr) this->hide();
  }
  /// n elements of dx from `begin` on.
  __device__ __forceinline__ void write(const RowProblem&, const BackwardRow& r, std::int64_t begin, int n,
                                        const lift::SumNode& row) {
    this->finish(row, static_cast<float>(r.scale));
    tile.store_checked(r.y + begin * kSize, n, this->dy);
  }
};

/// Several rows a warp (kLanes < 32) or one: rows of at most a tile.
template <class Elements>
__global__ void __launch_bounds__(256, Elements::kMinBlocks) backward_warp_rows(const __grid_constant__ RowProblem p) {
  begin_in_order();
  constexpr int kLanes = Elements::kLanes;
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  // Lanes without a row of their own take part with the last row and write nothing.
  const bool writes = group < p.rows;
  const BackwardRow r(p, RowPlace(p, writes ? group : p.rows - 1));
  Elements tile(p, r.x);
  tile.load(p, r, 0, static_cast<int>(r.length));
  typename Elements::Node row = tile.sum();
  row.any = __ballot_sync(lift::kWholeWarp, row.any != 0) & lift::lanes_of_group<kLanes>();
  if (writes) tile.write(p, r, 0, static_cast<int>(r.n), row);
}

/// A block or a cluster of blocks a row, one chunk a warp; sums cross by shared memory.
template <class Elements>
__global__ void __launch_bounds__(Elements::kMostThreads, 1)
    backward_cluster_row(const __grid_constant__ RowProblem p) {
  begin_in_order();
  using Exchange = typename Elements::Exchange;
  __shared__ typename Exchange::Storage storage;
  Exchange::begin();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int chunk = static_cast<int>(lift::Cluster::rank()) * warps + static_cast<int>(threadIdx.x) / 32;
  const BackwardRow r(p, RowPlace(p, blockIdx.x / lift::Cluster::size()));
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * lift::kChunk;
  const int n = static_cast<int>(clamp(r.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(r.length - begin, lift::kChunk));
  Elements tile(p, r.x);
  typename Elements::Node own{-0.F, 0U};
  tile.present = 0;
  if (length > 0) {
    tile.load(p, r, begin, length);
    own = tile.sum();
    own.any = __any_sync(lift::kWholeWarp, own.any != 0) ? 1U : 0U;
  } else {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) tile.y[i] = tile.dy[i] = 0;
  }
  Exchange::ready();
  const typename Elements::Node row =
      Exchange::fold(storage, own, chunk, static_cast<int>(lift::chunk_count(r.length)));
  if (n > 0) tile.write(p, r, begin, n, row);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
