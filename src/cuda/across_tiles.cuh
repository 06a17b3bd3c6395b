// softmax and log_softmax of plain rows that lie side by side: blocks stay for many tiles of neighbouring rows, and the
// copy engine brings the next tiles to shared memory while this one is folded and written.
#pragma once

#include "cuda/across_words.cuh"
#include "cuda/sm90/boxes.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kTileWarps = 16;   ///< of a block
inline constexpr int kTileStages = 8;   ///< of a group's ring, at most
inline constexpr int kTileBlocks = 16;  ///< of a cluster, at most
inline constexpr int kTileRun = 1024;   ///< tiles of a group, at most
inline constexpr int kTileColumns = 16,
                     kTileLongBytes = 64;  ///< words and bytes of a tile's row that has several chunks

/// How rows are shared. A tile is a chunk of `words` neighbouring words of 4 bytes. A group of warps takes a tile at a
/// time; rows of several chunks are taken by a cluster, a chunk a block. Thread t of a group has word t % words of the
/// elements t / words, t / words + classes, ...: its words lie a constant distance from each other in shared memory, a
/// warp's side by side, and the tree's strides from `classes` on stay in the thread.
struct AcrossTiles {
  const char* x;
  char* y;
  std::int64_t x_outer, y_axis, y_outer;  ///< bytes between neighbours
  std::int64_t n;
  int inner;                ///< rows side by side
  int words, warps;         ///< of a tile, of a group: powers of two
  int classes;              ///< threads that share a row: a power of two
  int stages, stage_bytes;  ///< of a group's ring
  int boxes, height;        ///< of a stage, of a box
  unsigned across, tiles;   ///< tiles side by side, and in all
  Empty empty;
  fold::Scale<float> scale;
  float two_kappa;  ///< of fold::LogNormaliser
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

/// What is known of kRows rows from some of their elements. The terms are in an even frame that all threads of a row
/// share; log_softmax needs the row's own, which follows from the highest n.
template <int kRows, bool kLog>
struct alignas(8) AcrossPart {
  float sum[kRows];
  __device__ __forceinline__ void join(const AcrossPart& other) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) sum[row] = fold::Scalar<float>::add(sum[row], other.sum[row]);
  }
};
template <int kRows>
struct alignas(8) AcrossPart<kRows, true> {
  float sum[kRows];
  int high[kRows];
  __device__ __forceinline__ void join(const AcrossPart& other) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sum[row] = fold::Scalar<float>::add(sum[row], other.sum[row]);
      high[row] = max(high[row], other.high[row]);
    }
  }
};

/// What the threads of a block and the blocks of a cluster exchange; parts by turns, so that who is early overwrites
/// nothing that who is late still reads.
template <int kRows, bool kLog>
struct AcrossMail {
  using Part = AcrossPart<kRows, kLog>;
  using State = fold::LogSumExp<float>::State;
  alignas(128) char first_rows[kTileStages][2 * kTileLongBytes];  ///< elements 0, of which the other chunks know none
  Part parts[2][kTileWarps][32];
  Part blocks[2][kTileBlocks][kTileColumns];
  State states[kTileBlocks][kTileColumns * kRows];  ///< of tiles whose elements lie far apart
  unsigned apart[kTileWarps][kTileRun / 32];        ///< tiles whose elements lie far apart, a bit each
  CopyBarrier full[kTileWarps][kTileStages], arrived[2];
};

/// A thread's elements of a tile.
template <class E, bool kLog>
struct AcrossThread {
  using S = fold::Scalar<float>;
  /// How far n may lie from the frame: sums of 2^14 chunks stay within float32, and no result is below 2^-124.
  static constexpr int kFar = 54, kFrame = 0x4B400000;  ///< the bits of kMagic
  static constexpr int kRows = 4 / static_cast<int>(sizeof(E)), kCount = 32;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Part = AcrossPart<kRows, kLog>;

  float v[kRows][kCount];  ///< terms (log_softmax: elements); 0 beyond the last
  float magic[kRows];      ///< kMagic less the rows' even frames

