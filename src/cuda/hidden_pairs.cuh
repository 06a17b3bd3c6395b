// softmax and log_softmax of rows up to 2048 of which a length, a causal limit or a mask hides something, wherever they
// begin: a warp a row, of which it folds no more than there is. softmax_lengths_warp, softmax_warp_rows_any are faster
// for what they take.
#pragma once

#include "cuda/chunk_part.cuh"
#include "cuda/in_order.cuh"
#include "cuda/pair_mask.cuh"
#include "cuda/short_place.cuh"
#include "cuda/softmax_block.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Rows, their masks' memory, and where in shared memory a block's rows lie: so many, `pitch` bytes apart, a mask
/// `mask_at` bytes behind its row.
struct PairedRows {
  ShortRows rows;
  Extent masks;
  float two_kappa;  ///< LogNormaliser's, which takes a division in double
  int pitch, mask_at, runs;

  __device__ __forceinline__ std::int64_t row(int run) const { return std::int64_t{blockIdx.x} * runs + run; }
  /// Where what lies at x, or at a row's mask, lands.
  __device__ __forceinline__ char* place(char* memory, int run, const char* x) const {
    return place_in_sectors(memory + run * pitch, x);
  }
  __device__ __forceinline__ char* mask_place(char* memory, int run, const char* mask) const {
    return place_in_sectors(memory + run * pitch + mask_at, mask);
  }
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser(const fold::LogSumExp<float>::State& row) const {
    fold::LogNormaliser<float> norm(row, rows.scale);
    norm.set_c(rows.factor.c);
    norm.two_kappa = two_kappa;
    return norm;
  }
};

/// A row, and how much of it exists but for its mask.
struct alignas(16) PairedRow {
  const char* x;
  char* y;
  const char* mask;
  int n;

  PairedRow() = default;
  __device__ __forceinline__ PairedRow(const RowProblem& p, std::int64_t row) {
    const Row r = row_at(p, RowPlace(p, row));
    x = r.x, y = r.y, mask = r.mask, n = static_cast<int>(r.length);
  }
};

/// A row as the block's warp finds it in shared memory, once it has landed.
template <class E, bool kOnVectors, bool kMasked>
struct HiddenPair {
  using S = fold::Scalar<float>;
  using Part = ChunkPart<E, kOnVectors>;
  using Frame = RaisedFrame<E>;
  using Chunk = typename Part::Chunk;

  const PairedRow& row;
  const E* x;  ///< its first element
  PairMask<E, kOnVectors> mask;
  int first, full;  ///< first: that exists, of row.n; full: whether the first of two chunks with elements is
  Part part;
  unsigned mask_at;  ///< VectorMasks' address

  __device__ __forceinline__ HiddenPair(const PairedRows& given, char* memory, int run, const PairedRow& row_,
                                        unsigned mask_at_)
      : row(row_),
        x(reinterpret_cast<const E*>(landed_at(given.place(memory, run, row_.x), row_.x))),
        mask(landed_at(given.mask_place(memory, run, row_.mask), row_.mask), shift_of(row_.x), row_.n),
        first(kMasked ? mask.first_shown(row_.n) : 0),
        full(row_.n > max(first, lift::kChunk) ? 1 : 0),
        part(reinterpret_cast<const char*>(x), row_.n, 0, full),
        mask_at(mask_at_) {}

  __device__ __forceinline__ bool exists() const { return first < row.n; }
  /// From the first element, or, without a mask, where that is -inf, from one of the 31 behind it that is not.
  __device__ __forceinline__ Frame frame(float c, float inverse) const {
    const float none = -fold::infinity<float>();
    float leader = fold::widen(x[first]);
    if (!kMasked && leader == none) {
      const int own = first + lane_index();  // without a mask the first is 0
      const float other = own < row.n ? fold::widen(x[own]) : none;
      const unsigned some = __ballot_sync(lift::kWholeWarp, other != none);
      if (some != 0) leader = __shfl_sync(lift::kWholeWarp, other, __ffs(static_cast<int>(some)) - 1);
    }
    return {leader, c, inverse};
  }

