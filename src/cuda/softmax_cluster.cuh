// softmax and log_softmax of plain rows by a block or a cluster of blocks a row: rows that a block does not hold, and
// few rows, which are spread over many blocks.
#pragma once

#include "cuda/parked_results.cuh"
#include "cuda/softmax_plain.cuh"
#include "cuda/stay.cuh"

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

/// What the chunks of a row of up to kMost send to all blocks of its cluster, in shared memory. By mail, which a block
/// has as soon as it has come, instead of a barrier of the cluster behind stores (lift::ClusterFold): 0.7 us less.
template <int kMost>
struct RowExchange {
  StayMail mail[kMost + kMost / 8];
  CopyBarrier arrived;

  /// By all threads, early; ready() before fold().
  __device__ __forceinline__ void begin(int chunks) {
    if (lift::Cluster::size() == 1) return;
    if (threadIdx.x == 0) {
      arrived.init(1);
      CopyBarrier::publish();
      arrived.expect(StayMail::bytes(chunks));
    }
    lift::Cluster::arrive_shared();
  }
  static __device__ __forceinline__ void ready() { lift::ClusterStart::ready(); }
  /// By all threads of all blocks, once. A chunk is held by a group of kLanes neighbouring lanes.
  template <int kLanes>
  __device__ __forceinline__ lift::Root fold(const StayMail& own, int chunk, int chunks) {
    const StayBox box{mail};
    if (lift::Cluster::size() == 1) {
      if (chunk < chunks && threadIdx.x % kLanes == 0) box[chunk] = own;
      __syncthreads();
    } else {
      if (chunk < chunks) send_mail<kLanes>(box[chunk], arrived, own);
      wait_for_words(arrived, 0);
    }
    return box.merge<kMost>(chunks);
  }
};

/// A block or a cluster of blocks a row, a chunk a group of lanes with kCount elements each: a warp, or 16 or 8 lanes
/// of one. Everything that is not needed for each element counts here: what a warp does once is done for 32 kCount
/// elements, so with many of them instructions are saved, with few of them warps are ready while others wait.
/// O: of results that are parked, which may lie anywhere, in another dtype; void: they lie as the elements do.
template <class E, Leaves kLeaves, int kCount, int kThreads, int kMinBlocks, class O_ = void>
__global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_cluster_row(const __grid_constant__ PlainRows p) {
  begin_in_order();
  constexpr bool kLog = kLeaves == Leaves::log_softmax, kParks = !std::is_void_v<O_>;
  using O = std::conditional_t<kParks, O_, E>;
  constexpr int kLanes = lift::kChunk / kCount, kSize = static_cast<int>(sizeof(E));
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes, kCount>;
  using Chunk = ClusterChunk<kLanes>;
  __shared__ RowExchange<256> exchange;
  const int chunks = (static_cast<int>(p.n) + lift::kChunk - 1) / lift::kChunk;
  exchange.begin(chunks);
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
  exchange.ready();
  const Chunk here(p, kSize);
  const auto root = exchange.fold<kLanes>(mail_of(own), here.chunk, chunks);
  if (here.n == 0) return;
  char* y = p.y + here.row * p.y_stride + here.begin / kSize * static_cast<int>(sizeof(O));
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
    fill<O, kLog>(y, nullptr, 0, lane, kLanes, here.n, here.n, constant_of<kLog>(root.state(), p.empty));
    return;
  }
  finish<kLog, kCount>(
      v, own.dense, fold::Scalar<float>::mul(multiplier.value, own.unit),
      [&] { return p.log_normaliser(root.state()); }, [](int) {});
  if constexpr (!kParks) {
    Elements(y).store(y, here.n, v);
  } else {
    static_assert(kLanes == 32);
    extern __shared__ __align__(16) char result_memory[];
    const ParkedRun<O> results{result_memory + static_cast<int>(threadIdx.x) / 32 * ParkedRun<O>::bytes(lift::kChunk),
                               y};
    results.template park<false>(Elements(p.x + here.row * p.x_stride + here.begin), 0, here.n, v);
    results.send(here.n, lane, 32);
    bulk_drain();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
