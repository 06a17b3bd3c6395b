// The gradients of softmax and log_softmax of rows of 2 to 256 chunks of which a mask, lengths or a causal limit hide
// elements: a block or a cluster a row, a chunk a warp. As backward_block_rows; no vector that lengths hide is read.
#pragma once

#include "cuda/backward_stay.cuh"
#include "cuda/gradient_hidden.cuh"
#include "cuda/odd_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kHiddenWarps = 16;
/// As kGradientRegisters.
template <class E>
inline constexpr int kHiddenRegisters = sizeof(E) == 2 ? 64 : 96;
/// A chunk's y, dy and mask in shared memory.
template <class E, bool kMask>
inline constexpr int kHiddenRoom = 2 * kGradientRoom<E> + (kMask ? mask_room(lift::kChunk) : 0);

/// Where the sums of a row's chunks meet: in a block by themselves, in a cluster by mail to each block.
struct HiddenSums {
  lift::SumNode sums[256 + 256 / 8];
  CopyBarrier met;

  /// By one thread, of a row of which so many chunks hold something.
  __device__ __forceinline__ void init(int chunks) {
    met.init(lift::Cluster::size() == 1 ? max(chunks, 1) : 1);
    if (lift::Cluster::size() == 1) return;
    CopyBarrier::publish();
    met.expect(chunks * static_cast<int>(sizeof(lift::SumNode)));
  }
  __device__ __forceinline__ lift::SumNode fold(const lift::SumNode& own, int chunk, int chunks) {
    const SumBox box{sums};
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (lift::Cluster::size() > 1) {
      // Blocks of which no chunk holds anything may have left.
      for (unsigned to = lane; to * warps < static_cast<unsigned>(chunks); to += 32)
        send_word(lift::Cluster::map(&box[chunk], to), lift::Cluster::map(&met, to), fold::bits_as<std::uint64_t>(own));
      wait_for_words(met, 0);
    } else {
      if (lane == 0) {
        box[chunk] = own;
        met.arrive();
      }
      met.wait(0);  // no barrier of the block: other warps may be in another form of this
    }
    return lift::sum_some([&](int i) { return box[i]; }, chunks);
  }
};

template <class E, template <class> class Gradient, bool kMask>
__global__ void __maxnreg__(kHiddenRegisters<E>) backward_hidden_blocks(const __grid_constant__ HiddenProblem p) {
  begin_in_order();
  using Cluster = lift::Cluster;
  constexpr int kSize = static_cast<int>(sizeof(E));
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kHiddenWarps];
  __shared__ HiddenSums row_sums;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = static_cast<int>(Cluster::rank()) * warps + warp;
  const std::int64_t row = blockIdx.x / Cluster::size(), begin = static_cast<std::int64_t>(chunk) * lift::kChunk;
  const HiddenRow own_row(p.p, row);
  const auto scale = static_cast<float>(own_row.scale);
  const int n = static_cast<int>(clamp(p.rows.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(own_row.length - begin, lift::kChunk));
  const int chunks = static_cast<int>(lift::chunk_count(own_row.length));  // that hold something
  const char *y_first = p.rows.x + row * p.rows.x_stride + begin * kSize,
             *dy_first = p.dy.x + row * p.dy.x_stride + begin * kSize, *mask_first = own_row.mask + begin;
  char* rooms = landing_memory + warp * kHiddenRoom<E, kMask>;
  char *y_place = place_in_sectors(rooms, y_first), *dy_place = place_in_sectors(rooms + kGradientRoom<E>, dy_first);
  char* mask_bytes = mask_place(rooms + 2 * kGradientRoom<E>, mask_first);
  if (threadIdx.x == 0) row_sums.init(chunks);
  if (lane == 0 && length > 0) {
    landed[warp].init(kMask ? 3 : 2);
    CopyBarrier::publish();
    fetch_run<E>(y_place, landed[warp], y_first, length, {p.rows.x_begin, p.rows.x_end});
    fetch_run<E>(dy_place, landed[warp], dy_first, length, {p.dy.x_begin, p.dy.x_end});
    if (kMask) fetch_run<std::uint8_t>(mask_bytes, landed[warp], mask_first, length, p.mask);
  }
  if (Cluster::size() > 1) {
    Cluster::arrive_shared();
    Cluster::wait();
  } else {
    __syncthreads();
  }
  char* dx = p.rows.y + row * p.rows.y_stride + begin * kSize;
  const char* y_at = y_place + reinterpret_cast<std::uintptr_t>(y_first) % 16;
  const char* dy_at = dy_place + reinterpret_cast<std::uintptr_t>(dy_first) % 16;
  const char* mask_at = mask_bytes + reinterpret_cast<std::uintptr_t>(mask_first) % 16;
  constexpr int kAll = lift::kPerLane * kSize / 16;
  if (n <= 0) return;
  if (length <= 0) return OddTile<E, 32, kAll, 0>(y_first, n).write_vectors(dx, [](int) { return uint4{}; });
  landed[warp].wait(0);
  const auto put = [&]<int kVectors>() {
    using Chunk = OddTile<E, 32, kVectors, 0>;
    using Vectors = HiddenVectors<E, Gradient, 32, kVectors>;
    const Chunk tile(y_at, n);
    typename Vectors::Vectors y, dy;
    tile.gather_only(y, y_at, Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, dy_at, Packed<E>::narrow(-0.F));
    typename Vectors::Shown shown;
    shown.template find<kMask>(mask_at, tile.shift, length, 0);
    Vectors::hide(y, dy, shown);
    lift::SumNode own = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    own.any = __any_sync(lift::kWholeWarp, own.any != 0) ? 1U : 0U;
    const lift::SumNode all = row_sums.fold(own, chunk, chunks);
    Vectors::finish(y, dy, shown, Gradient<float>{all.sum, scale}, all.any != 0);
    tile.write_vectors(dx, [&](int j) { return y[j]; });
  };
  // A row's last chunk may be short: with a quarter of the slots it costs half as much.
  const int slots = static_cast<int>(reinterpret_cast<std::uintptr_t>(y_first) % 16) / kSize + n;
  if (slots <= lift::kChunk / 4) return put.template operator()<kAll / 4>();
  if (slots <= lift::kChunk / 2) return put.template operator()<kAll / 2>();
  put.template operator()<kAll>();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
