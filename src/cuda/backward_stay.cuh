// The gradients of softmax and log_softmax of long rows, by clusters that stay for many of them: y and dy wait in
// registers between their sum and dx, while those of the next row arrive in shared memory.
#pragma once

#include "cuda/gradient_hidden.cuh"
#include "cuda/in_order.cuh"
#include "cuda/masked_part.cuh"
#include "cuda/plain_gradient.hpp"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 128 bytes of y and as many of dy a lane.
template <class E>
struct GradientShape {
  static constexpr int kCount = 128 / static_cast<int>(sizeof(E)), kLanes = lift::kChunk / kCount;
  using Place = WarpPart<E, kLanes, kCount>;
  static constexpr int kRoom = room_in_sectors(Place::kBytes), kWarpBytes = 2 * kRoom;  ///< of shared memory
};

/// Rows of which a mask hides something.
struct HiddenStays : PlainGradient {
  RowProblem p;
  MaskedRows masks;  ///< of which only their memory is asked for
};
/// A part's mask in shared memory, behind its y and dy.
using HiddenPart = MaskPart<Lands::anywhere>;
template <class E, class Problem>
inline constexpr int kStayBytes = GradientShape<E>::kWarpBytes + (std::is_same_v<Problem, HiddenStays>
                                                                      ? HiddenPart::room(32 * GradientShape<E>::kCount)
                                                                      : 0);

/// The sums of one row's chunks.
struct SumBox {
  lift::SumNode* sums;
  __device__ __forceinline__ lift::SumNode& operator[](int chunk) const { return sums[chunk + chunk / 8]; }
  static constexpr SOFTFOLD_HD int bytes(int chunks) {
    return (chunks + chunks / 8 + 1) / 2 * 2 * static_cast<int>(sizeof(lift::SumNode));
  }
};

