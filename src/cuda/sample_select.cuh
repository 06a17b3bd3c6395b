// Which elements of a row the filters leave: the value down to which, from the largest element on, integer weights
// reach a sum. Found a digit of 11 bits at a time: the blocks count weights in bins, and add up each other's.
#pragma once

#include "cuda/sample_part.cuh"
#include "cuda/topk_order.cuh"
#include "softfold/fold/topk.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Sums of 64 bits in kBins bins, in two words each: shared memory adds words of 32 bits by itself.
struct SampleBins {
  unsigned low[kBins], high[kBins];

  /// By all threads of the block together; before a barrier.
  __device__ __forceinline__ void clear() {
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += static_cast<int>(blockDim.x)) low[b] = high[b] = 0;
  }
  /// So many ones that a block's fill no word.
  __device__ __forceinline__ void add(int bin, unsigned ones) { atomicAdd(&low[bin], ones); }
  __device__ __forceinline__ void add(int bin, unsigned long long weight) {
    const auto lower = static_cast<unsigned>(weight);
    const unsigned sum = atomicAdd(&low[bin], lower) + lower;
    const auto upper = static_cast<unsigned>(weight >> 32) + (sum < lower ? 1U : 0U);
    if (upper != 0) atomicAdd(&high[bin], upper);
  }
  /// Of all blocks.
  __device__ __forceinline__ SampleTeam::Word sum(int bin, int segments) const {
    return (sum_of(high, bin, segments) << 32) + sum_low(bin, segments);
  }
  /// Where no word has been filled.
  __device__ __forceinline__ SampleTeam::Word sum_low(int bin, int segments) const {
    return sum_of(low, bin, segments);
  }

 private:
  static __device__ __forceinline__ SampleTeam::Word sum_of(const unsigned* words, int bin, int segments) {
    SampleTeam::Word all = 0;
#pragma unroll 4
    for (int s = 0; s < segments; ++s) all += SampleTeam::of(words[bin], s, segments);
    return all;
  }
};

/// All bins, dealt out to the threads of a row's blocks: neighbours to a thread, and threads stand in the order of the
/// bins. count(bin): of all blocks. All threads make one together.
template <class Count>
class DealtBins {
 public:
  using Word = SampleTeam::Word;

  __device__ __forceinline__ DealtBins(SampleTeam& team, const Count& count)
      : count_(count), lane_(static_cast<int>(threadIdx.x) % 32), warps_(team.segments() * SampleTeam::warps()) {
    const int per = (kBins + 32 * warps_ - 1) / (32 * warps_);
    begin_ = min(per * (32 * team.place() + lane_), kBins), end_ = min(begin_ + per, kBins);
    for (int b = begin_; b < end_; ++b) own_ += count_(b);
    const Word up_to = sum_up_to(own_);
    sums_ = team.gather(__shfl_sync(lift::kWholeWarp, up_to, 31));
    before_ = sum_of_warps(team.place()) + up_to - own_;
  }
  __device__ __forceinline__ Word total() const { return sum_of_warps(warps_); }
  /// f(bin, the sum before it), by the thread whose bin it is, of the one in which the sum comes to the target; of the
  /// first one for 0, of the last one for more than there is.
  template <class F>
  __device__ __forceinline__ void where(Word target, const F& f) const {
    const bool is_before = begin_ > 0 && before_ >= target, is_behind = end_ < kBins && before_ + own_ < target;
    if (begin_ == end_ || is_before || is_behind) return;
    int b = begin_;
    Word sum = before_;
    for (Word here; b < end_ - 1 && sum + (here = count_(b)) < target; ++b) sum += here;
    f(b, sum);
  }

 private:
  __device__ __forceinline__ Word sum_of_warps(int end) const {
    Word sum = 0;
    for (int i = lane_; i < end; i += 32) sum += sums_[i];
    return SampleTeam::add_lanes(sum);
  }

  Count count_;
  int lane_, warps_, begin_, end_;
  Word own_ = 0, before_;
  const Word* sums_;
};

/// The keys among which an element is looked for, cut into bins from the highest key on.
class SampleRange {
 public:
  __device__ __forceinline__ SampleRange(float from, float up_to) : low_(key_of(from)), high_(key_of(up_to)) { set(); }
  __device__ __forceinline__ bool is_one() const { return low_ == high_; }
  __device__ __forceinline__ float low() const { return least_; }
  /// Whether x is in the range, by its value. The range may begin or end between both zeros, which have one key.
  __device__ __forceinline__ bool is_near(float x) const { return x >= least_ && x <= most_; }
  /// The same by its key, and in which bin.
  __device__ __forceinline__ bool has(float x, int& bin) const {
    const std::uint32_t key = key_of(x);
    bin = static_cast<int>((high_ - key) >> shift_);
    return key - low_ <= high_ - low_;
  }
  /// To a bin.
  __device__ __forceinline__ void narrow(int bin) {
    high_ -= static_cast<std::uint32_t>(bin) << shift_;
    low_ = high_ - min(high_ - low_, (1U << shift_) - 1U);
    set();
  }

