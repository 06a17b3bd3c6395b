// Short ragged rows. They lie end to end in memory, so a warp takes as many neighbours as fit in 1024 slots at a time,
// a pack: element by element where that is all there is to do, whatever row an element is of, and by groups of lanes,
// as many as the longest row asks for, where rows have sums. Rows of another kind are marked for ragged_rows.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/ragged_values.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Warps of a block, and blocks of a processor.
inline constexpr int kPackWarps = 8, kPackBlocks = 4;

/// What a row costs besides its elements, as so many more.
inline constexpr std::int64_t kPackRow = 16;

/// Of rows that are worth `each` together the share-th, [begin, end): by a warp. Where offsets are in order, rows are
/// ordered by what those before them are worth; whatever they are, a later share begins no earlier, for halves of warps
/// search for either end as those beside them do, so that each row is of one share.
struct PackShare {
  int begin, end;

  static __device__ __forceinline__ PackShare find(const RowProblem& p, std::int64_t share, std::int64_t each) {
    constexpr int kCuts = 16;  // looked at at a time
    const Operand& o = p[Slot::offsets];
    const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / kCuts;
    const std::int64_t worth = (share + half) * each;
    auto low = 0, high = static_cast<int>(p.rows);  // the row lies there
#pragma unroll 1
    while (__any_sync(lift::kWholeWarp, low < high)) {
      const int step = (high - low + kCuts - 1) / kCuts;
      const std::int64_t row = low + std::int64_t{lane % kCuts} * step;
      const bool before = row < high && offset_at(p, o.data + row * o.strides[0]) + row * kPackRow < worth;
      // (A reduction in half a warp makes the compiler give up uniform registers behind it.)
      const int count = __popc(__ballot_sync(lift::kWholeWarp, before) >> kCuts * half & ((1U << kCuts) - 1U));
      high = count == 0 ? low : min(low + count * step, high);
      low = count == 0 ? low : low + (count - 1) * step + 1;
    }
    return {__reduce_min_sync(lift::kWholeWarp, low), __reduce_max_sync(lift::kWholeWarp, low)};
  }
  /// What all are worth.
  static std::int64_t of_all(const RowProblem& p) { return p.ragged_elements + p.rows * kPackRow; }
};

/// Up to 32 neighbouring rows, one a lane, by a warp.
template <class E, RaggedLeaves kLeaves>
struct RaggedPacks {
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr int kLongest = lift::kChunk - kWidth + 1;  ///< that fits wherever it begins
  static constexpr int kFar = 1 << 30;                        ///< where rows cannot be told apart any more
  static constexpr int kLevels = 6;                           ///< numbers of lanes that a row may need: powers of two
  static constexpr int kFewPasses = 3;                        ///< over a pack's rows; more are worth an order
  static constexpr bool kTerms = kLeaves == RaggedLeaves::softmax, kStates = kLeaves == RaggedLeaves::row;

  const RowProblem& p;
  const RowResults& to;  ///< of states alone
  RaggedValues<E>& values;
  std::uint8_t* order;       ///< a place for 32 lanes
  std::int64_t first, stop;  ///< its rows
  int lane;
  fold::Scale<float> scale;
  float c;
  std::int64_t origin;  ///< where the first row's vectors begin, counted from a 16-byte boundary below x
  int begin;            ///< of the lane's row, from there
  int n;                ///< its length, if it is at most kLongest
  bool apart;           ///< some rows do not lie side by side: offsets run backwards
  lift::NearState state{-fold::infinity<float>(), 0.F};  ///< of states alone, the lane's row's once it is folded