/// A cluster of blocks a row. Of a chunk to a warp the last block's last warps may have none: they only wait for the
/// others' end, as nobody would know whether they had read a row's mail.
template <class E, template <class> class Gradient, class Problem>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    backward_cluster_stays(const __grid_constant__ Problem p, int clusters) {
  begin_in_order();
  constexpr bool kHidden = std::is_same_v<Problem, HiddenStays>;
  using Shape = GradientShape<E>;
  using Place = typename Shape::Place;
  using Cluster = lift::Cluster;
  constexpr int kSize = Place::kSize, kLanes = Shape::kLanes;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ MailTurns mail;
  __shared__ CopyBarrier landed[kStayWarps];
  using Source = RowSource<>;
  __shared__ Source::Queue queue;
  const PlainRows &rows = p.y, &dys = p.dy;
  Source source({rows.taken, static_cast<unsigned>(rows.rows)}, clusters, queue);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = static_cast<int>(lift::chunk_count(rows.n));
  const ChunkShare share = Place::kGroups == 1 ? ChunkShare::one_each(chunks) : ChunkShare(chunks);
  const std::int64_t begin = static_cast<std::int64_t>(share.chunk) * (lift::kChunk * kSize);
  const int n = min(static_cast<int>(rows.n) - share.chunk * lift::kChunk, share.chunks * lift::kChunk);
  char* own_memory = landing_memory + warp * kStayBytes<E, Problem>;
  const auto y_of = [&](std::int64_t row) {
    const char* first = rows.x + row * rows.x_stride + begin;
    return Place{place_in_sectors(own_memory, first), first, n, share.chunks};
  };
  const auto dy_of = [&](std::int64_t row) {
    const char* first = dys.x + row * dys.x_stride + begin;
    return Place{place_in_sectors(own_memory + Shape::kRoom, first), first, n, share.chunks};
  };
  [[maybe_unused]] const auto mask_of = [&](const HiddenRow& row) {
    return HiddenPart{own_memory + Shape::kWarpBytes, row.mask + share.chunk * lift::kChunk, n};
  };
  const auto fetch = [&](std::int64_t row) {
    if (lane != 0 || row >= rows.rows || share.chunks == 0) return;
    const Place y = y_of(row), dy = dy_of(row);
    const int bytes = y.bytes(rows.x_begin, rows.x_end) + dy.bytes(dys.x_begin, dys.x_end);
    if constexpr (kHidden) {
      const HiddenPart mask = mask_of(HiddenRow(p.p, row));
      landed[warp].expect(bytes + mask.bytes(p.masks));
      mask.fetch(landed[warp], p.masks);
    } else {
      landed[warp].expect(bytes);
    }
    y.fetch(landed[warp], rows.x_begin, rows.x_end);
    dy.fetch(landed[warp], dys.x_begin, dys.x_end);
  };
  const auto box_of = [&](int step) {
    char* boxes = landing_memory + warps * kStayBytes<E, Problem>;
    return SumBox{reinterpret_cast<lift::SumNode*>(boxes + static_cast<int>(mail.place(step)) * SumBox::bytes(chunks))};
  };
  const int mail_bytes = chunks * static_cast<int>(sizeof(lift::SumNode)) + Source::kBytes;
  if (lane == 0) landed[warp].init(1);
  CopyBarrier::publish();
  fetch(source.by_stride(0));
  const RowCounter::Word seen = source.init();
  mail.init();
  CopyBarrier::publish();
  mail.expect(mail_bytes);
  Cluster::arrive_shared();
  source.begin(seen);
  Cluster::wait();
  source.resume();

  for (int step = 0; share.chunks > 0 && source.row(step) < rows.rows; ++step) {
    const std::int64_t row = source.row(step);
    const int chunk = share.chunk + lane / kLanes;
    const bool has_chunk = lane / kLanes < share.chunks;
    using Chunk = HiddenVectors<E, Gradient, kLanes, Place::kVectors>;
    typename Chunk::Vectors y, dy;
    [[maybe_unused]] typename Chunk::Shown shown;
    float scale = p.scale;
    landed[warp].wait(static_cast<unsigned>(step) & 1U);
    int waited = 0;
    if constexpr (kHidden) {
      const HiddenRow own_row(p.p, row);
      const HiddenPart mask = mask_of(own_row);
      mask.mend(p.masks);
      const int left = has_chunk ? n - lane / kLanes * lift::kChunk : 0;
      shown.template find<true>(mask.bytes_from() + lane / kLanes * lift::kChunk, y_of(row).shift(), left, 0);
      waited = shown.found();
      scale = static_cast<float>(own_row.scale);
    }
    y_of(row).read(y, Gradient<float>::nothing(), rows.x_begin, rows.x_end);
    dy_of(row).read(dy, -0.F, dys.x_begin, dys.x_end);
    waited |= Place::loaded(y) | Place::loaded(dy);
    source.keep();
    __syncwarp();
    fetch(source.row(step + 1) + waited);
    if constexpr (kHidden) Chunk::hide(y, dy, shown);
    lift::SumNode own = Chunk::sum(y, dy);
    constexpr unsigned all_lanes = lift::kWholeWarp >> (32 - kLanes);
    own.any = __ballot_sync(lift::kWholeWarp, own.any != 0) >> (lane / kLanes * kLanes) & all_lanes;
    if (has_chunk) {
      for (unsigned to = static_cast<unsigned>(lane % kLanes); to < Cluster::size(); to += kLanes)
        send_word(Cluster::map(&box_of(step)[chunk], to), Cluster::map(&mail.barrier(step), to),
                  fold::bits_as<std::uint64_t>(own));
    }
    source.send(step, mail.barrier(step));
    mail.wait<kSize == 2>(step, mail_bytes);
    source.ask();
    const lift::SumNode all = lift::sum_some(
        [&](int i) {
          asm volatile("" : "+r"(i));  // or places are found once for all rows, and spilled
          return box_of(step)[i];
        },
        chunks);
    const int count = has_chunk ? min(static_cast<int>(rows.n) - chunk * lift::kChunk, lift::kChunk) : 0;
    char* dx = rows.y + row * rows.y_stride + begin + lane / kLanes * (lift::kChunk * kSize);
    const Gradient<float> through{all.sum, scale};
    // Before it is known how they leave: or they are found by as much code for each way, more than a processor holds.
    if constexpr (kHidden) {
      Chunk::finish(y, dy, shown, through, all.any != 0);
    } else {
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) y[j] = Chunk::result(through, all.any != 0, y[j], dy[j]);
    }
    write_vectors<E, kLanes, Place::kVectors>(dx, count, [&](int j) { return y[j]; });
  }
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
  source.end();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
