// A warp's part of the rows that softmax_cluster_guesses takes, in shared memory: where it lands, and what of the warp
// waits beside it.
#pragma once

#include "cuda/group_rows.cuh"
#include "cuda/masked_part.cuh"
#include "cuda/softmax_stay.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which rows a kernel takes, and how.
struct GuessForm {
  Leaves leaves;
  Lands lands;
  int chunks;         ///< of a row, at most
  bool behind;        ///< a warp keeps a row, its terms or, for log_softmax, its elements, until it has folded the next
  bool grid = false;  ///< a row is taken by a group of a grid's blocks (softmax_grid_guess.cuh)
  bool masked = false;  ///< elements that a mask hides are absent ones

  constexpr bool gradient() const { return leaves == Leaves::gradient; }
  constexpr bool log() const { return leaves == Leaves::log_softmax; }
  constexpr bool state() const { return leaves == Leaves::state; }
  /// Elements wait packed for the row's sum beside their terms; those of float32 stand where terms would.
  template <class E>
  constexpr bool packed() const {
    return log() && sizeof(E) == 2;
  }
};

template <class E, GuessForm kForm>
struct GuessShape : StayShape<E> {
  static_assert(!kForm.masked || (!kForm.behind && !kForm.gradient()));
  static_assert(!kForm.log() || !kForm.grid);
  static_assert(!kForm.state() || kForm.masked);
  using typename StayShape<E>::Place;
  using StayShape<E>::kCount;
  /// Of a group's rows: no room for parts to lie to sectors as they do in x, nor for words.
  static constexpr bool kTight = kForm.grid && kForm.lands == Lands::in_one_place;
  static constexpr int kRunWarps = run_warps(sizeof(E) == 4, kForm.chunks, kTight);
  static constexpr int kRoom = kTight ? 32 * kCount * Place::kSize : room_in_sectors(Place::kBytes);
  /// Behind the room for its elements, and its barrier: what it keeps, or its mask.
  static constexpr int kKept = kTight ? kRoom + kCopySector : whole_lines(kRoom + 16);
  using Mask = MaskPart<kForm.lands>;
  static constexpr int kMask = Mask::room(32 * kCount);
  static constexpr int kKeeps = 32 * kCount * (kForm.template packed<E>() ? Place::kSize : 4);
  static constexpr int kWarpBytes = kKept + (kForm.behind ? kKeeps : 0) + (kForm.masked ? kMask : 0);
};

/// What of a warp waits in shared memory: registers are for elements.
struct GuessWarp {
  uint4 ends;         ///< of results, on their way to rows that begin inside a vector
  int n;              ///< elements of its part of a row
  int chunk, chunks;  ///< the part's first chunk, and how many it has
  float filled;       ///< what stands behind the part's end in its landing place, if that stays
  float magic;        ///< of the frame of the row that is kept
  bool outer;         ///< near an end of the row: chunks may be cut, and vectors around them reach beyond x's memory
};

struct GuessWaits {
  GuessWarp of_warp[kStayWarps];
  /// A row's lands with the part of one warp: as soon as all have that warp's sum. The rows before and behind lie
  /// beside it, in places of a number by which remainders are cheap.
  static constexpr int kGradients = 4;
  GradientRow gradients[kGradients];
  static constexpr unsigned kGradientThread = 32;  ///< of a block's second warp: the first may have rows to take

  __device__ __forceinline__ GuessWarp& own() { return of_warp[warp_index()]; }
  __device__ __forceinline__ GradientRow& gradient(int step) {
    return gradients[static_cast<unsigned>(step) % kGradients];
  }
};

/// What a warp needs of its part of every row. It is found anew after each row that no guess held: what lives across a
/// call has to stay out of most registers, which are for elements.
template <class E, GuessForm kForm>
struct GuessPart {
  static constexpr bool kOnVectors = kForm.lands != Lands::anywhere, kMoves = kForm.lands != Lands::in_one_place;
  using Shape = GuessShape<E, kForm>;
  using Place = typename Shape::Place;
  static constexpr int kLanes = Shape::kLanes, kChunkBytes = lift::kChunk * Place::kSize;

  using GridRows = GroupRowsOf<Shape::kRunWarps>;
  using Problem = std::conditional_t<kForm.grid, GridRows, std::conditional_t<kForm.masked, MaskedRows, PlainRows>>;

  const Problem& p;
  GuessWaits& waits;
  int chunks;       ///< of a row
  int kept_chunk;   ///< chunk(), of 16 bit
  int count;        ///< elements of the lane's chunk; 0: it has none
  unsigned memory;  ///< of the warp

