// top-p: the value down to which a row's elements, from the largest on, have a share of the row. A look at all elements
// sums their counts exactly, and roughly by bins of their logarithms; a second one collects the few elements of the
// bins in which the share may be reached, and the row's first block finds it among these.
#pragma once

#include "cuda/sample_list.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Sums of counts (fold::count_of) of terms in a row's frame. A count is read off two floats to which the term is
/// added, first rounded to 2^-20 and then what is left of it, as a conversion to 64 bits takes the time of eight
/// additions.
class CountSums {
 public:
  /// unit: what terms are to be multiplied by, a power of two.
  explicit __device__ __forceinline__ CountSums(float unit) : high_base_(0x1p3F / unit), low_base_(0x1.8p-13F / unit) {}

  /// Of up to 2^9 terms.
  struct Sum {
    unsigned high = 0, low = 0;
  };
  __device__ __forceinline__ void add(Sum& sum, float term) const {
    using S = fold::Scalar<float>;
    const float high = S::add(term, high_base_);
    const float rest = S::sub(term, S::sub(high, high_base_));  // exact
    sum.high += __float_as_uint(high), sum.low += __float_as_uint(__fadd_rd(rest, low_base_));
  }
  __device__ __forceinline__ SampleTeam::Word of(const Sum& sum, unsigned terms) const {
    const unsigned high = sum.high - terms * __float_as_uint(high_base_);
    const auto low = static_cast<int>(sum.low - terms * __float_as_uint(low_base_));
    return (SampleTeam::Word{high} << 16) + static_cast<SampleTeam::Word>(static_cast<long long>(low));
  }

 private:
  float high_base_, low_base_;
};

/// Bins of the logarithms of terms, 62 to a binade, from the largest down; the last one has all that lies 2^-31
/// and further down. Terms of a bin have one exponent.
class TermBins {
 public:
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  using Word = SampleTeam::Word;

  /// Of a row in the frame m. elements: so many that the bins' sums fill no word.
  __device__ __forceinline__ TermBins(double m, float c, std::int64_t elements)
      : m_(m), c_(c), terms_(c, Lse::narrow(m)), bits_(bits_for(elements)) {
    const int top = __float_as_int(S::add(terms_.magic, Lse::narrow(m)));
    first_ = static_cast<unsigned>(kEach) * static_cast<unsigned>(top) - __float_as_uint(fold::Real<float>::kMagic);
    base_ = __int_as_float((127 + 23 - bits_) << 23);
  }
  /// Whether their sums are not too rough.
  static __device__ __forceinline__ bool allows(std::int64_t elements) { return bits_for(elements) >= 8; }

  struct Term {
    float value;     ///< to be multiplied by unit()
    unsigned rough;  ///< its mantissa
    int bin;
  };
  /// Of an element that is not too low for the frame; of others anything, but its bin is one.
  __device__ __forceinline__ Term operator()(float x) const {
    const float z = S::fma(x, c_, terms_.magic), f = S::fma(x, c_, -S::sub(z, terms_.magic));
    const float power = fold::exp2_fraction<S>(f), fine = S::fma(f, -kFine, kMagic);
    const unsigned at = __float_as_uint(fine) - static_cast<unsigned>(kEach) * __float_as_uint(z);
    return {__int_as_float(__float_as_int(power) + (__float_as_int(z) << 23)),
            __float_as_uint(S::add(power, base_)) - __float_as_uint(base_),
            static_cast<int>(__viaddmin_u32(at, first_, kBins - 1U))};
  }
  __device__ __forceinline__ float unit() const { return terms_.unit; }

  /// A bin's rough sum as a count.
  __device__ __forceinline__ Word count(Word rough, int bin) const { return rough << (36 - bits_) >> (bin / kEach); }
  /// By how much rough sums up to this count may differ from it: seven times what is to be expected of terms that are
  /// rounded, which is 0.29 times the root of the sum of their units' squares.
  __device__ __forceinline__ Word margin(Word count) const {
    return static_cast<Word>(sqrt(static_cast<double>(count)) * 0x1.4p19) >> bits_;
  }

