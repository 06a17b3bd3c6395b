// A tile of a row of float64: elements of 8 bytes one at a time, neighbours by neighbouring lanes, so that rows may
// begin anywhere. What is asked of a row once and hardly ever, the general kernels' functions answer.
#pragma once

#include "cuda/any_elements.cuh"
#include "cuda/double_terms.cuh"
#include "cuda/generic.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Results that lanes find one by one: elements first, first + step, ... of a row of p. given: as of SoftmaxOf.
template <bool kLog>
__device__ __noinline__ void write_one_by_one(const RowProblem& p, Share share, fold::LogSumExp<double>::State row,
                                              bool given) {
  const Row r = row_at(p, RowPlace(p, share.row));
  write_share<double>(p, r, share, SoftmaxOf<double, kLog>(row, r.scale, p.empty, given));
}

/// Where a row's results go.
struct DoubleResults {
  std::int64_t row;
  char* y;
  double scale;
};

/// A warp's part of a row whose chunks warps have.
struct ChunkOfRow {
  int chunk;
  std::int64_t begin;
  int n, length;
  __device__ __forceinline__ ChunkOfRow(const Row& r, std::int64_t chunk_)
      : chunk(static_cast<int>(chunk_)),
        begin(chunk_ * lift::kChunk),
        n(static_cast<int>(clamp(r.n - begin, lift::kChunk))),
        length(static_cast<int>(clamp(r.length - begin, lift::kChunk))) {}
};

/// Up to kLanes * kCount elements of a row, in the layout of AnyElements.
template <int kLanes_, int kCount_>
struct DoubleElements : AnyElements<kLanes_, kCount_, 1> {
  using Base = AnyElements<kLanes_, kCount_, 1>;
  using Base::Base, Base::kLanes, Base::kCount, Base::lane, Base::present;
  using Lse = fold::LogSumExp<double>;
  using State = typename Lse::State;
  static constexpr int kMinBlocks = kCount > 16 ? 2 : 3;  ///< that a processor has registers for

  double v[kCount];  ///< elements; terms once they are folded, of log_softmax only where powers of two do not fit
  bool kept = true;  ///< whether log_softmax has its elements still

