// Gradients of rows of which a mask, lengths or a causal limit hide elements, or with scales of their own: what of a
// row is there, and how it is kept beside its elements.
#pragma once

#include "cuda/cut_tile.cuh"
#include "cuda/gradient_vectors.cuh"
#include "cuda/masked.cuh"
#include "cuda/plain_gradient.hpp"
#include "cuda/vector_masks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// y, dy and dx at one stride each; the mask, lengths and scales may lie along any outer axes.
struct HiddenGradient : PlainGradient {
  RowProblem p;
  Extent mask;
};
HiddenGradient hidden_gradient(const RowProblem& p);
/// Bytes between the masks of neighbouring rows, if they are the same between all; else less than none.
std::int64_t mask_stride(const RowProblem& p);
/// Null if it is one.
const char* refuses_hidden_gradient(const RowProblem& p);

/// What of a row is there.
struct HiddenRow {
  const char* mask;
  int length;
  float scale;

  __device__ __forceinline__ HiddenRow(const RowProblem& p, std::int64_t row) {
    const Row r = row_at(p, RowPlace(p, row));
    mask = r.mask, length = static_cast<int>(r.length), scale = static_cast<float>(r.scale);
  }
};

/// Room in shared memory for `most` of a mask's bytes: from the bytes of the vector that the first element lies in to
/// those of the last slot of a group of lanes.
constexpr SOFTFOLD_HD int mask_room(int most) { return whole_lines(kCopySector + room_in_sectors(most + 16) + 16); }
/// Where in it the bytes of the 16 that hold `first` lie.
__device__ __forceinline__ char* mask_place(char* room, const char* first) {
  return place_in_sectors(room + kCopySector, first);
}

/// Which elements of a lane's kVectors vectors are shown, a bit each.
template <class E, int kLanes, int kVectors>
class ShownElements {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E)), kFours = kWidth / 4;
  static constexpr int kSlots = kLanes * kVectors * kWidth;
  unsigned words_[(kVectors * kFours + 7) / 8];

 public:
  /// Of a row's first `length` elements, the first of which is the shift-th of its vector, those that the mask shows;
  /// without kMask all. mask: the byte of the first element, in shared memory, where all slots' may be read. wrapped:
  /// how many elements lie in front of the first one, as they have no place behind the last slot. The j-th vector is
  /// that of the lane's slots (j ^ turn).
  template <bool kMask>
  __device__ __forceinline__ void find(const char* mask, int shift, int length, int wrapped, int turn = 0) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes, before = kWidth * lane - shift;
    const unsigned skew = static_cast<unsigned>((reinterpret_cast<std::uintptr_t>(mask) + before) % 4);
    const auto* words = kMask ? reinterpret_cast<const unsigned*>(mask + before - skew) : nullptr;
    const int left = 8 * (length - before);
    // Of four elements from the i-th slot behind the lane's first on.
    const auto flags = [&](int i) {
      unsigned all = 0x80808080U;
      if (kMask) all = flags_of(__funnelshift_r(words[i / 4], words[i / 4 + 1], 8 * skew));
      return all & ones(left - 8 * i);
    };
#pragma unroll
    for (unsigned& word : words_) word = 0U;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
#pragma unroll
      for (int k = 0; k < kFours; ++k) {
        unsigned own_flags = flags(kLanes * kWidth * (j ^ turn) + 4 * k);
        if (j == 0 && lane == 0 && wrapped > 0) {
          const unsigned those = ones(8 * wrapped - 32 * k);
          own_flags = (flags(kSlots + 4 * k) & those) | (own_flags & ~those);
        }
        words_[(j * kFours + k) / 8] |= own_flags >> (j * kFours + k) % 8;
      }
  }
  /// All bits of those of the j-th vector.
  __device__ __forceinline__ uint4 of(int j) const {
    const auto flags = [&](int k) { return words_[(j * kFours + k) / 8] << (j * kFours + k) % 8; };
    if constexpr (kFours == 2) {
      const unsigned low = flags(0), high = flags(1);
      return {spread<0x9988>(low), spread<0xBBAA>(low), spread<0x9988>(high), spread<0xBBAA>(high)};
    } else {
      const unsigned all = flags(0);
      return {spread<0x8888>(all), spread<0x9999>(all), spread<0xAAAA>(all), spread<0xBBBB>(all)};
    }
  }

 private:
  /// A word of which the lowest `count` bits are set: none of less than one, all of more than 32.
  static __device__ __forceinline__ unsigned ones(int count) {
    unsigned word;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(word) : "r"(max(count, 0)));
    return word;
  }
};

/// y, dy and dx of a lane: what is hidden is Gradient::nothing() and -0, as what is not there, and 0 in dx.
template <class E, template <class> class Gradient, int kLanes, int kVectors>
struct HiddenVectors : GradientVectors<E, Gradient, kLanes, kVectors> {
  using Vectors = uint4[kVectors];
  using Shown = ShownElements<E, kLanes, kVectors>;

  static __device__ __forceinline__ void hide(Vectors& y, Vectors& dy, const Shown& shown) {
    const unsigned none = PackedGradients<E>::word_of(Gradient<float>::nothing());
    const unsigned zero = PackedGradients<E>::word_of(-0.F);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 bits = shown.of(j);
      y[j] = chosen(bits, y[j], {none, none, none, none});
      dy[j] = chosen(bits, dy[j], {zero, zero, zero, zero});
    }
  }
  /// y becomes dx.
  static __device__ __forceinline__ void finish(Vectors& y, const Vectors& dy, const Shown& shown,
                                                const Gradient<float>& through, bool any) {
    using Base = GradientVectors<E, Gradient, kLanes, kVectors>;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      y[j] = chosen(shown.of(j), Base::result(through, any, y[j], dy[j]), {0U, 0U, 0U, 0U});
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
