// softmax and log_softmax of plain rows of a few chunks that do not fill their warps, or begin inside vectors, softmax
// also of such with masks: a block some rows, one after another, a warp two neighbouring chunks of each, or three, of
// which it folds no more than there is.
#pragma once

#include "cuda/chunk_part.cuh"
#include "cuda/in_order.cuh"
#include "cuda/pair_mask.cuh"
#include "cuda/short_place.cuh"
#include "cuda/softmax_block.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row has at most so many chunks.
inline constexpr int kPairChunks = 16;

/// How a block's warps share a row: two neighbouring chunks each, but where it has three, which are one warp's: it
/// finds the terms of the last one anew when it has written the others.
template <bool kThree>
struct PairShare {
  int first, chunks;
  __device__ __forceinline__ explicit PairShare(int of_row)
      : first(kThree ? 0 : 2 * warp_index()), chunks(kThree ? 3 : min(of_row - first, 2)) {}
  static int warps(std::int64_t of_row) { return static_cast<int>(kThree ? 1 : (of_row + 1) / 2); }
};

/// What the warps of a block tell each other of a row.
struct PairSums {
  static constexpr int kMost = kPairChunks / 2;
  float sums[kMost];  ///< of pairs of chunks; kNotHeld where the frame does not hold them
  int tops[kMost];    ///< the largest n over the frame, which is above 0
  float frame;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kMost; ++i) sums[i] = 0.F, tops[i] = 0;
  }
  /// The sum in the canonical tree.
  __device__ __forceinline__ float sum() const {
    float s[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) s[i] = sums[i];
#pragma unroll
    for (int step = 1; step < kMost; step *= 2)
#pragma unroll
      for (int i = 0; i < kMost; i += 2 * step) s[i] = fold::Scalar<float>::add(s[i], s[i + step]);
    return s[0];
  }
  __device__ __forceinline__ int top() const {
    int most = tops[0];
#pragma unroll
    for (int i = 1; i < kMost; ++i) most = max(most, tops[i]);
    return most;
  }
};

/// Rows, with masks or without.
template <bool kMasked>
using PairRows = std::conditional_t<kMasked, MaskedRows, PlainRows>;

/// A row of a block, on its way to shared memory and there, its mask behind it.
template <class E, bool kOnVectors, bool kMasked = false>
struct PairRow {
  using Rows = PairRows<kMasked>;
  using Mask = PairMask<E, kOnVectors>;

  const char* first;  ///< its first element in x
  char* room;         ///< its own in shared memory
  std::int64_t row;

  __device__ __forceinline__ PairRow(const Rows& p, char* memory, int run, int runs)
      : room(memory + run * p.pitch), row(static_cast<std::int64_t>(blockIdx.x) * runs + run) {
    first = p.x + row * p.x_stride;
  }
  __device__ __forceinline__ const char* mask_at(const Rows& p) const {
    if constexpr (kMasked) return p.mask + row * p.mask_stride;
    return nullptr;
  }
  __device__ __forceinline__ char* mask_place(const Rows& p) const {
    return place_in_sectors(room + PairPlace<E>::bytes(p.n), mask_at(p));
  }
  __device__ __forceinline__ Mask mask(const Rows& p) const {
    constexpr int kSize = static_cast<int>(sizeof(E));
    const char* place = mask_place(p) + reinterpret_cast<std::uintptr_t>(mask_at(p)) % 16;
    return {place, kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize,
            static_cast<int>(p.n)};
  }
  /// Where the first element lands.
  __device__ __forceinline__ char* x() const {
    return place_in_sectors(room, first) + (kOnVectors ? 0 : reinterpret_cast<std::uintptr_t>(first) % 16);
  }
  /// By one thread; then a barrier of the block.
  __device__ __forceinline__ void fetch(const Rows& p, CopyBarrier& landed) const {
    landed.init(kMasked ? 2 : 1);
    CopyBarrier::publish();
    const auto n = static_cast<int>(p.n);
    char* place = place_in_sectors(room, first);
    if constexpr (kOnVectors) {
      landed.expect(n * static_cast<int>(sizeof(E)));
      landed.copy(place, first, n * static_cast<int>(sizeof(E)));
    } else {
      fetch_run<E>(place, landed, first, n, {p.x_begin, p.x_end});
    }
    if constexpr (kMasked) fetch_run<char>(mask_place(p), landed, mask_at(p), n, {p.mask, p.mask_end});
  }
  /// By all lanes of a warp. inverse: of c. NaN, which holds nothing, where a mask shows nothing.
  __device__ __forceinline__ RaisedFrame<E> frame(const Mask& mask, int n, float c, float inverse) const {
    if constexpr (kMasked) {
      const int at = mask.first_shown(n);
      const auto* elements = reinterpret_cast<const E*>(x());
      return {at < n ? fold::widen(elements[at]) : kNotHeld, c, inverse};
    }
    float first = fold::widen(*reinterpret_cast<const E*>(x()));
    if (first == -fold::infinity<float>()) {  // the largest of vectors 1 to 32, which a row has, wherever it begins
      float v[RaisedFrame<E>::kWidth];
      Packed<E>::unpack(reinterpret_cast<const uint4*>(place_in_sectors(room, this->first))[lane_index() + 1], v);
#pragma unroll
      for (const float e : v) first = fmaxf(first, e);
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2)
        first = fmaxf(first, __shfl_xor_sync(lift::kWholeWarp, first, distance));
    }
    return {first, c, inverse};
  }
};

