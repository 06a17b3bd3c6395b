// Rows with masks, and, for kernels whose clusters stay, a warp's part of a row's mask, which lands beside the part's
// elements: where they are read those that it hides are made absent ones, or a bit of each is kept.
#pragma once

#include "cuda/masked.cuh"
#include "cuda/softmax_plain.cuh"
#include "cuda/stay_rows.cuh"
#include "cuda/vector_masks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct MaskedRows : PlainRows {
  const char* mask;
  const char* mask_end;      ///< of all masks' memory, which begins at `mask`
  std::int64_t mask_stride;  ///< bytes between rows
};
MaskedRows masked_rows(const RowProblem& p);

/// n bytes of a mask from `first` on. In one place land masks of which all begin on 16 bytes; on vectors those that
/// begin some vectors' elements further, and anywhere all others: what lies around them lands, too, and what would lie
/// outside of all masks' memory a lane brings.
template <Lands kLands>
struct MaskPart {
  static constexpr bool kShifts = kLands != Lands::in_one_place;
  static constexpr int kLead = kShifts ? 16 : 0;  ///< in front of what lands: slots before a chunk's first element
  /// For up to `most` bytes.
  static constexpr int room(int most) { return kShifts ? whole_lines(kLead + 16 + most + 16) : most; }

  char* memory;
  const char* first;
  int n;

  /// How much comes.
  __device__ __forceinline__ int bytes(const MaskedRows& p) const {
    return kShifts ? max(0, static_cast<int>(end(p) - begin(p))) : n;
  }
  /// By one lane.
  __device__ __forceinline__ void fetch(CopyBarrier& barrier, const MaskedRows& p) const {
    if (const int size = bytes(p); !kShifts || size > 0)
      barrier.copy(place() + (begin(p) - around(first)), reinterpret_cast<const void*>(begin(p)), size);
  }
  /// Once it has landed, by all lanes of the warp; only outer parts need it.
  __device__ __forceinline__ void mend(const MaskedRows& p) const {
    static_assert(kShifts);
    const bool head = begin(p) != around(first), tail = end(p) != around(first + n + 15);
    if (!head && !tail) return;
    const int lane = lane_index();
    const std::uintptr_t at = (lane < 16 ? around(first) : around(first + n + 15) - 32) + static_cast<unsigned>(lane);
    const auto from = reinterpret_cast<std::uintptr_t>(first);
    if ((lane < 16 ? head : tail) && at >= from && at < from + static_cast<unsigned>(n))
      place()[at - around(first)] = *reinterpret_cast<const char*>(at);
    fence_for_copy();  // which may write here next
    __syncwarp();
  }
  /// Where the byte of the first element is.
  __device__ __forceinline__ const char* bytes_from() const {
    return place() + (kShifts ? reinterpret_cast<std::uintptr_t>(first) % 16 : 0);
  }
  /// The mask's bytes from its i-th on, of as many elements as a vector has.
  template <class Bytes>
  __device__ __forceinline__ Bytes at(int i) const {
    const char* from = bytes_from() + i;
    if constexpr (kLands != Lands::anywhere) return *reinterpret_cast<const Bytes*>(from);
    const unsigned bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from) % 4) * 8;
    const auto* words = reinterpret_cast<const unsigned*>(from - bits / 8);
    Bytes bytes;
    if constexpr (sizeof(Bytes) == 8) {
      const unsigned middle = words[1];
      bytes = {__funnelshift_r(words[0], middle, bits), __funnelshift_r(middle, words[2], bits)};
    } else {
      bytes = __funnelshift_r(words[0], words[1], bits);
    }
    return bytes;
  }

 private:
  __device__ __forceinline__ char* place() const { return memory + kLead; }
  static __device__ __forceinline__ std::uintptr_t around(const char* at) {
    return reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{15};
  }
  __device__ __forceinline__ std::uintptr_t begin(const MaskedRows& p) const {
    return around(first) + (around(first) < reinterpret_cast<std::uintptr_t>(p.mask) ? 16 : 0);
  }
  __device__ __forceinline__ std::uintptr_t end(const MaskedRows& p) const {
    const std::uintptr_t up_to = around(first + n + 15);
    return up_to - (up_to > reinterpret_cast<std::uintptr_t>(p.mask_end) ? 16 : 0);
  }
};

/// `absent` for the elements of a vector whose bytes are 0.
template <class E>
__device__ __forceinline__ void hide(uint4& raw, const MaskBytes<E>& bytes, float absent) {
  unsigned nothing = __float_as_uint(absent);
  if constexpr (sizeof(E) == 2) nothing = Packed<E>::narrow(absent).bits * 0x10001U;
  raw = chosen(shown_by<E>(bytes), raw, {nothing, nothing, nothing, nothing});
}
/// The same of a chunk of n elements whose mask lies in memory, a byte at a time.
template <class E, int kLanes, int kCount, int kVectors>
__device__ __forceinline__ void hide_in_memory(const Tile<E, kLanes, kCount>& tile, uint4 (&raw)[kVectors],
                                               const char* mask, int n, float absent) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (const int i = tile.element(j, k); i < n && mask[i] != 0) bits |= 1U << k;
    if constexpr (sizeof(E) == 2) {
      hide<E>(raw[j], {flags_of_bits(bits), flags_of_bits(bits >> 4)}, absent);
    } else {
      hide<E>(raw[j], flags_of_bits(bits), absent);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