  __device__ __forceinline__ RaggedPacks(const RowProblem& p_, const RowResults& to_, RaggedValues<E>& values_,
                                         std::uint8_t* order_, std::int64_t first_, std::int64_t stop_)
      : p(p_),
        to(to_),
        values(values_),
        order(order_),
        first(first_),
        stop(stop_),
        lane(static_cast<int>(threadIdx.x) % 32),
        scale(fold::make_scale<float>(p_.scale)),
        c(scale.c),
        n(0) {
    std::int64_t own = std::int64_t{1} << 62;
    if (first + lane < stop) {
      const RaggedRow r = ragged_row(p, first + lane);
      own = r.begin + shift();
      n = static_cast<int>(min(r.n, std::int64_t{kLongest + 1}));
    }
    origin = __shfl_sync(lift::kWholeWarp, own, 0) & ~std::int64_t{kWidth - 1};
    const std::int64_t before = __shfl_up_sync(lift::kWholeWarp, own, 1);
    apart = __any_sync(lift::kWholeWarp, lane > 0 && own < before);
    begin = static_cast<int>(min(own - origin, std::int64_t{kFar}));
    if (begin == kFar && n > 0) n = kLongest + 1;
  }
  __device__ __forceinline__ int shift() const {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(p[Slot::x].data) % 16) / kSize;
  }

  /// Takes what it can of its rows, in front of which nothing is left to do, and returns how many that are: all, or
  /// those before a pack that rows behind these may belong to, too. Marks those that others must take.
  __device__ __forceinline__ int run(unsigned* left) {
    const int count = static_cast<int>(min(stop - first, std::int64_t{kMarked}));
    unsigned todo = __ballot_sync(lift::kWholeWarp, n > 0 && n <= kLongest);
    unsigned rest = __ballot_sync(lift::kWholeWarp, n > kLongest);
    if (apart) rest |= todo, todo = 0;
    int done = count;
#pragma unroll 1
    while (todo != 0) {
      const int i = __ffs(static_cast<int>(todo)) - 1;
      const int from = __shfl_sync(lift::kWholeWarp, begin, i) & ~(kWidth - 1);
      const bool fits = n <= kLongest && begin + n - from <= lift::kChunk;
      const unsigned behind = __ballot_sync(lift::kWholeWarp, !fits) & (lift::kWholeWarp << i);
      if (behind == 0 && i > 0 && first + count < stop) {
        done = i;
        rest &= (1U << i) - 1U;
        break;
      }
      const unsigned these = behind == 0 ? lift::kWholeWarp << i : (behind & -behind) - (1U << i);
      if (!pack(i, 32 - __clz(static_cast<int>(these)), from)) rest |= these & todo;
      todo &= ~these;
    }
    if constexpr (kStates) {
      const bool has_state = lane < done && first + lane < stop && (rest >> lane & 1U) == 0;
      if (has_state) to.put_state(first + lane, {static_cast<double>(state.m), state.d});
    }
    if (rest != 0 && lane == 0) {
      const auto bit = static_cast<int>(first % kMarked);
      unsigned* word = left + first / kMarked;
      atomicOr(word, rest << bit);
      if (bit != 0 && rest >> (kMarked - bit) != 0) atomicOr(word + 1, rest >> (kMarked - bit));
    }
    return done;
  }

 private:
  /// Rows [i, end_row), which lie in the 1024 slots from `from` on. False: nothing is written.
  __device__ __forceinline__ bool pack(int i, int end_row, int from) {
    const int start = begin - from;  // of lanes with one of these rows
    const std::int64_t at = (origin + from - shift()) * kSize;
    if (!spread(p[Slot::x].data + at, __shfl_sync(lift::kWholeWarp, start + n, end_row - 1))) return false;
    __syncwarp();
    // A group's row, wherever it begins, lies in the slots of its 32 values a lane. All rows by as many lanes as the
    // longest asks for, or, where that takes long, in the order of the lanes that they need.
    const bool has_row = lane >= i && lane < end_row;
    const int longest = level_of(__reduce_max_sync(lift::kWholeWarp, has_row ? n : 0));
    int rows = end_row - i, level = longest, place = lane - i;
    const bool sorts = rows > kFewPasses * (32 >> longest);
    const int own_level = has_row && n > 0 ? level_of(n) : kLevels;
    if (sorts) rows = put_in_order(own_level, place), level = 0;
    int done = 0;
#pragma unroll 1
    for (; done < rows; ++level) {
      // Of each number of lanes as many rows as fill the warp; what is left, with those that need more.
      const int behind = sorts ? __popc(__ballot_sync(lift::kWholeWarp, own_level <= level)) : rows;
#pragma unroll 1
      for (; done < rows && (behind - done >= 32 >> level || behind == rows); done += 32 >> level) {
        const int its = done + (lane >> level), own = min(its, rows - 1), from_lane = sorts ? order[own] : i + own;
        const int its_start = __shfl_sync(lift::kWholeWarp, start, from_lane);
        const int its_n = __shfl_sync(lift::kWholeWarp, n, from_lane);
        const lift::NearState folded = fold_row(its_start, its < rows ? its_n : 0, level);
        __syncwarp();
        if constexpr (kStates) {
          const int group = place < 32 ? (place - done) << level : 32;
          const lift::NearState its_state{__shfl_sync(lift::kWholeWarp, folded.m, group),
                                          __shfl_sync(lift::kWholeWarp, folded.d, group)};
          if (has_row && place >= done && group < 32) state = its_state;
        }
      }
    }
    if constexpr (!kStates) {
      values.collect(p[Slot::y].data + at, __shfl_sync(lift::kWholeWarp, start, i),
                     __shfl_sync(lift::kWholeWarp, start + n, end_row - 1), [](float v) { return v; });
      __syncwarp();
    }
    return true;
  }

  /// The logarithm of the lanes that a row needs.
  static __device__ __forceinline__ int level_of(int n) { return n <= 29 ? 0 : 32 - __clz((n + 2) >> 5); }
  /// The lanes' rows by own_level, kLevels: none. Returns how many there are, and where the lane's is among them.
  __device__ __forceinline__ int put_in_order(int own_level, int& place) {
    int rows = 0;
    place = kFar;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const unsigned these = __ballot_sync(lift::kWholeWarp, own_level == level);
      if (own_level == level) place = rows + __popc(these & ((1U << lane) - 1U));
      rows += __popc(these);
    }
    if (own_level < kLevels) order[place] = static_cast<std::uint8_t>(lane);
    __syncwarp();
    return rows;
  }

  /// The elements of the vectors from x on, up to the end-th element, to their terms in a frame for all, or as they
  /// are. False if some lie too far apart, or a vector is not in memory whole.
  __device__ __forceinline__ bool spread(const char* x, int end) {
    const int last = (end - 1) / kWidth;
    const Extent memory = extent_of<E>(p);
    if (x < memory.begin || x + (last + 1) * 16 > memory.end) return false;
    uint4 raw[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = reinterpret_cast<const uint4*>(x)[min(lane + 32 * j, last)];
    const RaggedFrame frame(Packed<E>::extremes(raw), c);
    if (!frame.near) return false;
    const lift::FrameTerms terms(c, frame.m());
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (32 * j > last) break;
      float v[kWidth];
      Packed<E>::unpack(raw[j], v);
      if constexpr (kTerms) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) v[k] = terms.template term<false>(v[k]);
      }
      values.put(j, v);
    }
    return true;
  }

  /// A row of a group of 2^level lanes: its values from `start` on to its results, or its state. n = 0: no row's.
  __device__ __forceinline__ lift::NearState fold_row(int start, int its_n, int level) {
    const int lanes = 1 << level, g = lane & (lanes - 1);
    // Of the lane's values the first so many exist, but for those before the row.
    const int end = its_n == 0 ? 0 : (start & 3) + its_n, reach = max(end - 4 * g, 0);
    const int count = 4 * (reach >> (level + 2)) + min(reach & (4 * lanes - 1), 4);
    unsigned there = count >= 32 ? 0xFFFFFFFFU : (1U << count) - 1U;
    if (g == 0) there &= 0xFFFFFFFFU << (start & 3);
    float4* at = values.vectors + (start >> 2) + g;
    float v[lift::kPerLane];
    {
      const float4* from = at;
#pragma unroll
      for (int j = 0; j < 8; ++j, from += lanes) {
        float4 a{};
        if (4 * j < count) a = *from;
        v[4 * j] = a.x, v[4 * j + 1] = a.y, v[4 * j + 2] = a.z, v[4 * j + 3] = a.w;
      }
    }
    if constexpr (kTerms) {
      // The unit is a power of two, and a part of the reciprocal as of the sum, which lies between 2^-62 and 2^12.
      const float multiplier =
          reciprocal_of_normal(sum(level, [&](int i) { return (there & 1U << i) != 0 ? v[i] : 0.F; }));
      put(v, there, at, lanes, [&](float t) { return S::mul(t, multiplier); });
      return {};
    } else {
      const lift::NearState own = own_state(v, there, level);
      if constexpr (!kStates) {
        const fold::LogNormaliser<float> norm({static_cast<double>(own.m), own.d}, scale);
        put(v, there, at, lanes, [&](float x) { return fast_log_probability(norm, x); });
      }
      return own;
    }
  }

  /// The tree over a group's 32 values a lane; as lift::add_tree.
  template <class At>
  __device__ __forceinline__ float sum(int level, const At& at) const {
    float s[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto pair = [&](int j) { return S::add(at(4 * j + k), at(4 * j + 16 + k)); };
      s[k] = S::add(S::add(pair(0), pair(2)), S::add(pair(1), pair(3)));
    }
#pragma unroll 1
    for (int distance = 1 << level >> 1; distance > 0; distance >>= 1) {
#pragma unroll
      for (int k = 0; k < 4; ++k) s[k] = S::add(s[k], __shfl_xor_sync(lift::kWholeWarp, s[k], distance));
    }
    return S::add(S::add(s[0], s[2]), S::add(s[1], s[3]));
  }

  /// The state in the row's own frame.
  __device__ __forceinline__ lift::NearState own_state(const float (&v)[lift::kPerLane], unsigned there,
                                                       int level) const {
    float most = -fold::infinity<float>();
    const float sign = c > 0.F ? 1.F : -1.F;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i)
      if ((there & 1U << i) != 0) most = fmaxf(most, S::mul(v[i], sign));
