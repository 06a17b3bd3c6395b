// What a mask, lengths or a causal limit hide of rows that lie side by side, and these rows' own scales.
#pragma once

#include "cuda/across_frame.cuh"
#include "cuda/across_tiles.hpp"
#include "cuda/columns.cuh"
#include "cuda/hidden.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How the bytes of a mask lie that belong to a word's rows: as a word, as one byte for all of them, or apart.
enum class MaskRows : std::uint8_t { word, same, apart };

/// An operand with a value a row, or a mask by its rows' first bytes; null if it is not given.
struct RowValues {
  const char* data;
  std::int64_t outer, row;  ///< bytes between neighbours
  DType dtype;

  RowValues(const RowProblem& p, const Operand& o)
      : data(o.given ? o.data : nullptr),
        outer(o.given ? outer_stride(p, o) : 0),
        row(o.given ? o.strides[static_cast<std::size_t>(p.outer_rank - 1)] : 0),
        dtype(o.dtype) {}
  __device__ __forceinline__ const char* at(unsigned outer_index, std::int64_t row_index) const {
    return data + outer_index * outer + row_index * row;
  }
};

/// What is hidden of all rows, and their scales.
struct HiddenColumns {
  RowValues mask, length, scales;
  std::int64_t mask_axis;  ///< bytes between neighbours
  MaskRows mask_rows;
  bool causal;
  std::int64_t causal_first;  ///< elements of the first of the rows side by side, less one
  std::int64_t n;
  double scale;

  /// With `rows` neighbouring rows to a word.
  HiddenColumns(const RowProblem& p, int rows)
      : mask(p, p[Slot::mask]),
        length(p, p[Slot::length]),
        scales(p, p[Slot::scales]),
        mask_axis(p[Slot::mask].axis_stride),
        mask_rows(mask.row == 0 ? MaskRows::same : MaskRows::apart),
        causal(p.causal),
        causal_first(p.n - inner_of(p)),
        n(p.n),
        scale(p.scale) {
    const auto any = reinterpret_cast<std::uintptr_t>(mask.data) | static_cast<std::uintptr_t>(mask.outer | mask_axis);
    if (mask.row == 1 && any % static_cast<unsigned>(rows) == 0) mask_rows = MaskRows::word;
  }

  /// How many elements a row has, if no mask hides some.
  __device__ __forceinline__ std::int64_t length_of(unsigned outer, std::int64_t row) const {
    std::int64_t there = n;
    if (length.data != nullptr) there = clamp(integer_at(length.dtype, length.at(outer, row)), n);
    return causal ? clamp(row + 1 + causal_first, there) : there;
  }
  /// Whether the mask hides the row's element `begin`.
  __device__ __forceinline__ bool hides(unsigned outer, std::int64_t row, std::int64_t begin) const {
    return mask.data != nullptr && mask.at(outer, row)[begin * mask_axis] == 0;
  }
  __device__ __forceinline__ double scale_of(unsigned outer, std::int64_t row) const {
    if (scales.data == nullptr) return scale;
    const char* at = scales.at(outer, row);
    return scale * real_at(scales.dtype, at);
  }
};

/// What is shown of a row that a warp takes alone, from the element `begin` on.
struct ShownOfOne {
  static constexpr bool kHides = true;
  const char* mask;  ///< null: all in front of `length`
  std::int64_t axis, length;

  __device__ __forceinline__ ShownOfOne(const HiddenColumns& h, unsigned outer, std::int64_t row, std::int64_t begin)
      : mask(h.mask.data == nullptr ? nullptr : h.mask.at(outer, row) + begin * h.mask_axis),
        axis(h.mask_axis),
        length(h.length_of(outer, row) - begin) {}
  __device__ __forceinline__ bool operator()(int i) const {
    return i < length && (mask == nullptr || mask[i * axis] != 0);
  }
};

/// kMagic less a row's even frame, guessed from an element; the frame is 0 where that is hidden, no number, or too
/// large.
__device__ __forceinline__ float guess_of_hidden(float x, float c, bool is_hidden) {
  const float magic = AcrossFrame::guess(x, c);
  return is_hidden || fold::is_nan(magic) ? fold::Real<float>::kMagic : magic;
}
/// Whether elements need no other factor than c, as lift::Factor has it.
__device__ __forceinline__ bool is_plain_factor(float c) { return c != 0.F && fabsf(c) < fold::infinity<float>(); }

/// Which of a lane's kCount elements of each of its rows are shown, a bit each.
template <int kRows, int kCount>
struct ShownColumn {
  static constexpr int kSide = 32 / kRows;  ///< bits of a row in a word
  static constexpr int kWords = (kCount + kSide - 1) / kSide;
  using Bytes = std::conditional_t<kRows == 1, unsigned char, std::conditional_t<kRows == 2, unsigned short, unsigned>>;

  unsigned words[kWords];
  int reach;  ///< no row has more elements, but for those that its mask hides

  __device__ __forceinline__ bool operator()(int row, int j) const {
    unsigned word = words[0];  // where j is not known to the compiler, words shall not lie in memory
#pragma unroll
    for (int w = 1; w < kWords; ++w) word = j < w * kSide ? word : words[w];
    return (word >> (kSide * row + j % kSide) & 1U) != 0;
  }