  /// Of elements [begin, begin + length) those that the mask shows.
  __device__ __forceinline__ void load(const RowProblem& p, const Row& r, std::int64_t begin, int length) {
    const std::int64_t stride = p[Slot::x].axis_stride;
    fetch(v, r.x + begin * stride, stride, length);
    Base::look(p, r, begin, length);
    kept = true;
  }
  __device__ __forceinline__ void fetch(double (&to)[kCount], const char* first, std::int64_t stride, int n) const {
    if (n == kLanes * kCount && stride == 8) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) to[j] = reinterpret_cast<const double*>(first)[lane + kLanes * j];
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int i = lane + kLanes * j;
        to[j] = i < n ? *reinterpret_cast<const double*>(first + i * stride) : 0.;
      }
    }
  }

  /// The n elements at `from` in shared memory; 0, but only once they are all there.
  __device__ __forceinline__ int take(const double* from, int n) {
    const int own = (n - lane + kLanes - 1) / kLanes;  // are these of this lane's slots
    present.words[0] = own >= kCount ? Base::kAll : (1U << own) - 1U;
    unsigned all = 0;
    each([&](int i) { return present(i) ? from[lane + kLanes * i] : 0.; });
#pragma unroll
    for (int i = 0; i < kCount; ++i) all |= static_cast<unsigned>(__double2loint(v[i]));
    return static_cast<int>(all & threadIdx.y);  // of which the compiler does not know that it is 0
  }

  /// The state of these elements. They are brought to |factor.c|. kLog: they stay; else they become terms.
  template <bool kLog>
  __device__ __forceinline__ State fold(const RowFactor<double>& factor) {
    bring_to(factor);
    const double c = ::fabs(factor.c);
    int top;
    if (!powers_fit(c, top)) return fold_far<kLog>(c);
    const double sum = add_lanes(tree_of_terms<kLog>(c, top));
    return top == PowerOfTwo::kLowest ? Lse::identity()
                                      : State{static_cast<double>(top) / fold::Real<double>::kUnit, sum};
  }
  /// The same in the frame of their row, by all lanes of a warp. False: results are to be found one by one, as powers
  /// of two do not fit, or an element lies above that frame.
  template <bool kLog>
  __device__ __forceinline__ bool fold_in(const RowFactor<double>& factor, double frame) {
    bring_to(factor);
    const double c = ::fabs(factor.c), n = frame * fold::Real<double>::kUnit;
    int top;
    if (!powers_fit(c, top)) return false;
    const bool covered = ::fabs(n) < 0x1p30 && top <= n;
    if (!kLog) tree_of_terms<false>(c, covered ? static_cast<int>(n) : top);
    return covered;
  }

  /// Elements [begin, begin + n) of a row's results. frame: of the terms.
  template <bool kLog>
  __device__ __forceinline__ void write(const RowProblem& p, const DoubleResults& to, std::int64_t begin, int n,
                                        const State& row, double frame, bool given = false) {
    const fold::Normaliser<double> norm(row);
    // Terms of the wide split are not bounded by their frame: see Normaliser::multiplier.
    const bool serves = Lse::is_fast(row.m) ? !kLog || kept : !kLog && row.m == frame;
    if (!norm.regular || !serves) return write_one_by_one<kLog>(p, share(to.row, begin), row, given);
    if (kLog) {
      to_log_probabilities(row, to.scale);
    } else {
      to_probabilities(norm.multiplier(frame));
    }
    put_all(p, to.y, begin, n, v);
  }
  /// The same of logsumexp's gradients, in a regular row in whose frame the terms are.
  __device__ __forceinline__ void write_gradients(const RowProblem& p, const DoubleResults& to, std::int64_t begin,
                                                  int n, const State& row, double dlse) {
    using S = fold::Scalar<double>;
    to_probabilities(fold::Normaliser<double>(row).multiplier(row.m));
    each([&](int i) { return fold::canonical(S::mul(S::mul(dlse, v[i]), to.scale)); });
    if (present.words[0] != Base::kAll) each([&](int i) { return present(i) ? v[i] : 0.; });
    put_all(p, to.y, begin, n, v);
  }
  __device__ __forceinline__ Share share(std::int64_t row, std::int64_t begin) const {
    return {row, begin + lane, kLanes, kCount};
  }
  /// Turns the array of results where they are not float64 side by side.
  __device__ __forceinline__ void put_all(const RowProblem& p, char* y, std::int64_t begin, int n,
                                          double (&results)[kCount]) const {
    const Operand& o = p[Slot::y];
    char* first = y + begin * o.axis_stride;
    if (o.dtype == DType::float64 && o.axis_stride == 8) {
      auto* to = reinterpret_cast<double*>(first) + lane;
      if (n == kLanes * kCount) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) to[kLanes * j] = results[j];
      } else {
#pragma unroll
        for (int j = 0; j < kCount; ++j)
          if (lane + kLanes * j < n) to[kLanes * j] = results[j];
      }
      return;
    }
