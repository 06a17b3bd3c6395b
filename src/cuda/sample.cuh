// sample: a block a row. What the filters leave is found by digits of the elements' keys, folded chunk by chunk, and
// the draw goes down the row's tree. A row is read several times, from the L2 cache after the first.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/sample_row.cuh"
#include "cuda/topk_row.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kSampleThreads = 512;

/// A block at work on one row. All threads call every function together, and get its result.
class SampleBlock {
 public:
  using Lse = fold::LogSumExp<float>;
  using State = Lse::State;
  static constexpr float kAll = SampleRow::kAll;
  struct Shared {
    unsigned long long bins[256], total;
    unsigned long long best;
    std::uint32_t digit;
    float sums[2 * lift::kChunk];
  };
  struct One {};  ///< every element's weight

  /// nodes: room for every level of the row's tree.
  __device__ __forceinline__ SampleBlock(const SampleRow& row, Shared& shared, State* nodes)
      : row_(row), shared_(shared), nodes_(nodes), n_(row.row.length), chunks_(lift::chunk_count(n_)) {}

  /// The largest element as its key and the complement of its index; 0 where there is none.
  __device__ std::uint64_t largest() {
    if (threadIdx.x == 0) shared_.best = 0;
    __syncthreads();
    unsigned long long best = 0;
    for (std::int64_t i = threadIdx.x; i < n_; i += threads()) {
      const std::uint64_t key = fold::Ranked<float>::of(row_.processed(i), 0).key;
      best = max(best, static_cast<unsigned long long>(key << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(i))));
    }
    for (int distance = 16; distance > 0; distance /= 2)
      best = max(best, __shfl_xor_sync(lift::kWholeWarp, best, distance));
    if (threadIdx.x % 32 == 0) atomicMax(&shared_.best, best);
    __syncthreads();
    return shared_.best;
  }

  /// What the filters leave are the elements from this one up. NaN if the row is no distribution.
  __device__ float threshold(float c, const Draw& draw) {
    if (!draw.filters() || n_ == 0) return kAll;
    const float top = fold::Ranked<float>{static_cast<std::uint32_t>(largest() >> 32), 0}.value();
    if (!(fabsf(top) < fold::infinity<float>())) return top == kAll ? kAll : fold::canonical_nan<float>();
    float kth = kAll;
    if (draw.top_k > 0 && draw.top_k < n_) {
      const auto wanted = static_cast<std::uint64_t>(draw.top_k);
      kth = select(One{}, [&](std::uint64_t) { return wanted; });
    }
    const float near = draw.min_p > 0. ? fold::least_of_min_p(top, draw.min_p, c) : kAll;
    const float both = fmaxf(kth, near);
    if (draw.top_p >= 1.) return both;
    return fmaxf(both, weigh(c, row_.p.order == FilterOrder::min_p_first ? both : kth, top, draw.top_p));
  }

  /// The state of the elements from `from` up; the row's tree is left in nodes.
  __device__ State fold(float c, float from, bool of_raw) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (std::int64_t chunk = threadIdx.x / 32; chunk < chunks_; chunk += threads() / 32) {
      float v[lift::kPerLane];
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) v[j] = kept(chunk * lift::kChunk + lane + 32 * j, from, of_raw);
      const State s = lift::WarpFold<1>::terms(v, c).state;
      if (lane == 0) nodes_[chunk] = s;
    }
    __syncthreads();
    return climb(nodes_, chunks_, static_cast<int>(threadIdx.x), threads(), [] { __syncthreads(); });
  }

  /// One draw from the elements from `from` up.
  __device__ Drawn descend(float c, float from, double uniform) {
    if (chunks_ == 0) return {-1, Lse::identity()};
    if (fold::is_nan(from)) return {-1, Lse::not_a_number()};
    const State root = fold(c, from, false);
    if (!fold::Normaliser<float>(root).regular) return {-1, root};
    fold::Descent way{fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
    const std::int64_t chunk = leaf_of(nodes_, chunks_, way, root.m);
    const State own = nodes_[chunk];
    terms_of(chunk, c, from, own.m);
    const int place = place_of(shared_.sums, own.m, way, root.m);
    __syncthreads();
    return {chunk * lift::kChunk + place, root};
  }

  /// The distribution that was drawn from. `only`: the element that has all of it, or -1.
  __device__ void write_probabilities(const State& s, float c, float from, std::int64_t only) {
    const SampleProblem& p = row_.p;
    const Operand& o = p[Slot::y];
    const fold::Normaliser<float> norm(s);
    const float multiplier = norm.multiplier(s.m);
    for (std::int64_t i = threadIdx.x; i < row_.row.n; i += threads()) {
      const bool there = i < n_ && is_present(row_.row, p[Slot::mask].axis_stride, i);
      float y = 0.F;
      if (norm.empty) {
        if (p.empty == Empty::nan) y = fold::canonical_nan<float>();
      } else if (!norm.regular) {
        if (there) y = fold::canonical_nan<float>();
      } else if (only >= 0) {
        y = i == only ? 1.F : 0.F;
      } else if (const float v = there ? kept(i, from, false) : kAll; v != kAll) {
        y = probability_of(v, c, s.m, multiplier);
      }
      put(o.dtype, row_.row.y + i * o.axis_stride, y);
    }
  }

  /// The logits, -inf where they were taken away. `only`: the one that stays, or -1.
  __device__ void write_masked(float from, std::int64_t only) {
    const Operand& o = row_.p[SampleSlot::masked];
    char* to = o.data + row_.place.offset(o);
    for (std::int64_t i = threadIdx.x; i < row_.row.n; i += threads()) {
      const float v = i < n_ ? row_.processed(i) : kAll;
      put(o.dtype, to + i * o.axis_stride, (only >= 0 ? i != only : v < from) ? kAll : fold::canonical(v));
    }
  }

  /// How many elements are at least x.
  __device__ std::int64_t count_from(float x, bool of_raw) {
    if (threadIdx.x == 0) shared_.total = 0;
    __syncthreads();
    unsigned long long count = 0;
    for (std::int64_t i = threadIdx.x; i < n_; i += threads()) count += row_.at(i, of_raw) >= x ? 1 : 0;
    for (int distance = 16; distance > 0; distance /= 2) count += __shfl_xor_sync(lift::kWholeWarp, count, distance);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_.total, count);
    __syncthreads();
    const auto all = static_cast<std::int64_t>(shared_.total);
    __syncthreads();
    return all;
  }

 private:
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ float kept(std::int64_t i, float from, bool of_raw) const {
    const float v = row_.at(i, of_raw);
    return from == kAll || v >= from ? v : kAll;
  }
  /// The value down to which, from the largest on, the weights reach need(sum of all weights): a byte of the key at a
  /// time, from the top.
  template <class Weight, class Need>
  __device__ float select(const Weight& weight, const Need& need) {
    std::uint32_t prefix = 0, mask = 0;
    std::uint64_t left = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int b = static_cast<int>(threadIdx.x); b < 256; b += threads()) shared_.bins[b] = 0;
      __syncthreads();