  /// A number of the row's j-th element, or 0 if that is hidden. By a select: the compiler would branch around what
  /// finds the number.
  __device__ __forceinline__ float kept(int row, int j, float number) const {
    const unsigned bit = words[j / kSide] & 1U << (kSide * row + j % kSide);
    float kept;
    asm("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n selp.f32 %0, %1, 0f00000000, p;\n}"
        : "=f"(kept)
        : "f"(number), "r"(bit));
    return kept;
  }

  /// What lengths say, by which a row has count(row) elements.
  template <class Count>
  __device__ __forceinline__ explicit ShownColumn(const Count& count) : reach(0) {
#pragma unroll
    for (unsigned& word : words) word = 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int own = count(row);
      reach = max(reach, own);
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] |= lowest_bits(min(own - w * kSide, kSide)) << kSide * row;
    }
  }
  /// Of what a warp has of its rows.
  __device__ __forceinline__ ShownColumn(const HiddenColumns& h, const ColumnPlace& at)
      : ShownColumn([&](int row) {
          if (h.length.data == nullptr && !h.causal) return at.there;
          const std::int64_t rest = h.length_of(at.outer, std::int64_t{at.column} * kRows + row) - at.begin;
          return static_cast<int>(clamp((rest + (1 << at.residue_bits) - 1) >> at.residue_bits, at.there));
        }) {}

  /// Leaves out what the mask hides. Its bytes are asked for by kBatch elements at a time.
  template <int kBatch = kCount>
  __device__ __forceinline__ void hide(const HiddenColumns& h, const ColumnPlace& at) {
    hide<kBatch>(h, at.outer, at.column, at.begin, at.residue_bits);
  }
  /// Elements from `first` on, 1 << residue_bits apart, of a word of rows.
  template <int kBatch = kCount>
  __device__ __forceinline__ void hide(const HiddenColumns& h, unsigned outer, unsigned column, std::int64_t first,
                                       int residue_bits) {
    static_assert(kCount % kBatch == 0);
    if (h.mask.data == nullptr) return;
    const char* from = h.mask.at(outer, std::int64_t{column} * kRows) + first * h.mask_axis;
    const std::int64_t step = h.mask_axis << residue_bits;
    unsigned of_mask[kWords] = {};
#pragma unroll
    for (int begin = 0; begin < kCount; begin += kBatch, from += kBatch * step) {
      unsigned bytes[kBatch];
      ask(bytes, h, from, step, reach - begin);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        constexpr int kHighest = 7;  // of a byte
        const unsigned flags = flags_of(kRows == 2 ? __byte_perm(bytes[j], 0, 0x4140) : bytes[j]);
        const int to = (begin + j) % kSide;
        of_mask[(begin + j) / kSide] |= to > kHighest ? flags << (to - kHighest) : flags >> (kHighest - to);
      }
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] &= of_mask[w];
  }

 private:
  static __device__ __forceinline__ unsigned byte(const char* place) {
    return *reinterpret_cast<const unsigned char*>(place);
  }
  /// The bytes of `there` elements of each row, side by side. However they lie, all are on their way before any is
  /// used.
  template <int kBatch>
  static __device__ __forceinline__ void ask(unsigned (&bytes)[kBatch], const HiddenColumns& h, const char* from,
                                             std::int64_t step, int there) {
    const auto each = [&](const auto& load) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j, from += step) {
        bytes[j] = 0;
        if (j < there) bytes[j] = load(from);
      }
    };
    if (h.mask_rows == MaskRows::word)
      return each([](const char* place) { return static_cast<unsigned>(*reinterpret_cast<const Bytes*>(place)); });
    if (h.mask_rows == MaskRows::same)
      return each([](const char* place) { return byte(place) * (0x01010101U >> (32 - 8 * kRows)); });
    each([&](const char* place) {
      unsigned all = 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) all |= byte(place + row * h.mask.row) << 8 * row;
      return all;
    });
  }
};

/// What is shown of a word of rows from the element `base` on, up to a chunk.
template <int kRows>
struct HiddenWord {
  const HiddenColumns& hidden;
  unsigned outer, column;
  std::int64_t base;
  int ends[kRows];  ///< elements, if no mask hides some

  __device__ __forceinline__ HiddenWord(const HiddenColumns& h, unsigned outer_, unsigned column_, std::int64_t base_)
      : hidden(h), outer(outer_), column(column_), base(base_) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      ends[row] = static_cast<int>(clamp(h.length_of(outer, std::int64_t{column} * kRows + row) - base, lift::kChunk));
  }
  /// Of `there` elements from base + first on, 1 << residue_bits apart. load(reach): asks for so many of them.
  template <int kRun, class Load>
  __device__ __forceinline__ ShownColumn<kRows, kRun> run(int first, int residue_bits, int there,
                                                          const Load& load) const {
    ShownColumn<kRows, kRun> shown(
        [&](int row) { return max(0, min((ends[row] - first + (1 << residue_bits) - 1) >> residue_bits, there)); });
    load(shown.reach);
    shown.hide(hidden, outer, column, base + first, residue_bits);
    return shown;
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
