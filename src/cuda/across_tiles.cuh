// softmax and log_softmax of plain rows that lie side by side: blocks stay for many tiles of neighbouring rows, and the
// copy engine brings the next tiles to shared memory while this one is folded and written.
#pragma once

#include "cuda/across_frame.cuh"
#include "cuda/across_words.cuh"
#include "cuda/divisor.hpp"
#include "cuda/sm90/boxes.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kTileWarps = 16;   ///< of a block
inline constexpr int kTileStages = 8;   ///< of a group's ring, at most
inline constexpr int kTileBlocks = 16;  ///< of a cluster, at most
inline constexpr int kTileBest = 8;     ///< of one where rows allow it: larger ones find fewer places
inline constexpr int kTileWords = 64;   ///< of a tile's row, at most
inline constexpr int kTileMail = 8192;  ///< bytes of parts that the blocks of a cluster send one of them, at most
inline constexpr unsigned kNoTile = ~0U;

/// How rows are shared. A tile is `words` neighbouring words of 4 bytes of all elements. A group of warps takes a tile
/// at a time; rows over 256 elements are taken by a cluster: each chunk by `parts` blocks, of which one has the
/// elements i = part, part + parts, part + 2 parts, ... Of a block's elements, thread t of a group has word t % words
/// of the elements t / words, t / words + classes, ...: its words lie a constant distance from each other in shared
/// memory, a warp's side by side, and the tree's strides from `classes` elements of the block on stay in the thread.
struct AcrossTiles {
  const char* x;
  char* y;
  std::int64_t x_outer, y_axis, y_outer;  ///< bytes between neighbours
  std::int64_t n;
  int inner;                ///< rows side by side
  int chunks, part_bits;    ///< of a row; parts are 1 << part_bits
  int words, warps;         ///< of a tile, of a group: powers of two
  int classes;              ///< threads of a block that share a row: a power of two
  int stages, stage_bytes;  ///< of a group's ring
  int height, far_height;   ///< of a box of a stage, and of one that is folded row by row
  int boxes, last_boxes;    ///< of a stage; where it is of a row's last chunk
  Divisor across;           ///< tiles side by side
  unsigned tiles;           ///< in all
  unsigned run;             ///< tiles that a group draws at a time: a power of two
  unsigned* taken;          ///< tiles beyond each group's first ones, by turns
  unsigned* next;           ///< by tile and block: the tile of a group's list that was put there before it
  Empty empty;
  fold::Scale<float> scale;
  float two_kappa;  ///< of fold::LogNormaliser

  __device__ __forceinline__ int outer_of(unsigned tile) const { return static_cast<int>(across.quotient(tile)); }
};