  /// Frames are guessed from one element of each row.
  __device__ __forceinline__ void guess(unsigned address, float c) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    Words::unpack(fold::bits_as<Word>(word_at(address)), magic);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int n = static_cast<int>(S::sub(S::fma(magic[row], c, kMagic), kMagic));
      // Outside the fast range there is no frame: NaN lies far from everything.
      constexpr int kMost = static_cast<int>(fold::Real<float>::kFastHighest) - 256;
      const bool is_fast = n <= kMost && n >= -kMost;
      magic[row] = is_fast ? S::sub(kMagic, static_cast<float>(n & ~1)) : fold::canonical_nan<float>();
    }
  }

  /// The words from `at` on, `step` bytes apart, of which the first `there` exist; every thread of a row has `least` or
  /// one more. False unless all elements lie close to their frames. z, which is kMagic where n is the frame, orders by
  /// its bits; NaN and +inf lie above all close ones, and negative numbers below.
  template <bool kWhole>
  __device__ __forceinline__ bool fold(unsigned at, unsigned step, int there, int least, float c, Part& part) {
    Word raw[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j, at += step)
      if (kWhole || j / kBlock * kBlock <= least) raw[j] = fold::bits_as<Word>(word_at(at));
    int high[kRows], low[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) high[row] = low[row] = kFrame;
    float terms[kRows][kCount];
#pragma unroll
    for (int j = 0; j < kCount; j += kBlock) {
      if (kWhole || j + kBlock <= least) {
        fold_block<true>(j, raw, terms, there, c, high, low);
      } else if (j <= least) {
        fold_block<false>(j, raw, terms, there, c, high, low);
      } else {
#pragma unroll
        for (int i = j * kRows; i < (j + kBlock) * kRows; ++i)
          terms[i % kRows][i / kRows] = v[i % kRows][i / kRows] = 0.F;
      }
    }
    bool close = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      part.sum[row] = add(terms[row]);
      if constexpr (kLog) part.high[row] = high[row];
      close = close && high[row] <= kFrame + kFar && low[row] >= kFrame - kFar;
    }
    return close;
  }

  /// What is known of a row as its state. (softmax does without the row's own frame.)
  __device__ __forceinline__ fold::LogSumExp<float>::State state(int row, const Part& part) const {
    if constexpr (kLog) {
      const float d = __int_as_float(__float_as_int(part.sum[row]) - ((part.high[row] - kFrame) << 23));
      return {static_cast<double>(S::sub(__int_as_float(part.high[row]), magic[row])), d};
    }
    return {0., part.sum[row]};
  }

 private:
  static constexpr int kBlock = 8;
  /// Words j to j + kBlock - 1, of which all are there, or the first.
  template <bool kWhole>
  __device__ __forceinline__ void fold_block(int j0, const Word (&raw)[kCount], float (&terms)[kRows][kCount],
                                             int there, float c, int (&high)[kRows], int (&low)[kRows]) {
#pragma unroll
    for (int j = j0; j < j0 + kBlock; j += 2) {
      float a[kRows], b[kRows];
      Words::unpack(kWhole || j < there ? raw[j] : raw[0], a);
      Words::unpack(kWhole || j + 1 < there ? raw[j + 1] : raw[0], b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float za = S::fma(a[row], c, magic[row]), zb = S::fma(b[row], c, magic[row]);
        high[row] = __vimax3_s32(high[row], __float_as_int(za), __float_as_int(zb));
        low[row] = __vimin3_s32(low[row], __float_as_int(za), __float_as_int(zb));
        terms[row][j] = kWhole || j < there ? term(a[row], za, magic[row], c) : 0.F;
        terms[row][j + 1] = kWhole || j + 1 < there ? term(b[row], zb, magic[row], c) : 0.F;
        v[row][j] = kLog ? a[row] : terms[row][j];
        v[row][j + 1] = kLog ? b[row] : terms[row][j + 1];
      }
    }
  }
  static __device__ __forceinline__ float term(float x, float z, float magic, float c) {
    const float p = fold::exp2_fraction<S>(S::fma(x, c, -S::sub(z, magic)));
    return __int_as_float(__float_as_int(p) + (__float_as_int(z) << 23));
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