/// A block's rows on their way, and all else that its warps share; by all threads.
template <class Row, class E>
__device__ __forceinline__ void begin_rows(const typename Row::Rows& p, char* memory, int runs,
                                           CopyBarrier (&landed)[kPairRuns], PairSums (&sums)[kPairRuns],
                                           VectorMasks<E>& masks) {
  if (const auto run = static_cast<int>(threadIdx.x); run < runs) {
    if (const Row own(p, memory, run, runs); own.row < p.rows) own.fetch(p, landed[run]);
    sums[run].clear();
  }
  masks.make();
  __syncthreads();
}

/// Rows of any values, a bit each, by all threads of the block.
template <class E, bool kLog, bool kThree, bool kOnVectors, bool kMasked = false>
__device__ __noinline__ void put_any_rows(const PairRows<kMasked>& p, char* memory, int runs, unsigned rows,
                                          BlockChunks& chunks, unsigned mask_at) {
  using Part = ChunkPart<E, kOnVectors>;
  using Fold = lift::WarpFold<Part::kWidth, 32>;
  const auto n = static_cast<int>(p.n), count = static_cast<int>(lift::chunk_count(p.n));
  const PairShare<kThree> share(count);
  const int full = share.chunks - 1;
  E nones[Part::kWidth];
#pragma unroll
  for (E& e : nones) e = Packed<E>::narrow(lift::absent(p.factor.c));
  const unsigned none = Packed<E>::join(nones).x;
#pragma unroll 1
  for (int run = 0; rows >> run != 0; ++run) {
    if ((rows >> run & 1U) == 0) continue;
    const PairRow<E, kOnVectors, kMasked> row(p, memory, run, runs);
    const auto mask = row.mask(p);
    const Part part(row.x(), n, share.first, full);
    const auto end_of = [&](int chunk) { return chunk < full ? part.shift + lift::kChunk : part.end; };
    typename Part::Chunk front, back;
    const auto fold = [&](int chunk, typename Part::Chunk& v) {
      typename Part::Vectors raw;
      const int end = end_of(chunk);
      part.gather(chunk, end, raw, none, mask_at);
#pragma unroll
      for (int j = 0; j < Part::kVectors; ++j) {
        if (kMasked && end > j / Part::kOfStep * Part::kElements)
          raw[j] = chosen(mask.shown(share.first + chunk, j), raw[j], all_of(none));
        Packed<E>::unpack(raw[j], v + j * Part::kWidth);
      }
      return Fold::terms(v, p.factor.c);
    };
    const auto tell = [&](int chunk, typename Part::Chunk& v) {
      const auto own = fold(chunk, v);
      if (part.lane == 0) chunks.put(own, share.first + chunk);
    };
    tell(full, back);
    if (kThree || full != 0) tell(0, front);
    if constexpr (kThree) tell(1, back);
    __syncthreads();
    const auto root = chunks.merge(count);
    char* y = p.y + row.row * p.y_stride + share.first * Part::kBytes;
    uint4 before{};
    const auto put = [&](int chunk, typename Part::Chunk& v) {
      const int at = share.first + chunk;
      const ChunkMultiplier multiplier(root, chunks.nodes[at], chunks.far[at]);
      const float unit = chunks.units[at];
      if (!multiplier.regular) {
        const int length = min(n - at * lift::kChunk, lift::kChunk);
        const char* of_chunk = kMasked ? row.mask_at(p) + at * lift::kChunk : nullptr;
        return fill<E, kLog>(y + chunk * Part::kBytes, of_chunk, 1, part.lane, 32, length, length,
                             constant_of<kLog>(root.state(), p.empty));
      }
      if constexpr (kLog) part.read(chunk, end_of(chunk), v);
      finish<kLog, lift::kPerLane>(
          v, unit > 0.F, fold::Scalar<float>::mul(multiplier.value, fabsf(unit)),
          [&] { return p.log_normaliser(root.state()); }, [](int) {});
      part.write(chunk, end_of(chunk), chunk == full, y, v, before);
    };
    if (kThree || full != 0) put(0, front);
    if constexpr (kThree) {
      put(1, back);
      (void)fold(2, back);
    }
    put(full, back);
    __syncthreads();
  }
}

