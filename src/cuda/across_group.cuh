// softmax_across_tiles: what a group of warps does together.
#pragma once

#include "cuda/across_tiles.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A group of warps, of a block alone (kGroups = 0) or of a cluster of blocks that have so many each.
template <class E, bool kLog, int kGroups>
struct AcrossGroup {
  static constexpr bool kCluster = kGroups > 0;
  static constexpr int kWarps = kTileWarps / (kCluster ? kGroups : 1);  ///< of a cluster's group
  using Thread = AcrossThread<E, kLog>;
  using S = fold::Scalar<float>;
  using Cluster = lift::Cluster;
  using Lse = fold::LogSumExp<float>;
  using Part = typename Thread::Part;
  static constexpr int kRows = Thread::kRows, kSize = static_cast<int>(sizeof(E));
  using Mail = AcrossMail<kRows, kLog, kGroups>;

  const AcrossTiles& p;
  Mail& mail;
  int group, first_warp, thread;
  char* ring;

  __device__ __forceinline__ AcrossGroup(const AcrossTiles& p_, Mail& mail_, char* memory) : p(p_), mail(mail_) {
    group = kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / 32 / warps();
    first_warp = group * warps();
    thread = static_cast<int>(threadIdx.x) - first_warp * 32;
    ring = memory + group * p.stages * p.stage_bytes;
  }
  __device__ __forceinline__ int sender() const { return kCluster ? group : 0; }
  __device__ __forceinline__ int warps() const { return kCluster ? kWarps : p.warps; }
  /// Bytes between a thread's words.
  __device__ __forceinline__ unsigned step() const { return static_cast<unsigned>(warps()) * 128; }
  // Asked for anew each time: registers are for elements.
  static __device__ __forceinline__ int rank() { return kCluster ? static_cast<int>(Cluster::rank()) : 0; }
  static __device__ __forceinline__ int blocks() { return kCluster ? static_cast<int>(Cluster::size()) : 1; }
  /// The block's chunk, and which elements of it: in such an order that neighbouring blocks' parts join first.
  __device__ __forceinline__ int chunk() const { return rank() >> p.part_bits; }
  __device__ __forceinline__ int part() const {
    return static_cast<int>(__brev(static_cast<unsigned>(rank())) >> 1 >> (31 - p.part_bits));
  }
  /// Elements of the block's chunk, and of its part of it.
  __device__ __forceinline__ int chunk_length() const {
    return static_cast<int>(clamp(p.n - std::int64_t{chunk()} * lift::kChunk, lift::kChunk));
  }
  __device__ __forceinline__ int length() const { return chunk_length() >> p.part_bits; }
  __device__ __forceinline__ int boxes() const { return chunk() + 1 < p.chunks ? p.boxes : p.last_boxes; }
  /// Where a box of the block's part begins.
  __device__ __forceinline__ int row_of(int box) const {
    return (chunk() * static_cast<int>(lift::kChunk) >> p.part_bits) + box * p.height;
  }
  __device__ __forceinline__ int column_of(unsigned tile, int outer) const {
    return static_cast<int>(tile - static_cast<unsigned>(outer) * p.across.value) * p.words * kRows;
  }

  /// Bytes of a tile's row that are x's.
  __device__ __forceinline__ int width_of(unsigned tile) const {
    return min(p.words * 4, (p.inner - column_of(tile, p.outer_of(tile))) * kSize);
  }

  __device__ __forceinline__ char* stage(int i) const { return ring + i * p.stage_bytes; }
  /// By the group's first thread: the tile on its way. Of a row's first element, other blocks take their frame. Where
  /// there are no more tiles, those who wait learn it.
  __device__ __forceinline__ void fetch(const CUtensorMap& map, unsigned tile, int i) const {
    CopyBarrier& barrier = mail.full[group][i];
    mail.tiles[group][i] = tile;
    if (tile >= p.tiles) return barrier.arrive();
    const int outer = p.outer_of(tile), column = column_of(tile, outer);
    const int boxes = this->boxes(), bytes = p.height * p.words * 4;
    const int more = rank() > 0 ? width_of(tile) : 0;
    barrier.expect(boxes * bytes + more);
    if (more > 0) barrier.copy(mail.first_rows[sender()][i], p.x + outer * p.x_outer + column * kSize, more);
#pragma unroll 1
    for (int box = 0; box < boxes; ++box)
      fetch_box(stage(i) + box * bytes, map, barrier, column, part(), row_of(box), outer);
  }
  /// By the group's first thread: results on their way.
  __device__ __forceinline__ void send(const CUtensorMap& map, unsigned tile, int i) const {
    const int outer = p.outer_of(tile), column = column_of(tile, outer);
    const int boxes = this->boxes(), bytes = p.height * p.words * 4;
#pragma unroll 1
    for (int box = 0; box < boxes; ++box) store_box(map, stage(i) + box * bytes, column, part(), row_of(box), outer);
  }

