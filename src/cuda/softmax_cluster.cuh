// softmax and log_softmax of plain rows by a block or a cluster of blocks a row: rows that a block does not hold, and
// few rows, which are spread over many blocks.
#pragma once

#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a group of lanes of softmax_cluster_row works. It reads the special registers anew each time: what is cheap to
/// find again need not be kept in registers, of which the terms leave few.
template <int kLanes>
struct ClusterChunk {
  int chunk, n;             ///< n: its elements, 0 beyond the row's end
  std::int64_t row, begin;  ///< begin: bytes from the row's first element

  __device__ __forceinline__ ClusterChunk(const PlainRows& p, int size) {
    unsigned thread, block, threads;
    asm volatile("mov.u32 %0, %%tid.x;\nmov.u32 %1, %%ctaid.x;\nmov.u32 %2, %%ntid.x;"
                 : "=r"(thread), "=r"(block), "=r"(threads));
    chunk = static_cast<int>(lift::Cluster::rank() * (threads / kLanes) + thread / kLanes);
    n = min(max(static_cast<int>(p.n) - chunk * lift::kChunk, 0), lift::kChunk);
    const unsigned blocks = lift::Cluster::size();
    row = blocks == 1 ? block : block / blocks;
    begin = static_cast<std::int64_t>(chunk) * (lift::kChunk * size);
  }
};

/// A block or a cluster of blocks a row, a chunk a group of lanes with kCount elements each: a warp, or 16 or 8 lanes
/// of one. Everything that is not needed for each element counts here: what a warp does once is done for 32 kCount
/// elements, so with many of them instructions are saved, with few of them warps are ready while others wait.
template <class E, Leaves kLeaves, int kCount, int kThreads, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_cluster_row(const __grid_constant__ PlainRows p) {
  begin_in_order();
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  constexpr int kLanes = lift::kChunk / kCount, kSize = static_cast<int>(sizeof(E));
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes, kCount>;
  using Exchange = lift::ClusterFold<256>;
  using Chunk = ClusterChunk<kLanes>;
  __shared__ typename Exchange::Storage storage;
  Exchange::begin();
  float v[kCount];
  typename Fold::Folded own{{}, 1.F, false, {lift::kNone, 0.F}};
  const Chunk at(p, kSize);
  if (__any_sync(lift::kWholeWarp, at.n > 0)) {
    const char* first = p.x + at.row * p.x_stride + at.begin;
    uint4 raw[Elements::kVectors];
    const Elements tile(first);
    tile.gather(raw, first, at.n, lift::absent(p.factor.c));
    const auto extremes = tile.unpack(v, raw, at.n, p.factor);
    own = kLog ? Fold::reduce(v, p.factor.c, extremes) : Fold::terms(v, p.factor.c, extremes);
  }
  [[maybe_unused]] const GradientWords gradient(kLeaves == Leaves::gradient ? p.gradients + Chunk(p, kSize).row
                                                                            : nullptr);
  Exchange::ready();
  const Chunk here(p, kSize);
  const auto root = Exchange::template fold<kLanes>(storage, own.node, own.state, here.chunk,
                                                    (static_cast<int>(p.n) + lift::kChunk - 1) / lift::kChunk);
  if (here.n == 0) return;
  char* y = p.y + here.row * p.y_stride + here.begin;
  const ChunkMultiplier multiplier(root, own.node, own.state.m);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if constexpr (kLeaves == Leaves::gradient) {
    if (here.chunk == 0 && lane == 0) p.states[here.row] = root.state();
    const float unit = fold::Scalar<float>::mul(multiplier.value, own.unit);
    const Elements tile(y);
    return put_gradient<E>(tile, y, here.n, v, own.dense ? 0x1p-62F : 0.F, unit, gradient.row(), root,
                           [&] { tile.store(y, here.n, v); });
  }
  if (!multiplier.regular) {
    fill<E, kLog>(y, nullptr, 0, lane, kLanes, here.n, here.n, constant_of<kLog>(root.state(), p.empty));
    return;
  }
  finish<kLog, kCount>(
      v, own.dense, fold::Scalar<float>::mul(multiplier.value, own.unit),
      [&] { return p.log_normaliser(root.state()); }, [](int) {});
  Elements(y).store(y, here.n, v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
