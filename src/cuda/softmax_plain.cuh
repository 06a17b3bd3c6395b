// softmax and log_softmax at copy speed, for plain problems: one stride between rows, one scale, nothing hidden. Each
// warp has its elements brought to shared memory by the copy engine, folds them in registers, and writes them.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/sm90.cuh"
#include "cuda/softmax_rows.cuh"
#include "cuda/target_gradient.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The first `bytes` bytes of `head`, the rest of `own`; whole 16-bit elements.
__device__ __forceinline__ uint4 joined(const uint4& own, const uint4& head, int bytes) {
  const auto pick = [&](unsigned a, unsigned b, int at) {
    const unsigned mask = bytes >= at + 4 ? 0xFFFFFFFFU : bytes > at ? 0xFFFFU : 0U;
    return (a & ~mask) | (b & mask);
  };
  return {pick(own.x, head.x, 0), pick(own.y, head.y, 4), pick(own.z, head.z, 8), pick(own.w, head.w, 12)};
}

/// A place in shared memory where a run of elements lands and from which results leave: element i at position
/// i + shift, so that vectors keep their alignment. All lanes of a warp call every function together.
template <class E, int kLanes>
struct Landing {
  using Elements = Tile<E, kLanes>;
  static constexpr int kSize = static_cast<int>(sizeof(E));
  static constexpr int kWidth = Elements::kWidth, kSlots = Elements::kSlots;
  static constexpr int kBytes = kSlots * kSize + 16;
  static constexpr int kWarpBytes =
      room_in_sectors(32 / kLanes * kBytes);  ///< of a warp's places, one behind the other

  char* place;
  Elements tile;
  int n;

  /// The 16-byte vectors around the run's n elements, from and up to; begin and end leave out those that reach beyond
  /// x's memory.
  struct Span {
    std::uintptr_t from, up_to, begin, end;
    __device__ __forceinline__ Span(const char* first, int n, const char* x_begin, const char* x_end) {
      const auto a = reinterpret_cast<std::uintptr_t>(first);
      from = begin = a & ~std::uintptr_t{15};
      up_to = end = (a + static_cast<unsigned>(n * kSize) + 15) & ~std::uintptr_t{15};
      if (begin < reinterpret_cast<std::uintptr_t>(x_begin)) begin += 16;
      if (end > reinterpret_cast<std::uintptr_t>(x_end)) end -= 16;
    }
    __device__ __forceinline__ int bytes() const { return end > begin ? static_cast<int>(end - begin) : 0; }
  };

  __device__ __forceinline__ Landing(char* place_, const char* first, int n_) : place(place_), tile(first), n(n_) {}

  __device__ __forceinline__ bool whole() const { return tile.shift == 0 && n == kSlots; }

  /// By one lane of the group: sends the run on its way.
  __device__ __forceinline__ void fetch(CopyBarrier& barrier, const char* first, const PlainRows& p) const {
    if (whole()) {
      barrier.expect(kSlots * kSize);
      barrier.copy(place, first, kSlots * kSize);
      return;
    }
    const Span span(first, n, p.x_begin, p.x_end);
    barrier.expect(span.bytes());
    if (span.bytes() > 0)
      barrier.copy(place + (span.begin - span.from), reinterpret_cast<const void*>(span.begin), span.bytes());
  }

  /// Once it has landed: the elements in registers, lift::absent in the slots beyond them, and their extremes. After it
  /// and a __syncwarp() the place may be fetched into again.
  __device__ __forceinline__ lift::Extremes read(float (&v)[lift::kPerLane], const char* first,
                                                 const lift::Factor& factor, const PlainRows& p) const {
    const bool patched = needs_patch(first, p);
    if (patched) patch(place, tile, n, first, lift::absent(factor.c), p.x_begin, p.x_end);
    uint4 raw[Elements::kVectors];
    take(raw, first, p);
    if (patched) {
      // The copy engine, or lanes with results, may soon write over what was read: lanes without a row of their own
      // read another group's.
      fence_for_copy();
      __syncwarp();
    }
    return tile.unpack(v, raw, n, factor);
  }
  /// The same elements once more, by lanes with a row of their own, before they store.
  __device__ __forceinline__ void read_again(float (&v)[lift::kPerLane], const char* first, const lift::Factor& factor,
                                             const PlainRows& p) const {
    uint4 raw[Elements::kVectors];
    take(raw, first, p);
    tile.unpack(v, raw, n, factor);
  }

