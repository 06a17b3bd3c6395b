// The gradients of softmax and log_softmax with one read: y and dy wait in registers between their sum and the write.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/rows.cuh"
#include "softfold/fold/gradient.hpp"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Up to 32 * kLanes neighbouring elements of a row's y and dy, 32 a lane, in the layout of Tile.
template <class E, int kLanes, template <class> class Gradient>
struct GradientTile {
  using Elements = Tile<E, kLanes>;
  static constexpr int kWidth = Elements::kWidth, kVectors = Elements::kVectors;

  Elements tile;
  float y[lift::kPerLane], dy[lift::kPerLane];
  unsigned present;  ///< which slots hold an element that is there

  __device__ __forceinline__ explicit GradientTile(const void* first) : tile(first) {}

  /// Elements [0, n) where the mask, if any, is not 0. What is not there is `nothing` and -0, whose leaf is -0: it
  /// neither counts nor changes the sum.
  __device__ __forceinline__ void load(const char* at_y, const char* at_dy, const char* mask, std::int64_t mask_stride,
                                       int n) {
    const float nothing = Gradient<float>::nothing();
    uint4 raw_y[kVectors], raw_dy[kVectors];
    tile.gather(raw_y, at_y, n, nothing);
    tile.gather(raw_dy, at_dy, n, -0.F);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      Packed<E>::unpack(raw_y[j], y + j * kWidth);
      Packed<E>::unpack(raw_dy[j], dy + j * kWidth);
    }
    present = tile.present(mask, mask_stride, n);
    if (mask == nullptr) return;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) {
      if ((present >> i & 1U) == 0) y[i] = nothing, dy[i] = -0.F;
    }
  }

  /// The tree over the tile; `any` is of the lane's own elements.
  __device__ __forceinline__ lift::SumNode sum() const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) any |= !(y[i] == Gradient<float>::nothing());
    const float sum = lift::add_tree<kWidth, kLanes, float>(
        [&](int j, int k) { return Gradient<float>::leaf(y[j * kWidth + k], dy[j * kWidth + k]); });
    return {sum, any ? 1U : 0U};
  }

  /// Elements [0, n) of dx; 0 for what is not there.
  __device__ __forceinline__ void write(char* dx, int n, const lift::SumNode& row, float scale) {
    const Gradient<float> through{row.sum, scale};
    if (row.any == 0) present = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) dy[i] = through(y[i], dy[i]);
    if (present != 0xFFFFFFFFU) {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i)
        if ((present >> i & 1U) == 0) dy[i] = 0.F;
    }
    tile.store_checked(dx, n, dy);
  }
};

/// Where a row's dy lies; y and dx are the Row's x and y.
__device__ __forceinline__ const char* gradient_at(const RowProblem& p, const RowPlace& place) {
  return p[Slot::dy].data + place.offset(p[Slot::dy]);
}

/// Several rows a warp (kLanes < 32) or one: rows of at most 32 * kLanes elements.
template <class E, int kLanes, template <class> class Gradient>
__global__ void __launch_bounds__(256, 2) backward_warp_rows(const __grid_constant__ RowProblem p) {
  begin_in_order();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  // Lanes without a row of their own take part with the last row and write nothing.
  const bool writes = group < p.rows;
  const RowPlace place(p, writes ? group : p.rows - 1);
  const Row r = row_at(p, place);
  GradientTile<E, kLanes, Gradient> tile(r.x);
  tile.load(r.x, gradient_at(p, place), r.mask, p[Slot::mask].axis_stride, static_cast<int>(r.length));
  lift::SumNode row = tile.sum();
  const unsigned lanes =
      kLanes == 32 ? lift::kWholeWarp : ((1U << (kLanes % 32)) - 1U) << (threadIdx.x % 32 / kLanes * kLanes);
  row.any = __ballot_sync(lift::kWholeWarp, row.any != 0) & lanes;
  if (writes) tile.write(r.y, static_cast<int>(r.n), row, static_cast<float>(r.scale));
}

/// A block or a cluster of blocks a row, one chunk a warp; sums cross by shared memory.
template <class E, template <class> class Gradient>
__global__ void __launch_bounds__(512, 1) backward_cluster_row(const __grid_constant__ RowProblem p) {
  begin_in_order();
  using Exchange = lift::ClusterSum<256>;
  __shared__ typename Exchange::Storage storage;
  Exchange::begin();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int chunk = static_cast<int>(lift::Cluster::rank()) * warps + static_cast<int>(threadIdx.x) / 32;
  const RowPlace place(p, blockIdx.x / lift::Cluster::size());
  const Row r = row_at(p, place);
  const std::int64_t begin = static_cast<std::int64_t>(chunk) * lift::kChunk;
  const int n = static_cast<int>(clamp(r.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(r.length - begin, lift::kChunk));
  const std::int64_t bytes = begin * static_cast<std::int64_t>(sizeof(E));
  GradientTile<E, 32, Gradient> tile(r.x);
  lift::SumNode own{fold::Sum<float>::identity(), 0U};
  tile.present = 0;
  if (length > 0) {
    const char* mask = r.mask == nullptr ? nullptr : r.mask + begin * p[Slot::mask].axis_stride;
    tile.load(r.x + bytes, gradient_at(p, place) + bytes, mask, p[Slot::mask].axis_stride, length);
    own = tile.sum();
    own.any = __any_sync(lift::kWholeWarp, own.any != 0) ? 1U : 0U;
  } else {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) tile.y[i] = tile.dy[i] = 0.F;
  }
  Exchange::ready();
  const lift::SumNode row = Exchange::fold(storage, own, chunk, static_cast<int>(lift::chunk_count(r.length)));
  if (n > 0) tile.write(r.y + bytes, n, row, static_cast<float>(r.scale));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
