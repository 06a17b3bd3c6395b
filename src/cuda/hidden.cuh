// Rows of which a mask, lengths or a causal limit hide elements, or with scales of their own: what of a row is there.
#pragma once

#include "cuda/cut_tile.cuh"
#include "cuda/divisor.hpp"
#include "cuda/masked.cuh"
#include "cuda/sm90.cuh"

#include <optional>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// x and y, or y, dy and dx of gradients, at one stride each; the mask, lengths and scales may lie along any outer
/// axes.
struct HiddenProblem {
  PlainRows rows, dy;
  RowProblem p;
  Extent mask;
};
HiddenProblem hidden_problem(const RowProblem& p);
/// Bytes between neighbouring rows of an operand, if they are the same between all.
std::optional<std::int64_t> one_stride(const RowProblem& p, const Operand& o);
/// Whether the masks of neighbouring rows lie end to end.
bool masks_end_to_end(const RowProblem& p);
/// Whether many rows, neighbouring ones among them, have their masks from the same few lines of memory.
bool masks_are_shared(const RowProblem& p);
/// Null if it is one.
const char* refuses_hidden_problem(const RowProblem& p);

/// Where an operand's rows are that have at most two steps between neighbours: most masks and lengths.
struct RowSteps {
  Divisor run;  ///< rows `inner` bytes apart; from one run to the next `outer`
  std::int64_t inner = 0, outer = 0;

  /// Of rows below 2^31.
  __device__ __forceinline__ std::int64_t offset(std::uint32_t row) const {
    const std::uint32_t of = run.quotient(row);
    return of * outer + (row - of * run.value) * inner;
  }
};
/// Nothing if there are more.
std::optional<RowSteps> row_steps(const RowProblem& p, const Operand& o);

/// Those of all that says what of a row is there.
struct HiddenSteps {
  RowSteps mask, length, scale;
  Divisor steps;  ///< rows of the last outer axis, which a causal limit goes by
};

/// What of a row is there.
struct HiddenRow {
  const char* mask;
  int length;
  double scale;

  /// Of a row whose place is known by steps.
  __device__ __forceinline__ HiddenRow(const RowProblem& p, const HiddenSteps& at, std::uint32_t row)
      : mask(p[Slot::mask].data + at.mask.offset(row)), length(static_cast<int>(p.n)), scale(p.scale) {
    const Operand &lengths = p[Slot::length], &scales = p[Slot::scales];
    if (lengths.given)
      length = static_cast<int>(clamp(integer_at(lengths.dtype, lengths.data + at.length.offset(row)), p.n));
    if (p.causal) cut(p, row - at.steps.quotient(row) * at.steps.value);
    if (scales.given) scale *= real_at(scales.dtype, scales.data + at.scale.offset(row));
  }

  __device__ __forceinline__ HiddenRow(const RowProblem& p, std::int64_t row)
      : mask(p[Slot::mask].data), length(static_cast<int>(p.n)), scale(p.scale) {
    const Operand &masks = p[Slot::mask], &lengths = p[Slot::length], &scales = p[Slot::scales];
    const char *length_at = lengths.data, *scale_at = scales.data;
    std::int64_t last = 0;
    // The row's place along each axis, as RowPlace has them, of no more operands than there are.
#pragma unroll 1
    for (int d = p.outer_rank - 1; d >= 0; --d) {
      const auto axis = static_cast<std::size_t>(d);
      const std::int64_t next = d > 0 ? quotient(row, p.outer[axis]) : 0, at = row - next * p.outer[axis];
      if (d == p.outer_rank - 1) last = at;
      mask += at * masks.strides[axis], length_at += at * lengths.strides[axis], scale_at += at * scales.strides[axis];
      row = next;
    }
    if (lengths.given) length = static_cast<int>(clamp(integer_at(lengths.dtype, length_at), p.n));
    if (p.causal) cut(p, last);
    if (scales.given) scale *= real_at(scales.dtype, scale_at);
  }

 private:
  /// To what a causal limit leaves of the `at`-th row of the last outer axis.
  __device__ __forceinline__ void cut(const RowProblem& p, std::int64_t at) {
    const std::int64_t steps = p.outer[static_cast<std::size_t>(p.outer_rank - 1)];
    length = static_cast<int>(clamp(at + 1 + p.n - steps, std::int64_t{length}));
  }
};

/// Room in shared memory for `most` of a mask's bytes, and for what is read around them: from the vector that the first
/// element lies in to the one behind the last element's.
constexpr SOFTFOLD_HD int mask_room(int most) { return whole_lines(kCopyLine + kCopySector + most + 16); }
/// Where in it, which begins on a line, the bytes of the 16 that hold `first` lie.
__device__ __forceinline__ char* mask_place(char* room, const char* first) {
  return place_in_sectors(room + kCopyLine, first);
}

/// A word of which the lowest `count` bits are set: none of less than one, all of more than 32.
__device__ __forceinline__ unsigned lowest_bits(int count) {
  unsigned word;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(word) : "r"(max(count, 0)));
  return word;
}

/// put(i, flags) for each four elements of a lane's kVectors vectors of E: the highest bit of each byte says whether
/// the element is shown. Of a row's n elements, the first of which is the shift-th of its vector, those of the first
/// `length` are that the mask shows; without kMask all. Elements for which there is no place behind the last slot lie
/// in front of the first one. mask: the byte of the first element, in shared memory. The j-th vector is that of the
/// lane's slots (j ^ turn). kWhole: of the first so many vectors masks may be read as if the row had no end, and,
/// unless kCut, there is none in them.
template <class E, int kLanes, int kVectors, bool kMask, int kWhole, bool kCut, class Put>
__device__ __forceinline__ void find_shown(const char* mask, int shift, int n, int length, int turn, const Put& put) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kFours = kWidth / 4, kSlots = kLanes * kVectors * kWidth;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, before = kWidth * lane - shift;
  const unsigned skew = static_cast<unsigned>((reinterpret_cast<std::uintptr_t>(mask) + before) % 4);
  const auto* words = kMask ? reinterpret_cast<const unsigned*>(mask + before - skew) : nullptr;
  const int left = 8 * (length - before), last = (n - 1 - before + static_cast<int>(skew)) >> 2;
  // Of four elements from the i-th slot behind the lane's first on.
  const auto flags = [&](int i, bool whole) {
    unsigned all = 0x80808080U;
    const int at = whole ? i / 4 : min(i / 4, last);
    if (kMask) all = flags_of(__funnelshift_r(words[at], words[at + 1], 8 * skew));
    return whole && !kCut ? all : all & lowest_bits(left - 8 * i);
  };
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
#pragma unroll
    for (int k = 0; k < kFours; ++k) {
      unsigned own_flags = flags(kLanes * kWidth * (j ^ turn) + 4 * k, j < kWhole);
      if (j == 0 && lane == 0 && shift > 0) {
        const unsigned in_front = lowest_bits(8 * shift - 32 * k);
        own_flags &= ~in_front;
        if (kSlots == lift::kChunk) own_flags |= flags(kSlots + 4 * k, kWhole == kVectors) & in_front;
      }
      put(j * kFours + k, own_flags);
    }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