 private:
  static __device__ __forceinline__ std::uint32_t key_of(float x) { return fold::Ranked<float>::of(x, 0).key; }
  static __device__ __forceinline__ float value_of(std::uint32_t key) { return fold::Ranked<float>{key, 0}.value(); }
  __device__ __forceinline__ void set() {
    least_ = value_of(low_), most_ = value_of(high_);
    shift_ = max(32 - __clz(static_cast<int>(high_ - low_)) - kDigitBits, 0);
  }

  std::uint32_t low_, high_;
  float least_, most_;  ///< their values
  int shift_;
};

/// A term in the row's frame as a count: exactly 0 below the frame by more than kCountBits.
class TermCount {
 public:
  using Lse = fold::LogSumExp<float>;

  __device__ __forceinline__ TermCount(float top, float c)
      : c_(c), frame_(Lse::frame(top, c)), terms_(c, frame_.fast ? Lse::narrow(frame_.m) : 0.F) {}
  /// No element below it counts. Where it is fast it is above -inf, which stands for what is not there.
  __device__ __forceinline__ float least() const {
    constexpr int kCountBits = 36;
    if (!frame_.fast) return -fold::infinity<float>();
    const auto x = static_cast<float>((frame_.m - (kCountBits + 2)) / static_cast<double>(c_));
    return fmaxf(x, -fold::largest<float>());
  }
  __device__ __forceinline__ bool is_fast() const { return frame_.fast; }
  __device__ __forceinline__ double m() const { return frame_.m; }
  __device__ __forceinline__ float c() const { return c_; }
  __device__ __forceinline__ SampleTeam::Word operator()(float x) const {
    if (frame_.fast) return fold::count_of(fold::Scalar<float>::mul(terms_.term<true>(x), terms_.unit));
    return x == -fold::infinity<float>() ? 0 : wide(x, c_, frame_.m);
  }

 private:
  static __device__ __noinline__ SampleTeam::Word wide(float x, float c, double m) {
    return fold::count_of(fold::term_wide(x, c, m));
  }

  float c_;
  Lse::Frame frame_;
  lift::FrameTerms terms_;
};

/// Every element's weight, to be counted.
struct OneEach {
  __device__ __forceinline__ unsigned operator()(float) const { return 1U; }
};

/// By all blocks of a row together, of the elements of a Part.
template <class Part>
class SampleSelect {
 public:
  using Word = SampleTeam::Word;
  struct Shared {
    Word bin, left;  ///< what choose() tells
  };

  __device__ __forceinline__ SampleSelect(SampleTeam& team, Part& part, SampleBins& bins, Shared& shared)
      : team_(team), part_(part), bins_(bins), shared_(shared) {}

  /// The value in `range` down to which, from its largest on, the weights reach need(all of them).
  template <class Weight, class Need>
  __device__ float down_to(SampleRange range, const Weight& weight, const Need& need) {
    Word left = 0;
    bool first = true;
#pragma unroll 1
    while (!range.is_one()) {
      bins_.clear();
      __syncthreads();
      count(range, weight);
      team_.sync();
      choose([&](Word total) { return first ? need(total) : left; });
      left = shared_.left;
      range.narrow(static_cast<int>(shared_.bin));
      first = false;
    }
    return range.low();
  }

 private:
  template <class Weight>
  __device__ __forceinline__ void count(const SampleRange& range, const Weight& weight) {
    // Few elements are left in later steps: most vectors have none.
    part_.for_vectors(false, [&](const float(&v)[Part::kPer]) {
      bool some = false;
      for (const float x : v) some |= range.is_near(x);
      if (!some) return;
      for (const float x : v) {
        int bin;
        if (!range.is_near(x) || !range.has(x, bin)) continue;
        const auto w = weight(x);
        if (w != 0) bins_.add(bin, w);
      }
    });
  }

  /// The bin in which need(the sum of all) is reached, and what is needed of it.
  template <class Need>
  __device__ __forceinline__ void choose(const Need& need) {
    const DealtBins bins(team_, [&](int b) { return bins_.sum(b, team_.segments()); });
    const Word target = need(bins.total());
    bins.where(target, [&](int b, Word before) {
      team_.tell(shared_.bin, static_cast<Word>(b));
      team_.tell(shared_.left, target - before);
    });
    team_.sync();
  }

  SampleTeam& team_;
  Part& part_;
  SampleBins& bins_;
  Shared& shared_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