#pragma unroll 1
      for (std::int64_t base = 0; base < n_; base += threads()) {
        const std::int64_t i = base + threadIdx.x;
        const float v = i < n_ ? row_.processed(i) : kAll;
        const std::uint32_t key = fold::Ranked<float>::of(v, 0).key;
        const bool here = i < n_ && (key & mask) == prefix;
        const int bin = static_cast<int>(key >> shift & 255U);
        if constexpr (std::is_same_v<Weight, One>) {
          count_in_bins(shared_.bins, here ? bin : -1);
        } else {
          const unsigned long long w = here ? weight(v) : 0;
          if (w != 0) atomicAdd(&shared_.bins[bin], w);
        }
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        if (shift == 24) {
          std::uint64_t total = 0;
          for (int b = 0; b < 256; ++b) total += shared_.bins[b];
          left = need(total);
        }
        int b = 255;
        for (; b > 0 && left > shared_.bins[b]; --b) left -= shared_.bins[b];
        shared_.digit = static_cast<std::uint32_t>(b);
      }
      __syncthreads();
      prefix |= shared_.digit << shift;
      mask |= 255U << shift;
    }
    __syncthreads();
    return fold::Ranked<float>{prefix, 0}.value();
  }

  /// The largest element such that those from it up have a share of at least top_p of those from `first` up.
  __device__ float weigh(float c, float first, float top, double top_p) {
    const auto frame = Lse::frame(top, c);
    const float m = frame.fast ? Lse::narrow(frame.m) : 0.F;
    const auto weight = [&](float v) -> unsigned long long {
      if (!(v > kAll && v >= first)) return 0;
      return fold::count_of(frame.fast ? fold::term<fold::Scalar<float>>(v, c, m) : fold::term_wide(v, c, frame.m));
    };
    return select(weight, [&](std::uint64_t total) { return fold::share_of(top_p, total); });
  }

  /// sums[s .. 2 s): the sums of a chunk's terms whose places agree modulo s.
  __device__ void terms_of(std::int64_t chunk, float c, float from, double m) {
    for (int k = static_cast<int>(threadIdx.x); k < lift::kChunk; k += threads()) {
      const float v = kept(chunk * lift::kChunk + k, from, false);
      shared_.sums[lift::kChunk + k] = v == kAll         ? 0.F
                                       : Lse::is_fast(m) ? fold::term<fold::Scalar<float>>(v, c, Lse::narrow(m))
                                                         : fold::term_wide(v, c, m);
    }
    __syncthreads();
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int k = static_cast<int>(threadIdx.x); k < s; k += threads())
        shared_.sums[s + k] = fold::Scalar<float>::add(shared_.sums[2 * s + k], shared_.sums[3 * s + k]);
      __syncthreads();
    }
  }

  const SampleRow& row_;
  Shared& shared_;
  State* nodes_;
  std::int64_t n_, chunks_;
};