  /// The row's sum in a frame, and how far it reaches; front and back become its chunks' terms. False where the frame
  /// does not hold it.
  __device__ __forceinline__ bool fold(Chunk& front, Chunk& back, const Frame& frame, typename Frame::Reach& reach,
                                       float& sum) const {
    const auto terms = frame.terms();
    VectorExtremes<E> extremes(frame.filler);
    const auto take = [&](int chunk, int j, const uint4& raw) {
      if constexpr (!kMasked) return frame.raised(raw, extremes);
      const uint4 shown = mask.shown(chunk, j);
      extremes.see(chosen(shown, raw, all_of(frame.filler)));
      return chosen(shown, raw, all_of(frame.floor));
    };
    part.find_terms(full, part.end, back, frame.filler, terms, mask_at, take);
    sum = Part::sum_of(back);
    if (full != 0) sum = S::add(part.fold_full(0, front, terms, take), sum);
    reach = frame.reach(extremes.all());
    return kMasked ? holds_shown<E>(reach, frame) : holds_part(reach, part, full, frame, mask_at);
  }

  /// The state of a row of any values, each chunk in its own frame; front and back become its chunks' terms, or with
  /// kLog its elements, -inf where none is.
  template <bool kLog>
  __device__ __forceinline__ lift::Root fold_any(Chunk& front, Chunk& back, float c, BlockChunks& chunks) const {
    using Fold = lift::WarpFold<Part::kWidth, 32>;
    const unsigned none = none_of(lift::absent(c));
    const auto fold = [&](int chunk, Chunk& v) {
      typename Part::Vectors raw;
      const int end = chunk < full ? part.shift + lift::kChunk : part.end;
      part.gather(chunk, end, raw, none, mask_at);
#pragma unroll
      for (int j = 0; j < Part::kVectors; ++j) {
        if (kMasked && end > j / Part::kOfStep * Part::kElements)
          raw[j] = chosen(mask.shown(chunk, j), raw[j], all_of(none));
        Packed<E>::unpack(raw[j], v + j * Part::kWidth);
      }
      const auto own = kLog ? Fold::reduce(v, c) : Fold::terms(v, c);
      if (part.lane == 0) chunks.put(own, chunk);
    };
    fold(full, back);
    if (full != 0) fold(0, front);
    __syncwarp();
    return chunks.merge(full + 1);
  }

  /// Results to y, for `all` elements, those that exist or not. scale(chunk, terms) makes them of the chunks' terms;
  /// final(chunk, j, vector) has the last word.
  template <class Scale, class Final = AsItIs>
  __device__ __forceinline__ void write(Chunk& front, Chunk& back, int all, const Scale& scale,
                                        const Final& final = {}) const {
    const bool has_second = all > lift::kChunk;
    uint4 before{};
    scale(full, back);
    if (full != 0) {
      scale(0, front);
      part.write_full(0, row.y, front, before, final);
    } else {
      part.write(0, part.shift + min(all, lift::kChunk), !has_second, row.y, back, before, final);
      // What does not exist is written beside what does.
#pragma unroll
      for (float& e : back) e = 0.F;
    }
    if (has_second) part.write(1, part.shift + all - lift::kChunk, true, row.y, back, before, final);
  }
  /// The elements, as `finish` leaves them, a chunk after the other; -inf where none exists.
  template <class Finish>
  __device__ __forceinline__ void write_logs(int all, const Finish& finish) const {
    const auto final = [&](int chunk, int j, const uint4& own) { return none_is_low(chunk, j, own); };
    uint4 before{};
#pragma unroll 1
    for (int chunk = 0; chunk == 0 || chunk * lift::kChunk < all; ++chunk) {
      Chunk v;
      if (chunk < full) {
        part.read_full(chunk, v);
      } else {
        part.read(chunk, chunk == full ? part.end : 0, v);
      }
      finish(v);
      const int room = all - chunk * lift::kChunk;
      part.write(chunk, part.shift + min(room, lift::kChunk), room <= lift::kChunk, row.y, v, before, final);
    }
  }
  /// For that, where no element exists -inf.
  __device__ __forceinline__ uint4 none_is_low(int chunk, int j, uint4 own) const {
    const unsigned none = none_of(-fold::infinity<float>());
    if (chunk > full || !exists()) return all_of(none);
    if (kMasked) own = chosen(mask.shown(chunk, j), own, all_of(none));
    return chunk < full ? own : part.cut(j, part.end, own, none, mask_at);
  }

