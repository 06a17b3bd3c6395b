// Rows that groups of a grid's blocks take in turn, of a grid that runs as one: which part of a row a warp has, and how
// blocks tell each other the sums of its chunks.
#pragma once

#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a run, of rows of up to 1024, 2048 or 4096 chunks, of float32 if `wide`. Short runs fill blocks more
/// evenly, long ones are fewer words to wait for; measured, which is faster. tight: see kGroupForm.
constexpr int run_warps(bool wide, int most_chunks, bool tight) {
  return tight || most_chunks == 2048 || (wide && most_chunks == 1024) ? 2 : 4;
}

/// How blocks share rows: `groups` groups of `blocks` blocks, a row a group at a time, a row's runs evenly among them.
/// A run is neighbouring chunks whose sum is one word, of warps that have two of them each.
struct GroupRows : PlainRows {
  using State = fold::LogSumExp<float>::State;
  int groups, blocks;
  int runs;                          ///< of a row
  int word_pitch;                    ///< words from one place to the next; even, as they are brought 16 bytes at a time
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
/// The same, whose runs are of so many warps.
template <int kRunWarps_>
struct GroupRowsOf : GroupRows {
  static constexpr int kRunWarps = kRunWarps_, kRunChunks = 2 * kRunWarps;
};
__device__ __forceinline__ ChunkShare share_of(const PlainRows&, int chunks) { return ChunkShare(chunks); }
template <int kRunWarps>
__device__ __forceinline__ ChunkShare share_of(const GroupRowsOf<kRunWarps>& p, int chunks) {
  const int warp = static_cast<int>(threadIdx.x) / 32, run = p.first_run() + warp / kRunWarps;
  if (run >= p.first_run(1)) return {0, 0};
  const int first = run * p.kRunChunks + warp % kRunWarps * 2;
  return {first, max(0, min(2, chunks - first))};
}

/// The rows of a group, by the stride.
struct GroupSource {
  const int& first;  ///< in shared memory: the compiler would keep it in local memory, which results evict from L1
  int groups;

  __device__ __forceinline__ int row(int step) const { return first + step * groups; }
  __device__ __forceinline__ void ask() const {}
  __device__ __forceinline__ void keep() const {}
  __device__ __forceinline__ void resume() const {}
};

/// What blocks of a group tell each other of rows that are written behind: the sum of each run in the row's frame, NaN
/// where that does not hold it, with the step's number, by which a word says itself whether it has come.
///
/// A block sends a row's words as soon as it has folded it, when it has read those of two rows before. So all blocks
/// have sent those, and have read the words of four rows before, whose places are free.
template <int kRunWarps>
struct GroupWords {
  using Word = std::uint64_t;

  Word* words;  ///< of the group
  int runs, pitch;
  int first_run, warps;                 ///< of the block
  float of_warp[2][kStayWarps];         ///< sums, of rows by turns
  int come[2][kStayWarps / kRunWarps];  ///< of a run's warps

  /// By one thread of the block, of so many warps that have a part of rows.
  __device__ __forceinline__ void init(const GroupRows& p, int block_warps) {
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
    const int warp = warp_index(), run = warp / kRunWarps, first = run * kRunWarps;
    const int of_run = min(kRunWarps, warps - first);
    auto& sums = of_warp[step % 2];
    sums[warp] = pair;
    __threadfence_block();
    if (atomicAdd(&come[step % 2][run], 1) != of_run - 1) return;
    come[step % 2][run] = 0;
    __threadfence_block();
    const auto sum = [&](int i) { return i < of_run ? *static_cast<volatile const float*>(&sums[first + i]) : 0.F; };
    static_assert(kRunWarps == 2 || kRunWarps == 4);
    const float two = S::add(sum(0), sum(1)), all = kRunWarps == 2 ? two : S::add(two, S::add(sum(2), sum(3)));
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(of_row(step) + first_run + run),
                 "l"(word_of(step) | __float_as_uint(all))
                 : "memory");
  }

 protected:
  static __device__ __forceinline__ Word word_of(int step) { return static_cast<Word>(step + 1) << 32; }
  static __device__ __forceinline__ bool has_come(Word word, int step) { return (word ^ word_of(step)) >> 32 == 0; }
  static __device__ __forceinline__ float sum_of(Word word) { return __uint_as_float(static_cast<unsigned>(word)); }
  /// Of neighbouring words that the lanes have added up.
  static __device__ __forceinline__ float add_lanes(float sum) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      sum = fold::Scalar<float>::add(sum, __shfl_xor_sync(lift::kWholeWarp, sum, distance));
    return sum;
  }
  __device__ __forceinline__ Word* of_row(int step) const { return words + step % GroupRows::kPlaces * pitch; }
};