#pragma unroll 1
    for (int distance = 1 << level >> 1; distance > 0; distance >>= 1)
      most = fmaxf(most, __shfl_xor_sync(lift::kWholeWarp, most, distance));
    constexpr float kMagic = fold::Real<float>::kMagic;
    const float m = S::sub(S::fma(S::mul(most, sign), c, kMagic), kMagic);
    const lift::FrameTerms terms(c, most == -fold::infinity<float>() ? 0.F : m);
    const float d = sum(level, [&](int i) { return (there & 1U << i) != 0 ? terms.template term<false>(v[i]) : 0.F; });
    return {m, S::mul(d, terms.unit)};
  }

  /// A row's results in the place of its values, `lanes` vectors apart.
  template <class Result>
  __device__ __forceinline__ void put(float (&v)[lift::kPerLane], unsigned there, float4* at, int lanes,
                                      const Result& result) {
    __syncwarp();  // a neighbour's group has read the vectors that both have a part of
    // Vectors at the row's ends belong to its neighbours, too: the lane's first one, and its last.
    const auto put_some = [&](float* to, unsigned bits) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if ((bits & 1U << k) != 0) to[k] = result(to[k]);
    };
    const int last = max(31 - __clz(static_cast<int>(there)), 0) >> 2;
    const unsigned first_bits = there & 0xFU, last_bits = there >> 4 * last;
    if (first_bits != 0xFU) put_some(reinterpret_cast<float*>(at), first_bits);
    if (last > 0 && last_bits != 0xFU) put_some(reinterpret_cast<float*>(at + last * lanes), last_bits);
    float4* to = at;