  /// The run, until it is fetched into or stored from.
  __device__ __forceinline__ const E* elements() const { return reinterpret_cast<const E*>(place) + tile.shift; }

  /// Writes results to y, which lies to 16-byte boundaries as x does. Call drain() before the block ends. target: null,
  /// or what stands in the place of one of them.
  __device__ __forceinline__ void store(char* y, const float (&v)[lift::kPerLane],
                                        const TargetGradient<E>* target = nullptr) const {
    if (whole()) {
#pragma unroll
      for (int j = 0; j < Elements::kVectors; ++j)
        reinterpret_cast<uint4*>(y)[tile.lane + kLanes * j] = Packed<E>::pack(v + j * kWidth);
      if (target != nullptr) target->template put<kLanes>(y);
    } else {
      if (target != nullptr) sync_lanes<kLanes>();  // all have read the target's element
#pragma unroll
      for (int j = 0; j < Elements::kVectors; ++j)
        reinterpret_cast<uint4*>(place)[tile.lane + kLanes * j] = Packed<E>::pack(v + j * kWidth);
      if (target != nullptr) {
        sync_lanes<kLanes>();
        if (tile.lane == 0 && target->index >= 0)  // slots before the first element are those of the run's end
          reinterpret_cast<E*>(place)[(target->index + tile.shift) % kSlots] = target->value;
      }
      send(place, tile, n, y);
    }
  }
  static __device__ __forceinline__ void drain() { bulk_drain(); }

 private:
  /// Whether something is missing in the place, in some group of the warp. A full chunk that begins inside a vector has
  /// all its elements there, a few of them behind the last slot: rotate() is enough.
  __device__ __forceinline__ bool needs_patch(const char* first, const PlainRows& p) const {
    if constexpr (kLanes == 32) {
      // The copy left out vectors only at the ends of x's memory.
      return n < kSlots || (tile.shift != 0 && (first < p.x_begin + 16 || first + kSlots * kSize + 16 > p.x_end));
    } else {
      return !__all_sync(lift::kWholeWarp, whole());
    }
  }

  __device__ __forceinline__ void take(uint4 (&raw)[Elements::kVectors], const char* first, const PlainRows& p) const {
#pragma unroll
    for (int j = 0; j < Elements::kVectors; ++j) raw[j] = reinterpret_cast<const uint4*>(place)[tile.lane + kLanes * j];
    if constexpr (kLanes == 32)
      if (tile.shift != 0 && !needs_patch(first, p)) rotate(raw[0]);
  }
  /// The elements behind the last slot go to the slots before the first element, all in lane 0's first vector.
  __device__ __forceinline__ void rotate(uint4& raw) const {
    const uint4 behind = reinterpret_cast<const uint4*>(place)[kSlots / kWidth];
    if (tile.lane != 0) return;
    raw = joined(raw, behind, tile.shift * kSize);
  }

  /// Repairs the ends of the run in shared memory: vectors that the copy left out, the elements whose slots lie before
  /// the first one, and the slots that hold nothing.
  static __device__ __noinline__ void patch(char* place, Elements tile, int n, const char* first, float missing,
                                            const char* x_begin, const char* x_end) {
    E* e = reinterpret_cast<E*>(place);
    const E* x = reinterpret_cast<const E*>(first);
    const int shift = tile.shift;
    const Span span(first, n, x_begin, x_end);
    if (span.begin != span.from)
      for (int i = tile.lane; i < min(n, kWidth - shift); i += kLanes) e[i + shift] = x[i];
    if (span.end != span.up_to)
      for (int i = max(0, (n + shift - 1) / kWidth * kWidth - shift) + tile.lane; i < n; i += kLanes)
        e[i + shift] = x[i];
    __syncwarp();
    const E nothing = Packed<E>::narrow(missing);
    for (int k = tile.lane; k < shift; k += kLanes) e[k] = kSlots - shift + k < n ? e[kSlots + k] : nothing;
    for (int at = n + shift + tile.lane; at < kSlots; at += kLanes) e[at] = nothing;
    __syncwarp();
  }