template <class E, bool kThree, bool kOnVectors, bool kMasked = false>
__global__ void __maxnreg__(128) softmax_chunk_pairs(const __grid_constant__ PairRows<kMasked> p, int runs) {
  begin_in_order();
  using Part = ChunkPart<E, kOnVectors>;
  using Row = PairRow<E, kOnVectors, kMasked>;
  using S = fold::Scalar<float>;
  using Frame = RaisedFrame<E>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kPairRuns];
  __shared__ VectorMasks<E> masks;
  __shared__ PairSums sums[kPairRuns];
  __shared__ BlockChunks any;
  const auto row_of = [&](int run) { return Row(p, landing_memory, run, runs); };
  begin_rows<Row>(p, landing_memory, runs, landed, sums, masks);
  const unsigned mask_at = settled(shared_address(&masks));
  const auto n = static_cast<int>(p.n);
  const float inverse = __fdividef(1.F, p.factor.c);
  const PairShare<kThree> share(static_cast<int>(lift::chunk_count(p.n)));
  const int full = share.chunks - 1;
  unsigned left = 0;
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    const Row row = row_of(run);
    if (row.row >= p.rows) break;
    landed[run].wait(0);
    const auto mask = row.mask(p);
    const Part part(row.x(), n, share.first, full);
    const Frame frame = row.frame(mask, n, p.factor.c, inverse);
    const auto terms = frame.terms();
    VectorExtremes<E> extremes(frame.filler);
    const auto take = [&](int chunk, int j, const uint4& raw) {
      if constexpr (!kMasked) return frame.raised(raw, extremes);
      const uint4 shown = mask.shown(share.first + chunk, j);
      extremes.see(chosen(shown, raw, all_of(frame.filler)));
      return chosen(shown, raw, all_of(frame.floor));
    };
    typename Part::Chunk front, back;
    part.find_terms(full, part.end, back, frame.filler, terms, mask_at, take);
    float sum = Part::sum_of(back);
    if (kThree || full != 0) {
      float first = part.fold_full(0, front, terms, take);
      if constexpr (kThree) first = S::add(first, part.fold_full(1, back, terms, take));
      sum = S::add(first, sum);
    }
    const auto reach = frame.reach(extremes.all());
    if (!(kMasked ? holds_shown<E>(reach, frame) : holds_part(reach, part, full, frame, mask_at))) sum = kNotHeld;
    if (!kThree && blockDim.x > 32) {
      if (part.lane == 0) sums[run].sums[warp_index()] = sum;
      __syncthreads();
      sum = sums[run].sum();
    }
    if (!(sum > 0.F)) {
      left |= 1U << run;
      continue;
    }
    const float multiplier = reciprocal_of_normal(sum);
    const bool vanishes = Frame::may_vanish(reach.low, sum);
    const auto scale = [&](typename Part::Chunk& v) { Part::template to_results<kMasked>(v, multiplier, vanishes); };
    char* y = p.y + row.row * p.y_stride + share.first * Part::kBytes;
    uint4 before{};
    if (kThree || full != 0) {
      scale(front);
      part.write_full(0, y, front, before);
    }
    if constexpr (kThree) {
      scale(back);
      part.write_full(1, y, back, before);
      part.find_terms(2, part.end, back, frame.filler, terms, mask_at, [&](int chunk, int j, const uint4& raw) {
        if constexpr (!kMasked) return frame.raised(raw);
        return chosen(mask.shown(chunk, j), raw, all_of(frame.floor));
      });
    }
    scale(back);
    part.write(full, part.end, true, y, back, before);
  }
  if (left != 0) put_any_rows<E, false, kThree, kOnVectors, kMasked>(p, landing_memory, runs, left, any, mask_at);
}