  __device__ __forceinline__ GuessPart(const Problem& p_, GuessWaits& waits_)
      : p(p_), waits(waits_), chunks(static_cast<int>(lift::chunk_count(p.n))) {
    const int group = lane_index() / kLanes;
    const ChunkShare share = share_of(p, chunks);
    kept_chunk = share.chunk + group;
    count = group < share.chunks ? min(static_cast<int>(p.n) - (share.chunk + group) * lift::kChunk, lift::kChunk) : 0;
    memory = shared_address(room_of(warp_index()));
    asm volatile("" : "+r"(memory));  // or it is found anew wherever it is needed
  }
  /// By all lanes, before anything else of the part is used.
  __device__ __forceinline__ void init() const {
    const ChunkShare share = share_of(p, chunks);
    const int n = min(static_cast<int>(p.n) - share.chunk * lift::kChunk, share.chunks * lift::kChunk);
    if constexpr (kForm.masked && !kMoves)  // what stands behind the part's end, where no copy writes, is hidden
      for (int i = n + 16 * lane_index(); i < Shape::kMask; i += 16 * 32)
        *reinterpret_cast<uint4*>(room() + Shape::kKept + i) = {};
    if (lane_index() != 0) return;
    // The last warp's part may be a few elements: vectors around the one before it reach beyond the row, too.
    const bool outer = share.chunk == 0 || share.chunk + share.chunks >= chunks - 1;
    waits.own() = {{}, n, share.chunk, share.chunks, fold::canonical_nan<float>(), 0.F, outer};
    landed().init(1);
  }
  /// The lane's. float32 has no register for it; 16 bit would wait for it (2 percent).
  __device__ __forceinline__ int chunk() const {
    if constexpr (sizeof(E) == 2) return kept_chunk;
    return waits.own().chunk + lane_index() / kLanes;
  }
  /// Whether the lane is the one that puts what there is one of a row.
  __device__ __forceinline__ bool is_first() const { return chunk() == 0 && lane_index() % kLanes == 0; }
  /// Of the lane's chunk.
  __device__ __forceinline__ char* y_of(int row) const { return p.y + row * p.y_stride + chunk() * kChunkBytes; }
  /// Some chunk of the warp is not full. (Asked for every row: a register that said so would be spilled.) Not of masked
  /// rows, where what it lacks is hidden as other elements are.
  __device__ __forceinline__ bool cut() const {
    return !kForm.masked && __any_sync(lift::kWholeWarp, count % lift::kChunk != 0);
  }
  /// The part in a row of x.
  __device__ __forceinline__ const char* first(std::int64_t row) const {
    return p.x + row * p.x_stride + waits.own().chunk * kChunkBytes;
  }
  static __device__ __forceinline__ char* room_of(int warp) {
    extern __shared__ __align__(kCopyLine) char landing_memory[];
    return landing_memory + warp * Shape::kWarpBytes;
  }
  static __device__ __forceinline__ CopyBarrier& landed_in(char* room) {
    return *reinterpret_cast<CopyBarrier*>(room + Shape::kRoom);
  }
  __device__ __forceinline__ char* room() const { return static_cast<char*>(__cvta_shared_to_generic(memory)); }
  /// Of the part that begins there.
  __device__ __forceinline__ char* place(const char* first) const {
    return kMoves ? place_in_sectors(room(), first) : room();
  }
  __device__ __forceinline__ CopyBarrier& landed() const { return landed_in(room()); }
  /// This step's row of gradients, by one thread of the block: what fetch_elements expects besides.
  __device__ __forceinline__ void fetch_gradient(int step, int row) const {
    constexpr int kWarp = GuessWaits::kGradientThread / 32;
    if (thread_index() != GuessWaits::kGradientThread) return;
    if (step == 1) begin_first();  // the first one is read where it lies (GuessRows)
    landed_in(room_of(kWarp)).copy(&waits.gradient(step), p.gradients + row, sizeof(GradientRow));
  }
  /// The part in a row of x to its place; more: bytes to expect besides, 0.
  __device__ __forceinline__ void fetch_elements(int row, int more, bool first_row = false) const {
    const unsigned thread = thread_index();
    if (thread % 32 != 0) return;
    CopyBarrier& barrier = landed();
    if (kForm.gradient() && !first_row && thread == GuessWaits::kGradientThread)
      more += static_cast<int>(sizeof(GradientRow));
    const char* first = this->first(row);
    const GuessWarp& own = waits.own();
    const int size = own.n * Place::kSize;
    if constexpr (kForm.masked) more += mask(row).bytes(p);
    const int shift = kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16);
    if (kOnVectors || !own.outer) {
      const int bytes = (shift + size + 15) & ~15;
      barrier.expect(bytes + more);
      if constexpr (kForm.masked) mask(row).fetch(barrier, p);
      return barrier.copy(place(first), first - shift, bytes);
    }
    const typename Place::Span span(first, size / Place::kSize, p.x_begin, p.x_end);
    barrier.expect(span.bytes() + more);
    if constexpr (kForm.masked) mask(row).fetch(barrier, p);
    if (span.bytes() > 0)
      barrier.copy(place(first) + (span.begin - span.from), reinterpret_cast<const void*>(span.begin), span.bytes());
  }
  /// Once it has landed: the lane's vectors of a row; `rest` where a chunk has no element.
  __device__ __forceinline__ void read(uint4 (&raw)[Place::kVectors], int row, bool cut, float rest) const {
    const char* first = kMoves ? this->first(row) : nullptr;
    GuessWarp& own = waits.own();
    const Place landing{place(first), first, own.n, own.chunks, kOnVectors};
    if constexpr (!kOnVectors) {
      if (own.outer) landing.mend(rest, p.x_begin, p.x_end);
    } else if (cut) {
      if (float& filled = own.filled; filled != rest) {
        landing.template fill_rest<kMoves>(rest);
        if (lane_index() == 0) filled = rest;
      }
      if constexpr (kMoves) landing.fill_next(rest);
    }
    landing.read_again(raw, (count > 0 ? lane_index() / kLanes * kChunkBytes : 0) + lane_index() % kLanes * 16);
    if constexpr (kForm.masked) hide_elements(raw, row, first);
  }
  /// What is kept of a row that is written behind: elements for log_softmax, of 16 bit in `raw`, of float32 in v; else
  /// terms.
  __device__ __forceinline__ void take_kept(uint4 (&raw)[Place::kVectors], float (&v)[Shape::kCount]) const {
    if constexpr (kForm.template packed<E>()) {
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) raw[j] = kept<uint4>()[32 * j];
    } else {
#pragma unroll
      for (int j = 0; j < Shape::kCount / 4; ++j) unpack_four(v + 4 * j, kept<float4>()[32 * j]);
    }
  }
  /// This row for that.
  __device__ __forceinline__ void swap_kept(uint4 (&raw)[Place::kVectors], float (&v)[Shape::kCount]) const {
    if constexpr (kForm.template packed<E>()) {
      uint4* at = kept<uint4>();
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) {
        const uint4 before = at[32 * j];
        at[32 * j] = raw[j];
        raw[j] = before;
      }
    } else {
      float4* at = kept<float4>();
#pragma unroll
      for (int j = 0; j < Shape::kCount / 4; ++j) {
        const float4 before = at[32 * j];
        at[32 * j] = {v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]};
        unpack_four(v + 4 * j, before);
      }
    }
  }
  /// Of the lane's chunk, in memory.
  __device__ __forceinline__ const char* mask_of(int row) const {
    if constexpr (kForm.masked) return p.mask + row * p.mask_stride + chunk() * lift::kChunk;
    return nullptr;
  }

 private:
  /// The lane's first of the terms, or elements, that are kept: vectors, 32 from one to the next.
  template <class Vector>
  __device__ __forceinline__ Vector* kept() const {
    static_assert(sizeof(Vector) == 16);
    return reinterpret_cast<Vector*>(room() + Shape::kKept) + lane_index();
  }
  static __device__ __forceinline__ void unpack_four(float* v, const float4& from) {
    v[0] = from.x, v[1] = from.y, v[2] = from.z, v[3] = from.w;
  }
  /// The warp's, of a row.
  __device__ __forceinline__ typename Shape::Mask mask(int row) const {
    const GuessWarp& own = waits.own();
    return {room() + Shape::kKept, p.mask + row * p.mask_stride + own.chunk * lift::kChunk, own.n};
  }
  /// Once a row's mask has landed: what it hides is absent.
  __device__ __forceinline__ void hide_elements(uint4 (&raw)[Place::kVectors], int row, const char* first) const {
    using Bytes = MaskBytes<E>;
    const typename Shape::Mask mask = this->mask(row);
    if constexpr (kMoves)
      if (waits.own().outer) mask.mend(p);
    const int shift = kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / Place::kSize;
    const int lane = lane_index() % kLanes, chunk_begin = count > 0 ? lane_index() / kLanes * lift::kChunk : 0;
    const auto bytes = [&](int j) {
      const int at = Place::kWidth * (lane + kLanes * j) - shift;
      // Nothing makes the slots behind a row's end absent where it ends on a vector.
      if (kForm.lands == Lands::on_vectors && at >= count) return Bytes{};
      return mask.template at<Bytes>(chunk_begin + at);
    };
#pragma unroll
    for (int j = 0; j < Place::kVectors; ++j) {
      Bytes shown = bytes(j);
      // Slots before the chunk's first element are those of its end.
      if constexpr (!kOnVectors)
        if (j == 0 && lane == 0) shown = joined_bytes(bytes(Place::kVectors), shown, shift);
      hide<E>(raw[j], shown, lift::absent(p.factor.c));
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
