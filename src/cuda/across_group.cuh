// softmax_across_tiles: what a group of warps does together.
#pragma once

#include "cuda/across_tiles.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A group of warps, of a block alone or of a cluster of them.
template <class E, bool kLog, bool kCluster>
struct AcrossGroup {
  using Thread = AcrossThread<E, kLog>;
  using S = fold::Scalar<float>;
  using Cluster = lift::Cluster;
  using Lse = fold::LogSumExp<float>;
  using Part = typename Thread::Part;
  static constexpr int kRows = Thread::kRows, kSize = static_cast<int>(sizeof(E));
  using Mail = AcrossMail<kRows, kLog>;

  const AcrossTiles& p;
  Mail& mail;
  int group, first_warp, thread;
  char* ring;

  __device__ __forceinline__ AcrossGroup(const AcrossTiles& p_, Mail& mail_, char* memory) : p(p_), mail(mail_) {
    group = static_cast<int>(threadIdx.x) / 32 / p.warps;
    first_warp = group * p.warps;
    thread = static_cast<int>(threadIdx.x) - first_warp * 32;
    ring = memory + group * p.stages * p.stage_bytes;
  }
  // Asked for anew each time: registers are for elements.
  static __device__ __forceinline__ int rank() { return kCluster ? static_cast<int>(Cluster::rank()) : 0; }
  static __device__ __forceinline__ int blocks() { return kCluster ? static_cast<int>(Cluster::size()) : 1; }
  /// Elements of the block's chunk.
  __device__ __forceinline__ int length() const {
    return static_cast<int>(clamp(p.n - std::int64_t{rank()} * lift::kChunk, lift::kChunk));
  }

  __device__ __forceinline__ char* stage(int i) const { return ring + i * p.stage_bytes; }
  /// By the group's first thread: the tile on its way. Of a row's first element, later chunks take their frame.
  __device__ __forceinline__ void fetch(const CUtensorMap& map, unsigned tile, int i) const {
    if (tile >= p.tiles) return;
    CopyBarrier& barrier = mail.full[group][i];
    const auto outer = static_cast<int>(tile / p.across);
    const int column = static_cast<int>(tile - static_cast<unsigned>(outer) * p.across) * p.words * kRows;
    const int boxes = (length() + p.height - 1) / p.height, bytes = p.height * p.words * 4;
    const int more = rank() > 0 ? min(kTileLongBytes, (p.inner - column) * kSize) : 0;
    barrier.expect(boxes * bytes + more);
    if (more > 0) barrier.copy(mail.first_rows[i], p.x + outer * p.x_outer + column * kSize, more);
    for (int box = 0; box < boxes; ++box)
      fetch_box(stage(i) + box * bytes, map, barrier, column, rank() * lift::kChunk + box * p.height, outer);
  }

  /// From parts of threads to the group's.
  __device__ __forceinline__ bool over_warps(Part& part, bool close, int turn) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, span = p.words < 64 ? 1 : p.words / 32;
    const int count = p.warps / span, first = first_warp + thread / 32 % span;
    if (count > 1) mail.parts[turn][threadIdx.x / 32][lane] = part;
    close = all_of(group + 1, p.warps * 32, close);
    const auto join = [&](auto warps) {
      constexpr int kWarps = decltype(warps)::value;
      Part all[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) all[w] = mail.parts[turn][first + w * span][lane];
#pragma unroll
      for (int stride = kWarps / 2; stride > 0; stride /= 2) {
#pragma unroll
        for (int w = 0; w < kWarps / 2; ++w)
          if (w < stride) all[w].join(all[w + stride]);
      }
      part = all[0];
    };
    if (count == 2) join(std::integral_constant<int, 2>());
    if (count == 4) join(std::integral_constant<int, 4>());
    if (count == 8) join(std::integral_constant<int, 8>());
    if (count == 16) join(std::integral_constant<int, 16>());
    if (p.words > 16) return close;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      part.sum[row] = S::add(part.sum[row], __shfl_xor_sync(lift::kWholeWarp, part.sum[row], 16));
      if constexpr (kLog) part.high[row] = max(part.high[row], __shfl_xor_sync(lift::kWholeWarp, part.high[row], 16));
    }
    return close;
  }

  /// From parts of blocks to the cluster's; a block whose elements are not close sends NaN, so that all know.
  __device__ __forceinline__ bool over_blocks(Part& part, bool close, int turn, unsigned parity) const {
    const int word = thread % kTileColumns, to = thread / kTileColumns;
    if (!close) part.sum[0] = fold::canonical_nan<float>();
    if (to < blocks()) {
      const unsigned at = Cluster::map(&mail.blocks[turn][rank()][word], static_cast<unsigned>(to));
      const unsigned barrier = Cluster::map(&mail.arrived[turn], static_cast<unsigned>(to));
      std::uint64_t words[sizeof(Part) / 8];
      __builtin_memcpy(words, &part, sizeof(Part));
      if constexpr (sizeof(Part) == 8) send_word(at, barrier, words[0]);
      if constexpr (sizeof(Part) == 16) send_words(at, barrier, words[0], words[1]);
    }
    wait_for_words(mail.arrived[turn], parity);
    if (thread == 0) expect_blocks(turn);
    const auto join = [&](auto most) {
      constexpr int kMost = decltype(most)::value;
      Part all[kMost];
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        all[b] = Part{};
        if (b < blocks()) all[b] = mail.blocks[turn][b][word];
      }
#pragma unroll
      for (int stride = 1; stride < kMost; stride *= 2) {
#pragma unroll
        for (int b = 0; b + stride < kMost; b += 2 * stride) all[b].join(all[b + stride]);
      }
      part = all[0];
    };
    if (blocks() <= 4) {
      join(std::integral_constant<int, 4>());
    } else {
      join(std::integral_constant<int, kTileBlocks>());
    }
    return !fold::is_nan(part.sum[0]);
  }
  __device__ __forceinline__ void expect_blocks(int turn) const {
    mail.arrived[turn].expect(blocks() * kTileColumns * static_cast<int>(sizeof(Part)));
  }

  /// Terms or elements to results, where the elements lay: `at` is the thread's first.
  __device__ __forceinline__ void put(Thread& own, const Part& part, unsigned at, int there, int least) const {
    const bool whole = least == Thread::kCount;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto state = own.state(row, part);
      finish<kLog, Thread::kCount>(
          own.v[row], true, S::div(1.F, state.d),
          [&] {
            fold::LogNormaliser<float> norm(state, p.scale);
            norm.two_kappa = p.two_kappa;
            return norm;
          },
          [](int) {});
    }
    asm volatile("" : "+r"(at));  // the addresses that the elements were read from are not kept
    const auto put_all = [&](const auto& exists) {
#pragma unroll
      for (int j = 0; j < Thread::kCount; ++j, at += static_cast<unsigned>(p.warps) * 128) {
        float word[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) word[row] = own.v[row][j];
        if (exists(j)) put_word(at, fold::bits_as<unsigned>(Thread::Words::pack(word)));
      }
    };
    if (whole) return put_all([](int) { return true; });
    put_all([&](int j) { return j < there; });
  }
  /// By the group's first thread: results on their way.
  __device__ __forceinline__ void send(const CUtensorMap& map, unsigned tile, int i) const {
    const auto outer = static_cast<int>(tile / p.across);
    const int column = static_cast<int>(tile - static_cast<unsigned>(outer) * p.across) * p.words * kRows;
    for (int row = 0; row < length(); row += p.height)
      store_box(map, stage(i) + row * p.words * 4, column, rank() * lift::kChunk + row, outer);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
