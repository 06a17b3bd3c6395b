// Rows that groups of a grid's blocks take in turn, of a grid that runs as one: which part of a row a warp has, and how
// blocks tell each other the sums of its chunks.
#pragma once

#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Neighbouring chunks whose sum is one word, of the warps that have two of them each.
inline constexpr int kRunChunks = 8, kRunWarps = kRunChunks / 2;

/// How blocks share rows: `groups` groups of `blocks` blocks, a row a group at a time, a row's runs evenly among them.
struct GroupRows : PlainRows {
  using State = fold::LogSumExp<float>::State;
  int groups, blocks;
  int runs;                          ///< of a row
  int word_pitch;                    ///< words from one place to the next; even, as a bulk copy takes 16 bytes at least
  std::uint64_t* words;              ///< [groups][kPlaces][word_pitch], 0 before
  State* nodes;                      ///< [groups][2][runs], of rows that are read again
  unsigned* arrived;                 ///< [rows], of those, 0 before
  static constexpr int kPlaces = 4;  ///< of rows whose words are in use at a time

  __device__ __forceinline__ int group() const { return static_cast<int>(blockIdx.x) / blocks; }
  /// The block's first run; more: that of the block so much further on.
  __device__ __forceinline__ int first_run(int more = 0) const {
    return (static_cast<int>(blockIdx.x) % blocks + more) * runs / blocks;
  }
};
__device__ __forceinline__ ChunkShare share_of(const PlainRows&, int chunks) { return ChunkShare(chunks); }
__device__ __forceinline__ ChunkShare share_of(const GroupRows& p, int chunks) {
  const int warp = static_cast<int>(threadIdx.x) / 32, run = p.first_run() + warp / kRunWarps;
  if (run >= p.first_run(1)) return {0, 0};
  const int first = run * kRunChunks + warp % kRunWarps * 2;
  return {first, max(0, min(2, chunks - first))};
}

/// The rows of a group, by the stride.
struct GroupSource {
  int first, groups;

  __device__ __forceinline__ int row(int step) const { return first + step * groups; }
  __device__ __forceinline__ void ask() const {}
  __device__ __forceinline__ void keep() const {}
  __device__ __forceinline__ void resume() const {}
};

/// What blocks of a group tell each other of rows that are written behind: the sum of each run in the row's frame, NaN
/// where that does not hold it, with the step's number, by which a word says itself whether it has come. A row's words
/// are brought to the block's shared memory when its successor is folded, and again until all have come. (No fence
/// orders the copy engine behind the words' stores, and none has to: a word of 8 bytes is there whole, or not yet.)
///
/// A block sends a row's words as soon as it has folded it, when it has read those of two rows before. So all blocks
/// have sent those, and have read the words of four rows before, whose places are free.
template <int kChunks>
struct GroupMail {
  using Word = std::uint64_t;
  static constexpr int kOfLane = kChunks / kRunChunks / 32;  ///< neighbouring words, which a lane adds up first
  static constexpr int kMostRuns = kStayWarps / kRunWarps;   ///< of a block

  alignas(16) Word landed[32 * kOfLane];
  CopyBarrier arrived, summed[2];
  int fetched;    ///< times
  float sums[2];  ///< of rows, by turns
  Word* words;    ///< of the group
  int runs, pitch;
  int first_run, warps;  ///< of the block
  float of_warp[2][kStayWarps];
  int come[2][kMostRuns];  ///< of a run's warps

  /// By one thread of the block, of so many warps that have a part of rows; then CopyBarrier::publish().
  __device__ __forceinline__ void init(const GroupRows& p, int block_warps) {
    arrived.init(1);
    for (CopyBarrier& barrier : summed) barrier.init(1);
    fetched = 0;
    words = p.words + static_cast<std::int64_t>(p.group()) * GroupRows::kPlaces * p.word_pitch;
    runs = p.runs, pitch = p.word_pitch;
    first_run = p.first_run(), warps = block_warps;
    for (auto& place : come)
      for (int& count : place) count = 0;
  }
  /// By a warp; own: of the lane's chunk. The last warp of a run sends its sum.
  __device__ __forceinline__ void send_sum(int step, float own) {
    using S = fold::Scalar<float>;
    const float pair = S::add(own, __shfl_xor_sync(lift::kWholeWarp, own, 16));
    if (lane_index() != 0) return;
    const int warp = warp_index(), run = warp / kRunWarps, of_run = min(kRunWarps, warps - run * kRunWarps);
    auto& sums = of_warp[step % 2];
    sums[warp] = pair;
    __threadfence_block();
    if (atomicAdd(&come[step % 2][run], 1) != of_run - 1) return;
    come[step % 2][run] = 0;
    __threadfence_block();
    const auto sum = [&](int i) {
      return i < of_run ? *static_cast<volatile const float*>(&sums[run * kRunWarps + i]) : 0.F;
    };
    static_assert(kRunWarps == 4);
    const float all = S::add(S::add(sum(0), sum(1)), S::add(sum(2), sum(3)));
    asm volatile(
        "st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + step % GroupRows::kPlaces * pitch + first_run + run),
        "l"(word_of(step) | __float_as_uint(all))
        : "memory");
  }
  /// The row's words to shared memory, as many as have come.
  __device__ __forceinline__ void fetch(int step) {
    if (thread_index() != 0) return;
    const int bytes = pitch * static_cast<int>(sizeof(Word));
    ++fetched;
    arrived.expect(bytes);
    arrived.copy(landed, words + step % GroupRows::kPlaces * pitch, bytes);
  }
  /// The row's sum, once they have come: by the block's first warp, for all.
  __device__ __forceinline__ float receive(int step) {
    if (warp_index() != 0) {
      summed[step % 2].wait(MailTurns::parity(step));
      return sums[step % 2];
    }
    float sum;
    for (;;) {
      __syncwarp();
      arrived.wait(static_cast<unsigned>(fetched + 1) % 2);
      bool come = true;
      sum = add_words<kOfLane>(step, 0, come);
      if (__all_sync(lift::kWholeWarp, come)) break;
      fetch(step);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      sum = fold::Scalar<float>::add(sum, __shfl_xor_sync(lift::kWholeWarp, sum, distance));
    if (lane_index() == 0) {
      sums[step % 2] = sum;
      summed[step % 2].arrive();
    }
    return sum;
  }

 private:
  static __device__ __forceinline__ Word word_of(int step) { return static_cast<Word>(step + 1) << 32; }
  /// Of the lane's words from there on. Lanes begin with different ones, or they would meet in a bank; who changes
  /// places with whom has the same sum.
  template <int kCount>
  __device__ __forceinline__ float add_words(int step, int from, bool& come) const {
    if constexpr (kCount > 1) {
      const float first = add_words<kCount / 2>(step, from, come);
      return fold::Scalar<float>::add(first, add_words<kCount / 2>(step, from + kCount / 2, come));
    } else {
      constexpr int kLanesApart = 16 / kOfLane;  // of 8 bytes each, a word a bank
      const int lane = lane_index(), at = lane * kOfLane + (from ^ (lane / kLanesApart % kOfLane));
      if (at >= runs) return 0.F;
      const Word word = landed[at];
      come = come && (word ^ word_of(step)) >> 32 == 0;
      return __uint_as_float(static_cast<unsigned>(word));
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