/// Of rows of up to kRuns runs. A row's words are brought to the block's shared memory when its successor is folded,
/// and again until all have come. (No fence orders the copy engine behind the words' stores, and none has to: a word of
/// 8 bytes is there whole, or not yet.)
template <int kRunWarps, int kRuns>
struct GroupMail : GroupWords<kRunWarps> {
  using Words = GroupWords<kRunWarps>;
  using Word = typename Words::Word;
  using Words::add_lanes, Words::has_come, Words::of_row, Words::pitch, Words::runs, Words::sum_of;
  static constexpr int kOfLane = kRuns / 32;  ///< neighbouring words, which a lane adds up first

  alignas(16) Word landed[kRuns];
  CopyBarrier arrived, summed[2];
  int fetched;    ///< times
  float sums[2];  ///< of rows, by turns

  /// Then CopyBarrier::publish().
  __device__ __forceinline__ void init(const GroupRows& p, int block_warps) {
    Words::init(p, block_warps);
    arrived.init(1);
    for (CopyBarrier& barrier : summed) barrier.init(1);
    fetched = 0;
  }
  /// The row's words to shared memory, as many as have come.
  __device__ __forceinline__ void fetch(int step) {
    if (thread_index() != 0) return;
    const int bytes = pitch * static_cast<int>(sizeof(Word));
    ++fetched;
    arrived.expect(bytes);
    arrived.copy(landed, of_row(step), bytes);
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
    sum = add_lanes(sum);
    if (lane_index() == 0) {
      sums[step % 2] = sum;
      summed[step % 2].arrive();
    }
    return sum;
  }

 private:
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
      come = come && has_come(word, step);
      return sum_of(word);
    }
  }
};

/// Where shared memory has no room for words: some warps look for a span of them each, and tell the block's others what
/// they add up to. (Slower by 2 to 6 percent where there is room.)
///
/// Who looks for a row's words has seen no others than its own span's, so a warp of the block may still be two rows
/// behind: it has sent the words of the row before that, and so received those of three rows before. Sums have as many
/// places as words.
template <int kRunWarps>
struct GroupLooks : GroupWords<kRunWarps> {
  using Words = GroupWords<kRunWarps>;
  using Word = typename Words::Word;
  using Words::add_lanes, Words::has_come, Words::of_row, Words::runs, Words::sum_of, Words::warps;
  static constexpr int kOfLane = 4, kSpan = 32 * kOfLane, kMostSpans = 8, kMostRuns = kMostSpans * kSpan;

  CopyBarrier summed[2];
  float spans[GroupRows::kPlaces][kMostSpans];

  /// Then CopyBarrier::publish().
  __device__ __forceinline__ void init(const GroupRows& p, int block_warps) {
    Words::init(p, block_warps);
    for (CopyBarrier& barrier : summed) barrier.init((runs + kSpan - 1) / kSpan);
    for (auto& row : spans)
      for (float& span : row) span = 0.F;
  }
  __device__ __forceinline__ void fetch(int) const {}
  /// The row's sum, once all words have come.
  __device__ __forceinline__ float receive(int step) {
    using S = fold::Scalar<float>;
    CopyBarrier& all = summed[MailTurns::place(step)];
    float(&of)[kMostSpans] = spans[static_cast<unsigned>(step) % GroupRows::kPlaces];
#pragma unroll 1
    for (int span = warp_index(); span * kSpan < runs; span += warps) {
      const float sum = look_for(step, span * kSpan + lane_index() * kOfLane);
      if (lane_index() == 0) {
        of[span] = sum;
        all.arrive();
      }
    }
    all.wait(MailTurns::parity(step));
    return S::add(S::add(S::add(of[0], of[1]), S::add(of[2], of[3])),
                  S::add(S::add(of[4], of[5]), S::add(of[6], of[7])));
  }

 private:
  /// The sum of a span's words, the lane's from `at` on, once they have come.
  __device__ __forceinline__ float look_for(int step, int at) const {
    using S = fold::Scalar<float>;
    const Word* from = of_row(step) + at;
    float sum;
    bool come;
    do {
      Word of[kOfLane] = {};
#pragma unroll
      for (int i = 0; i < kOfLane; i += 2)
        if (at + i < runs)
          asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                       : "=l"(of[i]), "=l"(of[i + 1])
                       : "l"(from + i)
                       : "memory");
      come = true;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) come = come && (at + i >= runs || has_come(of[i], step));
      sum = S::add(S::add(sum_of(of[0]), sum_of(of[1])), S::add(sum_of(of[2]), sum_of(of[3])));
    } while (!__all_sync(lift::kWholeWarp, come));
    return add_lanes(sum);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