  /// From shared memory to y: whole vectors by the copy engine, the ends an element at a time.
  static __device__ __noinline__ void send(char* place, Elements tile, int n, char* y) {
    E* e = reinterpret_cast<E*>(place);
    E* to = reinterpret_cast<E*>(y);
    const int shift = tile.shift;
    sync_lanes<kLanes>();
    for (int k = tile.lane; k < shift; k += kLanes)
      if (kSlots - shift + k < n) e[kSlots + k] = e[k];
    fence_for_copy();
    sync_lanes<kLanes>();
    const int head = min(n, (kWidth - shift) % kWidth), tail = max(head, (n + shift) / kWidth * kWidth - shift);
    if (tile.lane == 0 && tail > head) bulk_store(to + head, e + head + shift, (tail - head) * kSize);
    for (int i = tile.lane; i < head; i += kLanes) to[i] = e[i + shift];
    for (int i = tail + tile.lane; i < n; i += kLanes) to[i] = e[i + shift];
  }
};

/// Terms to the gradient of cross-entropy, but for the target's, of a row that has one. No term is below `least` but
/// those that are 0; multiplier: of the terms.
template <int kCount>
__device__ __forceinline__ void to_gradients(float (&v)[kCount], float least, float multiplier,
                                             const GradientRow& row) {
  using S = fold::Scalar<float>;
  const auto each = [&](const auto& result) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = result(v[i]);
  };
  constexpr float kSmallest = fold::Real<float>::kSmallest;
  // What is asked for of most rows comes first: in clusters that stay, every row waits for it.
  const float both = S::mul(multiplier, row.factor);
  if (row.power != 0 && S::mul(least, fminf(multiplier, fabsf(both))) >= kSmallest && fabsf(both) <= 0x1p126F)
    return each([&](float term) { return S::mul(term, both); });  // by a power of two: nothing is rounded twice
  const bool exact = S::mul(least, multiplier) >= kSmallest;      // so is every probability but 0
  if (exact && row.pull == 1.F && row.kind == GradientRow::Kind::regular) {
    each([&](float term) { return S::mul(S::mul(term, multiplier), row.factor); });
  } else {
    each([&](float term) {
      const float p = exact ? S::mul(term, multiplier) : fold::Normaliser<float>::probability(term, multiplier);
      return S::mul(S::mul(row.pull, p), row.factor);
    });
  }
}

/// The same, and to y: store() takes finished v there.
template <class E, class Elements, int kCount, class Store>
__device__ __forceinline__ void put_gradient(const Elements& tile, char* y, int n, float (&v)[kCount], float least,
                                             float multiplier, const GradientRow& row, const lift::Root& root,
                                             const Store& store) {
  using Kind = GradientRow::Kind;
  const bool regular = root.node.z == lift::kFar ? fold::Normaliser<float>(root.far).regular : root.node.d > 0.F;
  if (row.kind == Kind::zero || row.kind == Kind::nan || !regular) {
    const bool empty = !regular && root.state().m == -fold::infinity<double>();
    const bool zero = row.kind == Kind::zero || (empty && row.kind != Kind::nan);
    const Constant constant{zero ? 0.F : fold::canonical_nan<float>(), true};
    return fill<E, false>(y, nullptr, 0, tile.lane, Elements::kSlots / kCount, n, n, constant);
  }
  to_gradients(v, least, multiplier, row);
  if (row.kind == Kind::regular) return store();
  tile.store_any(y, n, v);
}

/// Of softmax_warp_rows: sets of rows that a warp has in flight, 16-bit ones being half as long, warps of a block, and
/// warps that a processor has registers for: more for what takes more instructions. kBlocks: that it holds at most, of
/// softmax; measured, with 64 KB under way memory is 1 to 2 percent faster than with 96.
template <class E, Leaves kLeaves>
struct RowShape {
  static constexpr bool kWide = sizeof(E) == 4, kLight = kLeaves == Leaves::softmax;
  static constexpr int kRuns = kWide ? 1 : 2, kWarps = kWide && kLight ? 4 : 8, kBlocks = kWide ? 4 : 3;
  static constexpr int kResident = kWide || kLight ? 24 : 32;
};