#pragma unroll 1
    for (int i = lane; i < n; i += kLanes) {
      put(o.dtype, first + i * o.axis_stride, results[0]);
#pragma unroll
      for (int j = 0; j + 1 < kCount; ++j) results[j] = results[j + 1];
    }
  }
  static __device__ __forceinline__ double add_lanes(double sum) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum = fold::Scalar<double>::add(sum, shuffle(sum, distance));
    return sum;
  }

 private:
  template <class Of>
  __device__ __forceinline__ void each(const Of& of) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = of(i);
  }
  /// Elements to |factor.c|; -inf where none is.
  __device__ __forceinline__ void bring_to(const RowFactor<double>& factor) {
    if (factor.times != 1.) each([&](int i) { return factor(v[i]); });
    if (factor.c < 0.) each([&](int i) { return -v[i]; });
    if (present.words[0] != Base::kAll) each([&](int i) { return present(i) ? v[i] : -fold::infinity<double>(); });
  }
  __device__ __forceinline__ void to_probabilities(double multiplier) {
    each([&](int i) {
      constexpr int least = (1023 - 1020) << 20;  // kSmallest's upper half, whose lower half is 0
      static_assert(fold::Real<double>::kSmallest == 0x1p-1020);
      const double y = fold::Scalar<double>::mul(v[i], multiplier);
      const int written = __double2hiint(y) >= least ? -1 : 0;
      return __hiloint2double(__double2hiint(y) & written, __double2loint(y) & written);
    });
  }
  /// Whether all of the lane's elements are -inf.
  __device__ __forceinline__ bool none() const {
    bool none = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) none &= v[i] == -fold::infinity<double>();
    return none;
  }
  /// Whether powers of two of the warp's elements are all integers of 32 bits, or lie below; top: the largest of the
  /// group's, kLowest of one without a number: -inf alone.
  __device__ __forceinline__ bool powers_fit(double c, int& top) const {
    int highest = 0;
    unsigned twice = 0;  // the largest upper half without its sign: of a NaN, whatever that is
    top = PowerOfTwo::kLowest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const PowerOfTwo power(v[i], c);
      top = max(top, power.fits < PowerOfTwo::kFits ? PowerOfTwo::kLowest : power.n());
      highest = max(highest, power.fits);
      twice = max(twice, 2U * static_cast<unsigned>(__double2hiint(power.t)));
      // Some at a time: or all of them are found first, as many numbers again as there are elements, and spilled.
      if (i % 4 == 3)
        c = __hiloint2double(__double2hiint(c), __double2loint(c) | (top & static_cast<int>(threadIdx.y)));
    }
    if constexpr (kLanes == 32) {
      top = __reduce_max_sync(lift::kWholeWarp, top);
    } else {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) top = max(top, shuffle(top, distance));
    }
    const bool fit = highest <= PowerOfTwo::kFits && twice <= 2U * 0x7FF00000U && (top > PowerOfTwo::kLowest || none());
    return __all_sync(lift::kWholeWarp, fit) != 0;
  }

  /// A lane's terms, in the frame 2^top, and their sum.
  template <bool kLog>
  __device__ __forceinline__ double tree_of_terms(double c, int top) {
    constexpr int kWide = kCount < 4 ? kCount : 4, kApart = kCount / kWide;
    const int floor = top + static_cast<int>(fold::Real<double>::kFlush);
    asm volatile("" : "+d"(c));  // or what powers_fit() found of each element is kept, and spilled
    return sum_tree<kApart>([&](int i) {
      const auto terms = terms_of<kWide>([&](int k) { return v[i + k * kApart]; }, c, top, floor);
#pragma unroll
      for (int k = 0; k < kWide; ++k)
        if (!kLog) v[i + k * kApart] = terms.of[k];
      return sum_tree<kWide>([&](int k) { return terms.of[k]; });
    });
  }

  /// Elements that are anything; they become terms, but for kLog where none is a number. By loops that turn the
  /// register array by one place a step, as terms_in_frame() has it.
  template <bool kLog>
  __device__ __forceinline__ State fold_far(double c) {
    const double top = largest();
    kept = top == -fold::infinity<double>();
    const auto frame = Lse::frame(::fabs(top) < fold::infinity<double>() ? top : 0., c);
    if (!kept || !kLog)
      turn([&](double x) {
        if (::fabs(x) == fold::infinity<double>()) return 0.;
        return frame.fast ? fold::term<fold::Scalar<double>>(x, c, Lse::narrow(frame.m))
                          : fold::term_wide(x, c, frame.m);
      });
    const double sum = add_lanes(sum_tree<kCount>([&](int i) { return v[i]; }));
    if (fold::is_nan(top)) return Lse::not_a_number();
    if (top == fold::infinity<double>()) return Lse::plus_infinity();
    return kept ? Lse::identity() : State{frame.m, sum};
  }
  template <class Of>
  __device__ __forceinline__ void turn(const Of& of) {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const double last = of(v[0]);
#pragma unroll
      for (int j = 0; j + 1 < kCount; ++j) v[j] = v[j + 1];
      v[kCount - 1] = last;
    }
  }
  /// NaN if one is among the elements.
  __device__ __forceinline__ double largest() {
    double top = -fold::infinity<double>();
    const auto take = [&](double x) {
      if (x > top || fold::is_nan(x)) top = x;
    };
    turn([&](double x) {
      take(x);
      return x;
    });
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) take(shuffle(top, distance));
    return top;
  }

  __device__ __forceinline__ void to_log_probabilities(const State& row, double scale) {
    using S = fold::Scalar<double>;
    fold::LogNormaliser<double> log(row, fold::make_scale<double>(scale));
    log.set_c(::fabs(RowFactor<double>(scale).c));
    log.fast = true;  // which is no news but to the compiler
    // The largest has t - m <= 1/2: where log2 d is above 1 all results are below 0.
    if (log.half_log2_d > 0.5) {
      each([&](int i) { return S::mul(log.two_kappa, S::sub(log.half_distance(v[i]), log.half_log2_d)); });
    } else {
      each([&](int i) { return log.log_probability(v[i]); });
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