/// Draws from one row.
__device__ inline void sample_row(const SampleProblem& p, std::int64_t index, SampleBlock::Shared& shared,
                                  SampleBlock::State* nodes) {
  const SampleRow row(p, index);
  const Draw draw(row, index);
  SampleBlock block(row, shared, nodes);
  const auto scale = draw.scaled();
  const bool greedy = draw.greedy();
  Drawn drawn{-1, SampleBlock::Lse::identity()};
  float from = SampleBlock::kAll;
  if (draw.sound() && greedy) {
    const std::uint64_t best = block.largest();
    const float value = fold::Ranked<float>{static_cast<std::uint32_t>(best >> 32), 0}.value();
    if (best != 0 && !fold::is_nan(value) && value != SampleBlock::kAll)
      drawn = {0xFFFFFFFFU - static_cast<std::uint32_t>(best), {0., 1.F}};
    if (best != 0 && fold::is_nan(value)) drawn.state = SampleBlock::Lse::not_a_number();
    __syncthreads();
  } else if (draw.sound()) {
    from = block.threshold(scale.c, draw);
    drawn = block.descend(scale.c, from, draw.uniform);
  } else {
    drawn.state = SampleBlock::Lse::not_a_number();
  }
  const std::int64_t only = greedy ? drawn.token : -1;
  if (p[Slot::y].given) block.write_probabilities(drawn.state, scale.c, from, only);
  if (p[SampleSlot::masked].given) block.write_masked(from, only);
  const Operand& asked = p[SampleSlot::log_probability];
  const bool point = p.of == Distribution::sampled && greedy, of_raw = p.of == Distribution::raw;
  float lp = drawn.token < 0 ? fold::canonical_nan<float>() : 0.F;
  std::int64_t rank = drawn.token < 0 ? 0 : 1;
  if (drawn.token >= 0 && !point) {
    const float element = row.at(drawn.token, of_raw);
    if (asked.given) {
      const auto own = of_raw ? fold::make_scale<float>(draw.scale) : scale;
      const auto state = of_raw ? block.fold(own.c, SampleBlock::kAll, true) : drawn.state;
      fold::LogNormaliser<float> log_row(state, own);
      log_row.set_c(own.c);
      lp = log_row.regular ? log_row.log_probability(element) : fold::canonical_nan<float>();
      __syncthreads();
    }
    if (p[SampleSlot::rank].given) rank = block.count_from(element, of_raw);
  }
  if (threadIdx.x != 0) return;
  row.write_integer(SampleSlot::tokens, drawn.token);
  row.write_integer(SampleSlot::rank, rank);
  if (asked.given) put(asked.dtype, asked.data + row.place.offset(asked), lp);
}

/// nodes: `room` states a block. left: a row, 0 where it has been drawn already; null: none has.
static __global__ void __launch_bounds__(kSampleThreads, 2)
    sample_rows(const __grid_constant__ SampleProblem p, SampleBlock::State* nodes, std::int64_t room,
                const unsigned* left) {
  begin_in_order();
  __shared__ SampleBlock::Shared shared;
#pragma unroll 1
  for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    if (left != nullptr && left[row] == 0) continue;
    sample_row(p, row, shared, nodes + blockIdx.x * room);
    __syncthreads();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