  /// No element of the bins up to this one is below it, and hardly any of others above.
  __device__ __forceinline__ float least(int bin) const {
    return bin == kBins - 1 ? -fold::infinity<float>() : element_at(bin, 0.51);
  }
  /// All elements above it are of bins before this one, which have hardly any below.
  __device__ __forceinline__ float most(int bin) const { return element_at(bin, -0.51); }

 private:
  static constexpr int kEach = 64;
  static constexpr float kFine = 62.F, kMagic = fold::Real<float>::kMagic + kEach / 2;

  static __device__ __forceinline__ int bits_for(std::int64_t elements) {
    return min(17, static_cast<int>(__clzll(elements - 1)) - 33);
  }
  __device__ __forceinline__ float element_at(int bin, double below) const {
    const double fine = (bin % kEach - kEach / 2 + below) / static_cast<double>(kFine);
    return static_cast<float>((m_ - bin / kEach - fine) / static_cast<double>(c_));
  }

  double m_;
  float c_;
  lift::FrameTerms terms_;
  int bits_;
  unsigned first_;
  float base_;
};

/// By all blocks of a row together.
template <class Part>
class SampleNucleus {
 public:
  using Word = SampleTeam::Word;
  struct Shared {
    Word first, last;  ///< bins whose elements are collected
    Word reached;      ///< the value, or NaN
  };

  __device__ __forceinline__ SampleNucleus(SampleTeam& team, Part& part, SampleBins& bins, const SampleList& list,
                                           Shared& shared, const TermCount& count)
      : team_(team),
        part_(part),
        bins_(bins),
        list_(list),
        shared_(shared),
        count_(count),
        terms_(count.m(), count.c(), part.most()),
        sums_(terms_.unit()) {}

  static __device__ __forceinline__ bool allows(const Part& part, const TermCount& count) {
    return count.is_fast() && TermBins::allows(part.most());
  }

  /// Where the element is, in [from, up_to], from which on all have the count `need` between them. from == up_to where
  /// it has been found.
  struct Place {
    float from, up_to;
    Word need;
  };
  /// The largest element such that those from it up have a share of at least top_p of those from `least` up, to all
  /// blocks. It is not found where many elements lie near it.
  __device__ __forceinline__ Place look(float least, float top, double top_p) {
    bins_.clear();
    list_.clear();
    __syncthreads();
    const Word need = fold::share_of(top_p, team_.sum(count_all(least)));
    choose(need);
    const auto first = static_cast<int>(shared_.first), last = static_cast<int>(shared_.last);
    const float from = fmaxf(least, terms_.least(last)), past = fmaxf(from, terms_.most(first));
    const Near near = collect(from, past);
    const Word above = team_.sum(near.above);
    if (above >= need) return {least, top, need};  // many terms that are rounded alike
    if (team_.leads()) settle(need - above, from, fminf(past, top));
    team_.sync();
    const float reached = __uint_as_float(static_cast<unsigned>(shared_.reached));
    if (!fold::is_nan(reached)) return {reached, reached, need};
    if (need > above + team_.sum(near.inside)) return {least, top, need};
    const float lowest = -team_.largest_element(-near.lowest);
    return {lowest, team_.largest_element(near.highest), need - above};
  }

 private:
  static constexpr float kNone = -__builtin_inff();

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// The warp's elements from `least` up, counted; roughly into the block's bins, too.
  __device__ __forceinline__ Word count_all(float least) const {
    Word all = 0;
    part_.for_chunks(false, [&](std::int64_t, const uint4* place) {
      CountSums::Sum sum;
      unsigned terms = 0;
      Part::for_vectors_at(place, [&](const float(&v)[Part::kPer]) {
        bool some = false;
        for (const float x : v) some |= x >= least;
        if (!some) return;
        terms += Part::kPer;
#pragma unroll
        for (const float x : v) {
          const auto term = terms_(x);
          const bool counts = x >= least;
          sums_.add(sum, counts ? term.value : 0.F);
          if (counts && term.bin != kBins - 1) bins_.add(term.bin, term.rough);
        }
      });
      all += sums_.of(sum, terms);
    });
    return SampleTeam::add_lanes(all);
  }