 private:
  static __device__ __forceinline__ char* landed_at(char* place, const char* first) {
    return place + reinterpret_cast<std::uintptr_t>(first) % 16;
  }
  static __device__ __forceinline__ int shift_of(const char* x) {
    return kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(x) % 16) / Part::kSize;
  }
  static __device__ __forceinline__ unsigned none_of(float value) {
    E nones[Part::kWidth];
#pragma unroll
    for (E& e : nones) e = Packed<E>::narrow(value);
    return Packed<E>::join(nones).x;
  }
};

/// A block's rows, a bit each, of any values, by its warp.
template <class E, bool kOnVectors, bool kMasked, bool kLog>
__device__ __noinline__ void put_any_pairs(const PairedRows& given, char* memory, const PairedRow* found, unsigned rows,
                                           unsigned mask_at, BlockChunks& chunks) {
  using Pair = HiddenPair<E, kOnVectors, kMasked>;
  const RowProblem& p = given.rows.p;
  const auto all = static_cast<int>(p.n);
#pragma unroll 1
  for (int run = 0; rows >> run != 0; ++run) {
    if ((rows >> run & 1U) == 0) continue;
    const PairedRow row = found[run];
    const Pair pair(given, memory, run, row, mask_at);
    typename Pair::Chunk front, back;
    const auto root = pair.template fold_any<kLog>(front, back, given.rows.factor.c, chunks);
    const auto scale = [&](int chunk, typename Pair::Chunk& v) {
      const ChunkMultiplier multiplier(root, chunks.nodes[chunk], chunks.far[chunk]);
      const float unit = chunks.units[chunk];
      finish<kLog, lift::kPerLane>(
          v, unit > 0.F, fold::Scalar<float>::mul(multiplier.value, fabsf(unit)),
          [&] { return given.log_normaliser(root.state()); }, [](int) {});
    };
    if (!ChunkMultiplier(root, chunks.nodes[0], chunks.far[0]).regular) {
      fill<E, kLog>(row.y, row.mask, 1, pair.part.lane, 32, row.n, all, constant_of<kLog>(root.state(), p.empty));
    } else if constexpr (kLog) {
      pair.write(front, back, all, scale,
                 [&](int chunk, int j, const uint4& own) { return pair.none_is_low(chunk, j, own); });
    } else {
      pair.write(front, back, all, scale);
    }
    __syncwarp();  // the chunks have been read
  }
}

/// A block's rows on their way, and all else that its warp needs; by all threads.
template <class E, bool kMasked>
__device__ __forceinline__ void begin_hidden(const PairedRows& given, char* memory, CopyBarrier (&landed)[kPairRuns],
                                             PairedRow (&found)[kPairRuns], VectorMasks<E>& masks) {
  const RowProblem& p = given.rows.p;
  if (const auto run = static_cast<int>(threadIdx.x); run < given.runs && given.row(run) < p.rows) {
    const PairedRow own(p, given.row(run));
    found[run] = own;
    landed[run].init(kMasked ? 2 : 1);
    CopyBarrier::publish();
    fetch_run<E>(given.place(memory, run, own.x), landed[run], own.x, own.n, given.rows.x);
    if (kMasked) fetch_run<char>(given.mask_place(memory, run, own.mask), landed[run], own.mask, own.n, given.masks);
  }
  masks.make();
  __syncthreads();
}

template <class E, bool kOnVectors, bool kMasked>
__global__ void __maxnreg__(sizeof(E) == 4 || kMasked ? 128 : 112)
    softmax_hidden_pairs(const __grid_constant__ PairedRows given) {
  begin_in_order();
  using Pair = HiddenPair<E, kOnVectors, kMasked>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kPairRuns];
  __shared__ PairedRow found[kPairRuns];
  __shared__ VectorMasks<E> masks;
  __shared__ BlockChunks any;
  begin_hidden<E, kMasked>(given, landing_memory, landed, found, masks);
  const unsigned mask_at = settled(shared_address(&masks));
  const RowProblem& p = given.rows.p;
  const float inverse = __fdividef(1.F, given.rows.factor.c);
  unsigned left = 0;