/// Words of shared memory by their addresses, which take one register.
__device__ __forceinline__ unsigned word_at(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}
__device__ __forceinline__ void put_word(unsigned address, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/// A barrier of `threads` threads; whether `a` holds for all of them.
__device__ __forceinline__ bool all_of(int barrier, int threads, bool a) {
  int r;
  asm volatile(
      "{\n"
      ".reg .pred one, all;\n"
      "setp.ne.s32 one, %1, 0;\n"
      "barrier.cta.red.and.pred all, %2, %3, one;\n"
      "selp.s32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(r)
      : "r"(a ? 1 : 0), "r"(barrier), "r"(threads)
      : "memory");
  return r != 0;
}

/// The same barrier by threads that do not wait.
__device__ __forceinline__ void arrive_at(int barrier, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void wait_at(int barrier, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// What the threads of a block and the blocks of a cluster exchange; parts by turns, so that who is early overwrites
/// nothing that who is late still reads. kGroups: of a block of a cluster, or 0.
template <int kRows, bool kLog, int kGroups>
struct AcrossMail {
  static constexpr int kRings = kGroups > 0 ? kGroups : kTileWarps / 2, kSenders = kGroups > 0 ? kGroups : 1;
  using Part = AcrossPart<kRows, kLog>;
  using State = fold::LogSumExp<float>::State;
  static constexpr int kParts = kGroups > 0 ? kTileMail / kSenders / static_cast<int>(sizeof(Part)) : 1;
  static constexpr int kStates = kTileBlocks * kTileWords / 4 * kRows;
  alignas(128) char first_rows[kSenders][kGroups > 0 ? kTileStages : 1][kTileWords * 4];  ///< elements 0
  Part parts[2][kTileWarps][32];
  union {
    Part blocks[kSenders][2][kParts];
    alignas(16) char states[kStates * sizeof(State)];  ///< of tiles whose elements lie far apart
  };
  CopyBarrier full[kRings][kTileStages], far[kRings], arrived[kSenders][2], drawn[kSenders][2];
  unsigned tiles[kRings][kTileStages];  ///< of the rings' stages
  unsigned lasts[kRings];               ///< the tile to fetch next
  unsigned lists[kRings];               ///< of tiles whose elements lie far apart
  unsigned draws[kSenders][2];          ///< tiles that a cluster's first block has drawn, by turns
};

/// A thread's elements of a tile.
template <class E, bool kLog>
struct AcrossThread {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  static constexpr int kRows = 4 / static_cast<int>(sizeof(E)), kCount = 32;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Part = AcrossPart<kRows, kLog>;

  float v[kRows][kCount];  ///< terms; 0 beyond the last (log_softmax: elements, when results are put where they lie)
  float magic[kRows];      ///< kMagic less the rows' even frames

  /// Frames are guessed from one element of each row.
  __device__ __forceinline__ void guess(unsigned address, float c) {
    Words::unpack(fold::bits_as<Word>(word_at(address)), magic);
#pragma unroll
    for (int row = 0; row < kRows; ++row) magic[row] = Frame::guess(magic[row], c);
  }

  /// The words from `at` on, `step` bytes apart, of which the first `there` exist: every thread has `least`, and none
  /// more than `most`. False unless all elements lie close to their frames.
  template <bool kWhole>
  __device__ __forceinline__ bool fold(unsigned at, unsigned step, int there, int least, int most, float c,
                                       Part& part) {
    Word raw[kCount];
    read<kWhole>(raw, at, step, most);
    int high[kRows], low[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) high[row] = low[row] = Frame::kFrame;
    float terms[kRows][kCount];
#pragma unroll
    for (int j = 0; j < kCount; j += kBlock) {
      if (kWhole || j + kBlock <= least) {
        fold_block<true>(j, raw, terms, there, most, c, high, low);
      } else {
        fold_block<false>(j, raw, terms, there, most, c, high, low);
      }
    }
    bool close = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      part.sum[row] = add(terms[row]);
      if constexpr (kLog) part.high[row] = high[row];
      close = close && Frame::is_close(high[row], low[row]);
    }
    return close;
  }

  /// The words as elements once more.
  template <bool kWhole>
  __device__ __forceinline__ void read_again(unsigned at, unsigned step, int most) {
    Word raw[kCount];
    read<kWhole>(raw, at, step, most);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      float x[kRows];
      Words::unpack(raw[j], x);
#pragma unroll
      for (int row = 0; row < kRows; ++row) v[row][j] = x[row];
    }
  }

  /// What is known of a row as its state. (softmax does without the row's own frame.)
  __device__ __forceinline__ fold::LogSumExp<float>::State state(int row, const Part& part) const {
    if constexpr (kLog) return Frame::state(part.sum[row], part.high[row], magic[row]);
    return {0., part.sum[row]};
  }

 private:
  static constexpr int kBlock = 8;
  template <bool kWhole>
  static __device__ __forceinline__ void read(Word (&raw)[kCount], unsigned at, unsigned step, int most) {
#pragma unroll
    for (int j = 0; j < kCount; ++j, at += step) {
      raw[j] = Word{};  // or the compiler keeps what an earlier tile left there
      if (kWhole || j / kBlock * kBlock < most) raw[j] = fold::bits_as<Word>(word_at(at));
    }
  }
  /// Words j0 to j0 + kBlock - 1, of which all are there, or the first ones, or none.
  template <bool kWhole>
  __device__ __forceinline__ void fold_block(int j0, const Word (&raw)[kCount], float (&terms)[kRows][kCount],
                                             int there, int most, float c, int (&high)[kRows], int (&low)[kRows]) {
#pragma unroll
    for (int j = j0; j < j0 + kBlock; j += 2) {
      float a[kRows], b[kRows];
      const bool any = kWhole || j < most;  // of any thread
      if (any) {
        Words::unpack(kWhole || j < there ? raw[j] : raw[0], a);
        Words::unpack(kWhole || j + 1 < there ? raw[j + 1] : raw[0], b);
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        terms[row][j] = terms[row][j + 1] = 0.F;
        if (any) {
          const float za = S::fma(a[row], c, magic[row]), zb = S::fma(b[row], c, magic[row]);
          high[row] = __vimax3_s32(high[row], __float_as_int(za), __float_as_int(zb));
          low[row] = __vimin3_s32(low[row], __float_as_int(za), __float_as_int(zb));
          if (kWhole || j < there) terms[row][j] = Frame::term(a[row], za, magic[row], c);
          if (kWhole || j + 1 < there) terms[row][j + 1] = Frame::term(b[row], zb, magic[row], c);
        }
        if (kLog) continue;
        v[row][j] = terms[row][j];
        v[row][j + 1] = terms[row][j + 1];
      }
    }
  }
  /// The tree over a thread's elements.
  static __device__ __forceinline__ float add(const float (&terms)[kCount]) {
    float half[kCount / 2];
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) half[j] = S::add(terms[j], terms[j + kCount / 2]);
#pragma unroll
    for (int stride = kCount / 4; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        if (j < stride) half[j] = S::add(half[j], half[j + stride]);
    }
    return half[0];
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