  /// The bins in which the rough sum comes near what is needed.
  __device__ __forceinline__ void choose(Word need) {
    const DealtBins bins(team_, [&](int b) { return terms_.count(bins_.sum_low(b, team_.segments()), b); });
    const auto tell = [&](Word& bin, Word target) {
      bins.where(target, [&](int b, Word) { team_.tell(bin, static_cast<Word>(b)); });
    };
    const Word margin = terms_.margin(need);
    tell(shared_.first, need > margin ? need - margin : 0);
    tell(shared_.last, need + margin);
    team_.sync();
  }

  /// What lies above a range, and in it.
  struct Near {
    Word above, inside;     ///< counts, by the warp
    float lowest, highest;  ///< in the range
  };
  /// The elements in [from, past] to the list.
  __device__ __forceinline__ Near collect(float from, float past) const {
    Near found{0, 0, -kNone, kNone};
    part_.for_chunks(false, [&](std::int64_t, const uint4* place) {
      CountSums::Sum above, inside;
      unsigned terms = 0, near = 0;
      Part::for_each_at(place, [&](float x) {
        if (!(x >= from)) return;
        const float term = terms_(x).value;
        if (x > past) {
          sums_.add(above, term);
          ++terms;
          return;
        }
        sums_.add(inside, term);
        ++near;
        found.lowest = fminf(found.lowest, x), found.highest = fmaxf(found.highest, x);
        list_.add(x);
      });
      found.above += sums_.of(above, terms), found.inside += sums_.of(inside, near);
    });
    found.above = SampleTeam::add_lanes(found.above), found.inside = SampleTeam::add_lanes(found.inside);
    return found;
  }
  /// By the first block: where the list, whose elements are in [from, up_to], reaches what is needed of it.
  __device__ __forceinline__ void settle(Word need, float from, float up_to) {
    const auto count = list_.count();
    float reached = fold::canonical_nan<float>();
    if (count.found <= 32) {
      if (threadIdx.x < 32) reached = reach_by_warp(need, count.found);
    } else if (count.fits) {
      reached = list_.with_all([&](auto& select, const FoundElements& all, SampleTeam& alone) {
        Word own = 0;
        for (const float x : all.v) own += count_(x);
        if (need > alone.sum(SampleTeam::add_lanes(own))) return fold::canonical_nan<float>();
        return select.down_to(SampleRange(from, up_to), count_, [&](Word) { return need; });
      });
    }
    if (threadIdx.x == 0) team_.tell(shared_.reached, Word{__float_as_uint(reached)});
  }
  __device__ __forceinline__ float reach_by_warp(Word need, int found) const {
    const float own = lane() < found ? list_.at(lane()) : kNone;
    const Word weight = count_(own);
    Word up_to = 0;
    for (int i = 0; i < found; ++i) {
      const float other = __shfl_sync(lift::kWholeWarp, own, i);
      const Word its = __shfl_sync(lift::kWholeWarp, weight, i);
      if (other >= own) up_to += its;
    }
    const bool reaches = lane() < found && up_to >= need;
    const std::uint32_t key = reaches ? fold::Ranked<float>::of(own, 0).key : 0U;
    const std::uint32_t largest = __reduce_max_sync(lift::kWholeWarp, key);
    return largest == 0 ? fold::canonical_nan<float>() : fold::Ranked<float>{largest, 0}.value();
  }

  SampleTeam& team_;
  Part& part_;
  SampleBins& bins_;
  const SampleList& list_;
  Shared& shared_;
  const TermCount& count_;
  TermBins terms_;
  CountSums sums_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