#pragma unroll
    for (int j = 0; j < 8; ++j, to += lanes) {
      const float4 a{result(v[4 * j]), result(v[4 * j + 1]), result(v[4 * j + 2]), result(v[4 * j + 3])};
      if ((there >> 4 * j & 0xFU) == 0xFU) *to = a;
    }
  }
};

/// A block takes neighbouring rows that are worth `each`, its warps an equal number of them, and sets the marks of
/// those that it leaves.
template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(32 * kPackWarps, kPackBlocks)
    ragged_packs(const __grid_constant__ RowProblem p, const __grid_constant__ RowResults to, unsigned* left,
                 std::int64_t each) {
  begin_in_order();
  __shared__ RaggedValues<E> values[kPackWarps];
  __shared__ std::uint8_t order[kPackWarps][32];
  __shared__ PackShare share;
  // As a reduction's result, which the compiler knows to be the same in all lanes: uniform registers take what follows.
  const auto uniform = [](int a) { return __reduce_max_sync(lift::kWholeWarp, a); };
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == 0) {
    const PackShare found = PackShare::find(p, blockIdx.x, each);
    if (threadIdx.x == 0) share = found;
  }
  __syncthreads();
  const int rows = (share.end - share.begin + kPackWarps - 1) / kPackWarps;
  const int begin = uniform(share.begin + warp * rows), stop = uniform(min(begin + rows, share.end));
#pragma unroll 1
  for (int first = begin; first < stop;)
    first += uniform(RaggedPacks<E, kLeaves>(p, to, values[warp], order[warp], first, stop).run(left));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