/// Several rows a warp, or one: rows of at most 32 * kLanes elements. Rows fly to shared memory on their own while
/// other warps work; a landing place holds 32 / kLanes rows, as one run where they lie end to end in memory.
template <class E, int kLanes, Leaves kLeaves>
__global__ void __launch_bounds__(32 * RowShape<E, kLeaves>::kWarps,
                                  (RowShape<E, kLeaves>::kResident / RowShape<E, kLeaves>::kWarps))
    softmax_warp_rows(const __grid_constant__ PlainRows p) {
  begin_in_order();
  using Shape = RowShape<E, kLeaves>;
  using Place = Landing<E, kLanes>;
  using Fold = lift::WarpFold<Place::kWidth, kLanes>;
  constexpr int kRows = 32 / kLanes, kWarps = Shape::kWarps, kRuns = Shape::kRuns;
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier barriers[kWarps][kRuns];
  [[maybe_unused]] __shared__ WarpGradients<kRuns, kRows> gradients[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto base_of = [&](int run) {
    return ((static_cast<std::int64_t>(blockIdx.x) * kRuns + run) * kWarps + warp) * kRows;
  };
  // Groups without a row of their own take part with the last row and write nothing.
  const auto row_of = [&](int run) { return min(base_of(run) + lane / kLanes, p.rows - 1); };
  const auto place_of = [&](int run) {
    char* room = landing_memory + (run * kWarps + warp) * Place::kWarpBytes;
    return (kRows == 1 || p.joined ? place_in_sectors(room, p.x + base_of(run) * p.x_stride) : room) +
           static_cast<int>(row_of(run) - base_of(run)) * p.pitch;
  };
  if (lane < kRuns) barriers[warp][lane].init(p.joined ? 1 : kRows);
  CopyBarrier::publish();
  __syncwarp();
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    const std::int64_t base = base_of(run);
    if (base >= p.rows) break;
    CopyBarrier& barrier = barriers[warp][run];
    const char* first = p.x + row_of(run) * p.x_stride;
    if (p.joined) {
      if (lane == 0) {
        const int bytes = static_cast<int>(min(static_cast<std::int64_t>(kRows), p.rows - base)) * p.pitch;
        barrier.expect(bytes);
        barrier.copy(place_of(run), first, bytes);
      }
    } else if (lane % kLanes == 0) {
      if (base + lane / kLanes < p.rows) {
        Place(place_of(run), first, static_cast<int>(p.n)).fetch(barrier, first, p);
      } else {
        barrier.expect(0);
      }
    }
  }
  if constexpr (kLeaves == Leaves::gradient) {
    gradients[warp].fetch(p, [&](int run, int i) { return min(base_of(run) + i, p.rows - 1); });
    __syncwarp();
  }
  const lift::Factor& factor = p.factor;
#pragma unroll 1
  for (int run = 0; run < kRuns && base_of(run) < p.rows; ++run) {
    const std::int64_t row = base_of(run) + lane / kLanes;
    const char* first = p.x + row_of(run) * p.x_stride;
    const Place landing(place_of(run), first, static_cast<int>(p.n));
    float v[lift::kPerLane];
    barriers[warp][run].wait(0);
    const auto extremes = landing.read(v, first, factor, p);
    const auto folded = Fold::terms(v, factor.c, extremes);
    if (row >= p.rows) continue;
    char* y = p.y + row * p.y_stride;
    const fold::Normaliser<float> norm(folded.state);
    if constexpr (kLeaves == Leaves::gradient) {
      const bool leads = landing.tile.lane == 0;
      if (leads) p.states[row] = folded.state;
      const GradientRow gradient = gradients[warp].rows[run][lane / kLanes];
      const TargetGradient<E> of_target(p, row, landing.elements(), gradients[warp].targets[run][lane / kLanes],
                                        gradient, folded.state, norm.reciprocal, leads);
      put_gradient<E>(landing.tile, y, landing.n, v, folded.dense ? 0x1p-62F : 0.F,
                      fold::Scalar<float>::mul(norm.reciprocal, folded.unit), gradient, {folded.node, folded.state},
                      [&] { landing.store(y, v, &of_target); });
    } else if (norm.regular) {
      if constexpr (kLog) landing.read_again(v, first, factor, p);
      finish<kLog, lift::kPerLane>(
          v, folded.dense, fold::Scalar<float>::mul(norm.reciprocal, folded.unit),
          [&] { return p.log_normaliser(folded.state); }, [](int) {});
      landing.store(y, v);
    } else {
      fill<E, kLog>(y, nullptr, 0, landing.tile.lane, kLanes, landing.n, landing.n,
                    constant_of<kLog>(folded.state, p.empty));
    }
  }
  Place::drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