#pragma unroll 1
  for (int run = 0; run < given.runs && given.row(run) < p.rows; ++run) {
    const PairedRow row = found[run];
    landed[run].wait(0);
    const Pair pair(given, landing_memory, run, row, mask_at);
    typename Pair::Chunk front, back;
    float multiplier = 0.F;
    bool vanishes = false;
    if (pair.exists()) {
      typename Pair::Frame::Reach reach;
      float sum = 0.F;
      if (!pair.fold(front, back, pair.frame(given.rows.factor.c, inverse), reach, sum)) {
        left |= 1U << run;
        continue;
      }
      multiplier = reciprocal_of_normal(sum);
      vanishes = Pair::Frame::may_vanish(reach.low, sum);
    } else {
#pragma unroll
      for (float& e : back) e = 0.F;
    }
    pair.write(front, back, static_cast<int>(p.n), [&](int, typename Pair::Chunk& v) {
      Pair::Part::template to_results<kMasked>(v, multiplier, vanishes);
    });
  }
  if (left != 0) put_any_pairs<E, kOnVectors, kMasked, false>(given, landing_memory, found, left, mask_at, any);
}

/// Sums of all of a block's rows, then their logarithms, a row a thread, then their results.
template <class E, bool kOnVectors, bool kMasked>
__global__ void __maxnreg__(kMasked || (sizeof(E) == 2 && !kOnVectors) ? 96 : 80)
    log_softmax_hidden_pairs(const __grid_constant__ PairedRows given) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Pair = HiddenPair<E, kOnVectors, kMasked>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kPairRuns];
  __shared__ PairedRow found[kPairRuns];
  __shared__ VectorMasks<E> masks;
  __shared__ float sums[kPairRuns], frames[kPairRuns];
  __shared__ __align__(8) char norm_memory[kPairRuns * sizeof(fold::LogNormaliser<float>)];
  __shared__ BlockChunks any;
  auto* const norms = reinterpret_cast<fold::LogNormaliser<float>*>(norm_memory);
  begin_hidden<E, kMasked>(given, landing_memory, landed, found, masks);
  const unsigned mask_at = settled(shared_address(&masks));
  const RowProblem& p = given.rows.p;
  const float inverse = __fdividef(1.F, given.rows.factor.c);
  const auto has_row = [&](int run) { return run < given.runs && given.row(run) < p.rows; };
#pragma unroll 1
  for (int run = 0; has_row(run); ++run) {
    const PairedRow row = found[run];
    landed[run].wait(0);
    const Pair pair(given, landing_memory, run, row, mask_at);
    float sum = 1.F, m = 0.F;
    if (pair.exists()) {
      const auto frame = pair.frame(given.rows.factor.c, inverse);
      typename Pair::Chunk front, back;
      typename Pair::Frame::Reach reach;
      const bool holds = pair.fold(front, back, frame, reach, sum);
      // The state is in the frame of the largest element.
      m = S::add(frame.s, static_cast<float>(reach.high));
      sum = holds ? S::mul(sum, __int_as_float((127 - reach.high) << 23)) : kNotHeld;
    }
    if (pair.part.lane == 0) sums[run] = sum, frames[run] = m;
  }
  __syncwarp();
  if (const auto run = static_cast<int>(threadIdx.x); has_row(run) && sums[run] > 0.F)
    norms[run] = given.log_normaliser({static_cast<double>(frames[run]), sums[run]});
  __syncwarp();
  unsigned left = 0;
#pragma unroll 1
  for (int run = 0; has_row(run); ++run) {
    if (!(sums[run] > 0.F)) {
      left |= 1U << run;
      continue;
    }
    const PairedRow row = found[run];
    const Pair pair(given, landing_memory, run, row, mask_at);
    const float half_c = norms[run].half_c, half_frame = norms[run].half_frame, half_log2_d = norms[run].half_log2_d,
                two_kappa = norms[run].two_kappa;
    pair.write_logs(static_cast<int>(p.n), [&](float(&v)[lift::kPerLane]) {
#pragma unroll
      for (float& e : v) e = S::mul(two_kappa, S::sub(S::fma(e, half_c, -half_frame), half_log2_d));
      if (half_log2_d > 0.5F) return;
#pragma unroll
      for (float& e : v) e = S::add(e < 0.F ? e : 0.F, 0.F);  // a result may be 0
    });
  }
  if (left != 0) put_any_pairs<E, kOnVectors, kMasked, true>(given, landing_memory, found, left, mask_at, any);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