/// Sums of all of a block's rows, then their logarithms, a row a thread, then their results.
template <class E, bool kThree, bool kOnVectors>
__global__ void __maxnreg__(80) log_softmax_chunk_pairs(const __grid_constant__ PlainRows p, int runs) {
  begin_in_order();
  using Part = ChunkPart<E, kOnVectors>;
  using Row = PairRow<E, kOnVectors>;
  using S = fold::Scalar<float>;
  using Frame = RaisedFrame<E>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kPairRuns];
  __shared__ VectorMasks<E> masks;
  __shared__ PairSums sums[kPairRuns];
  __shared__ __align__(8) char norm_memory[kPairRuns * sizeof(fold::LogNormaliser<float>)];
  __shared__ BlockChunks any;
  auto* const norms = reinterpret_cast<fold::LogNormaliser<float>*>(norm_memory);
  const auto row_of = [&](int run) { return Row(p, landing_memory, run, runs); };
  begin_rows<Row>(p, landing_memory, runs, landed, sums, masks);
  const unsigned mask_at = settled(shared_address(&masks));
  const auto n = static_cast<int>(p.n);
  const float inverse = __fdividef(1.F, p.factor.c);
  const PairShare<kThree> share(static_cast<int>(lift::chunk_count(p.n)));
  const int full = share.chunks - 1;
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    const Row row = row_of(run);
    if (row.row >= p.rows) break;
    landed[run].wait(0);
    const Part part(row.x(), n, share.first, full);
    const Frame frame = row.frame(row.mask(p), n, p.factor.c, inverse);
    const auto terms = frame.terms();
    VectorExtremes<E> extremes(frame.filler);
    const auto take = [&](int, int, const uint4& raw) { return frame.raised(raw, extremes); };
    typename Part::Chunk v;
    float sum = 0.F;
#pragma unroll 1
    for (int chunk = 0; chunk < full; ++chunk) sum = S::add(sum, part.fold_full(chunk, v, terms, take));
    part.find_terms(full, part.end, v, frame.filler, terms, mask_at, take);
    sum = S::add(sum, Part::sum_of(v));
    const auto reach = frame.reach(extremes.all());
    if (!holds_part(reach, part, full, frame, mask_at)) sum = kNotHeld;
    if (part.lane == 0) sums[run].sums[warp_index()] = sum, sums[run].tops[warp_index()] = reach.high;
    if (threadIdx.x == 0) sums[run].frame = frame.s;
  }
  __syncthreads();
  if (const auto run = static_cast<int>(threadIdx.x); run < runs) {
    // The state is in the frame of the largest element.
    const int top = sums[run].top();
    const float sum = sums[run].sum(), m = S::add(sums[run].frame, static_cast<float>(top));
    if (sum > 0.F)
      norms[run] = p.log_normaliser({static_cast<double>(m), S::mul(sum, __int_as_float((127 - top) << 23))});
  }
  __syncthreads();
  unsigned left = 0;
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    const Row row = row_of(run);
    if (row.row >= p.rows) break;
    if (!(sums[run].sum() > 0.F)) {
      left |= 1U << run;
      continue;
    }
    const Part part(row.x(), n, share.first, full);
    const float half_c = norms[run].half_c, half_frame = norms[run].half_frame, half_log2_d = norms[run].half_log2_d,
                two_kappa = norms[run].two_kappa;
    char* y = p.y + row.row * p.y_stride + share.first * Part::kBytes;
    uint4 before{};
    typename Part::Chunk v;
    const auto finish = [&] {
#pragma unroll
      for (float& e : v) e = S::mul(two_kappa, S::sub(S::fma(e, half_c, -half_frame), half_log2_d));
      if (half_log2_d > 0.5F) return;
#pragma unroll
      for (float& e : v) e = S::add(e < 0.F ? e : 0.F, 0.F);  // a result may be 0
    };
#pragma unroll 1
    for (int chunk = 0; chunk < full; ++chunk) {
      part.read_full(chunk, v);
      finish();
      part.write_full(chunk, y, v, before);
    }
    part.read(full, part.end, v);
    finish();
    part.write(full, part.end, true, y, v, before);
  }
  if (left != 0) put_any_rows<E, true, kThree, kOnVectors>(p, landing_memory, runs, left, any, mask_at);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