  /// A tile that is folded row by row: blocks of a chunk share its rows instead of their elements.
  __device__ __forceinline__ int far_words() const { return p.words >> p.part_bits; }
  __device__ __forceinline__ int far_column(unsigned tile, int outer) const {
    return column_of(tile, outer) + (rank() & ((1 << p.part_bits) - 1)) * far_words() * kRows;
  }
  __device__ __forceinline__ void fetch_far(const CUtensorMap& map, unsigned tile) const {
    CopyBarrier& barrier = mail.far[group];
    const int outer = p.outer_of(tile), column = far_column(tile, outer);
    const int boxes = (chunk_length() + p.far_height - 1) / p.far_height, bytes = p.far_height * far_words() * 4;
    barrier.expect(boxes * bytes);
#pragma unroll 1
    for (int box = 0; box < boxes; ++box)
      fetch_box(ring + box * bytes, map, barrier, column, 0,
                chunk() * static_cast<int>(lift::kChunk) + box * p.far_height, outer);
  }
  /// A group's list of such tiles.
  __device__ __forceinline__ unsigned& next_far(unsigned tile) const {
    return p.next[tile * static_cast<std::size_t>(blocks()) + rank()];
  }

  /// By a group's first thread (of a cluster: the first block's): a tile that nobody else takes.
  __device__ __forceinline__ unsigned draw(unsigned first) const { return (first + atomicAdd(p.taken, 1U)) * p.run; }
  /// By the first warp of a cluster's first block: a drawn tile to all blocks, which take it by turns.
  __device__ __forceinline__ void share(unsigned drawn, int turn) const {
    drawn = __shfl_sync(lift::kWholeWarp, drawn, 0);
    if (thread < blocks())
      send_u32(Cluster::map(&mail.draws[group][turn], static_cast<unsigned>(thread)),
               Cluster::map(&mail.drawn[group][turn], static_cast<unsigned>(thread)), drawn);
  }
  __device__ __forceinline__ unsigned shared_draw(int turn, unsigned parity) const {
    wait_for_words(mail.drawn[group][turn], parity);
    const unsigned tile = mail.draws[group][turn];
    expect_draw(turn);
    return tile;
  }
  __device__ __forceinline__ void expect_draw(int turn) const { mail.drawn[group][turn].expect(sizeof(unsigned)); }

  /// From parts of threads to the group's.
  __device__ __forceinline__ bool over_warps(Part& part, bool close, int turn) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, span = p.words < 64 ? 1 : 2;
    const int count = warps() / span, first = first_warp + thread / 32 % span;
    if (count > 1) mail.parts[turn][threadIdx.x / 32][lane] = part;
    close = all_of(group, warps() * 32, close);
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
    if (!kCluster && count == 2) join(std::integral_constant<int, 2>());
    if (kGroups != 1 && count == 4) join(std::integral_constant<int, 4>());
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

  /// From parts of blocks to the cluster's; a block whose elements are not close sends NaN, so that all know. The
  /// threads of a word, of which `first` is the thread's number, send to a block each.
  __device__ __forceinline__ bool over_blocks(Part& part, bool close, int word, int first, int turn,
                                              unsigned parity) const {
    if (!close) part.sum[0] = fold::canonical_nan<float>();
    for (int to = first; to < blocks(); to += p.classes) {
      const unsigned at = Cluster::map(&mail.blocks[group][turn][rank() * p.words + word], static_cast<unsigned>(to));
      const unsigned barrier = Cluster::map(&mail.arrived[group][turn], static_cast<unsigned>(to));
      std::uint64_t words[sizeof(Part) / 8];
      __builtin_memcpy(words, &part, sizeof(Part));
      if constexpr (sizeof(Part) == 8) send_word(at, barrier, words[0]);
      if constexpr (sizeof(Part) == 16) send_words(at, barrier, words[0], words[1]);
    }
    wait_for_words(mail.arrived[group][turn], parity);
    if (thread == 0) expect_blocks(turn);
    const auto join = [&](auto most) {
      constexpr int kMost = decltype(most)::value;
      Part all[kMost];
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        all[b] = Part{};
        if (b < blocks()) all[b] = mail.blocks[group][turn][b * p.words + word];
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
    mail.arrived[group][turn].expect(blocks() * p.words * static_cast<int>(sizeof(Part)));
  }

  /// Terms or elements to results, where the elements lay: `at` is the thread's first.
  __device__ __forceinline__ void put(Thread& own, const Part& part, unsigned at, int there, bool whole) const {
    if (kLog && whole) own.template read_again<true>(at, step(), there);
    if (kLog && !whole) own.template read_again<false>(at, step(), there);
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
      for (int j = 0; j < Thread::kCount; ++j, at += step()) {
        float word[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) word[row] = own.v[row][j];
        if (exists(j)) put_word(at, fold::bits_as<unsigned>(Thread::Words::pack(word)));
      }
    };
    if (whole) return put_all([](int) { return true; });
    put_all([&](int j) { return j < there; });
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
