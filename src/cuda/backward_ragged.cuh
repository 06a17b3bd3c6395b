// The gradients of softmax and log_softmax of ragged rows with one read: what their kernels share. Rows up to a chunk
// are a warp's, which leaves longer ones on a queue for blocks, and these the longest on a list for all blocks.
#pragma once

#include "cuda/gradient_vectors.cuh"
#include "cuda/in_order.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/ragged_long.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block for rows of several chunks.
inline constexpr int kHeldWarps = 16;
/// The longest of which a block has several.
inline constexpr int kHeldElements = kHeldWarps * lift::kChunk;
/// Chunks up to which a block has a row to itself.
inline constexpr int kOwnChunks = 256;

using GradientList = RaggedListOf<GradientState<float>>;

/// Rows of more than a chunk, in the workspace: from the front those of which a block holds several, from the back
/// longer ones.
struct GradientQueue {
  struct Counters {
    unsigned held, longer;      ///< rows, also such as had no room
    unsigned taken;             ///< of the longer ones
    unsigned long long groups;  ///< GradientList::taken
  };
  Counters* counters;
  int* rows;
  unsigned capacity;

  /// By all lanes of a warp, each its own row, of n elements.
  __device__ __forceinline__ void append(std::int64_t row, std::int64_t n) const {
    put(n > lift::kChunk && n <= kHeldElements, counters->held, row, 0);
    put(n > kHeldElements, counters->longer, row, capacity - 1);
  }
  __device__ __forceinline__ unsigned held() const { return min(counters->held, capacity); }
  __device__ __forceinline__ unsigned longer() const { return min(counters->longer, capacity); }
  __device__ __forceinline__ std::int64_t longer_row(unsigned i) const { return rows[capacity - 1 - i]; }

 private:
  __device__ __forceinline__ void put(bool own, unsigned& count, std::int64_t row, unsigned end) const {
    const unsigned all = __ballot_sync(lift::kWholeWarp, own);
    if (all == 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned at = 0;
    if (lane == 0) at = atomicAdd(&count, static_cast<unsigned>(__popc(all)));
    at = __shfl_sync(lift::kWholeWarp, at, 0) + __popc(all & ((1U << lane) - 1U));
    // Rows that do not overlap all find room.
    if (own && at < capacity) rows[end == 0 ? at : end - at] = static_cast<int>(row);
  }
};

/// What all rows have in common.
template <class E>
struct RaggedGradient {
  static constexpr std::int64_t kSize = sizeof(E);

  const RowProblem& p;

  __device__ __forceinline__ const char* y(std::int64_t i) const { return p[Slot::x].data + i * kSize; }
  __device__ __forceinline__ const char* dy(std::int64_t i) const { return p[Slot::dy].data + i * kSize; }
  __device__ __forceinline__ char* dx(std::int64_t i) const { return p[Slot::y].data + i * kSize; }
};

/// Up to a chunk of neighbouring elements of y and dy in a warp's shared memory, where they lie to 16-byte boundaries
/// as in memory.
template <class E>
struct GradientPlace {
  static constexpr int kSize = static_cast<int>(sizeof(E));
  static constexpr int kRoom = kGradientRoom<E>, kBytes = 2 * kRoom;

  char *y_vectors, *dy_vectors;
  int shift;  ///< bytes from there to the first elements

  /// first: an element of x.
  __device__ __forceinline__ GradientPlace(const RaggedGradient<E>& of, char* memory, std::int64_t first)
      : y_vectors(place_in_sectors(memory, of.y(first))),
        dy_vectors(place_in_sectors(memory + kRoom, of.dy(first))),
        shift(static_cast<int>(reinterpret_cast<std::uintptr_t>(of.y(first)) % 16)) {}
  /// The i-th element of each.
  __device__ __forceinline__ char* y(int i) const { return y_vectors + shift + i * kSize; }
  __device__ __forceinline__ char* dy(int i) const { return dy_vectors + shift + i * kSize; }
  /// By one lane: both are equally far from where memory begins and ends.
  __device__ __forceinline__ void fetch(const RaggedGradient<E>& of, CopyBarrier& landed, std::int64_t first,
                                        int n) const {
    const std::int64_t from = first * kSize - shift, all = of.p.ragged_elements * kSize;
    const int end = (shift + n * kSize + 15) / 16 * 16;
    const int head = from < 0 ? 16 : 0, tail = from + end > all ? 16 : 0, bytes = max(end - head - tail, 0);
    const char *y_from = of.y(first) - shift, *dy_from = of.dy(first) - shift;
    landed.expect(2 * bytes);
    if (bytes > 0)
      landed.copy(y_vectors + head, y_from + head, bytes), landed.copy(dy_vectors + head, dy_from + head, bytes);
    if ((head | tail) == 0) return;
    // Vectors that reach beyond memory, an element at a time.
    const auto bring = [&](int begin, int up_to) {
      for (int i = max(begin, shift); i < min(up_to, shift + n * kSize); i += kSize) {
        *reinterpret_cast<E*>(y_vectors + i) = *reinterpret_cast<const E*>(y_from + i);
        *reinterpret_cast<E*>(dy_vectors + i) = *reinterpret_cast<const E*>(dy_from + i);
      }
    };
    bring(0, head);
    if (tail != 0) bring(end - tail, end);
    fence_for_copy();  // which may bring others there
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
