// Rows (up to 1024; small_blocks.cuh has longer ones) that are so few that a launch takes longer than their bytes, or
// so short that what is done once a row takes longer: lanes have few elements each, one at a time, straight from memory
// to registers and back, and what there is to know of a problem is a few words.
#pragma once

#include "cuda/backward.cuh"
#include "cuda/divisor.hpp"
#include "cuda/in_order.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/softmax_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kSmallThreads = 128;  ///< of a block: a warp for each of a processor's schedulers

/// An operand along two outer axes and the folded one, strides in bytes; data null: not given.
struct SmallOperand {
  char* data;
  std::int64_t outer, inner, axis;
  DType dtype;
};

/// What most problems ask stands together: constants that are new to a processor take long to come.
struct SmallRows {
  int rows, n;
  Divisor inner;  ///< rows along the inner one of two outer axes
  bool causal;
  Empty empty;
  lift::Factor factor;  ///< of scale.c
  float two_kappa, gradient_scale;
  SmallOperand x, y, dy, mask, length;
  fold::Scale<float> scale;

  /// How a row's log-probabilities are found.
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser(const fold::LogSumExp<float>::State& row,
                                                                       bool near = false) const {
    fold::LogNormaliser<float> norm(row, scale, near);
    norm.set_c(factor.c);
    norm.two_kappa = two_kappa;
    return norm;
  }
};

/// Elements of any dtypes and strides, of which some may be hidden.
struct AnyAccess {
  static constexpr bool kAny = true;
};
/// All of them E, those of a row side by side, rows one stride apart, nothing hidden: a fifth less time.
template <class E_>
struct PlainAccess {
  using E = E_;
  static constexpr bool kAny = false;
};

/// A group of lanes and the row that it has: the last one for those without a row of their own, which write nothing.
/// Elements lie in the layout of lift::WarpFold of width 1.
template <class Access, int kLanes, int kCount>
struct SmallRow {
  using Words = unsigned[kCount];
  static constexpr bool kAny = Access::kAny;

  unsigned outer = 0, inner;
  int lane, n, length;
  bool writes;

  /// The row of the thread's group.
  __device__ __forceinline__ explicit SmallRow(const SmallRows& p)
      : SmallRow(p, (blockIdx.x * kSmallThreads + threadIdx.x) / kLanes, static_cast<int>(threadIdx.x) % kLanes) {}
  /// A row by its number, of which the lane has the elements `first`, first + kLanes, ...
  __device__ __forceinline__ SmallRow(const SmallRows& p, unsigned row, int first) : lane(first), n(p.n), length(p.n) {
    writes = row < static_cast<unsigned>(p.rows);
    inner = min(row, static_cast<unsigned>(p.rows) - 1);
    if constexpr (kAny) {
      outer = p.inner.quotient(inner), inner -= outer * p.inner.value;
      if (p.length.data != nullptr) length = static_cast<int>(clamp(integer_at(p.length.dtype, of(p.length)), n));
      if (p.causal) length = max(0, min(length, static_cast<int>(inner) + 1 + n - static_cast<int>(p.inner.value)));
    }
  }
  /// The elements in front of `length`, as they are in memory.
  __device__ __forceinline__ void fetch(Words& words, const SmallOperand& o) const {
    with_elements([&]<class E>() { fetch_bits<E>(words, o); }, o.dtype);
  }
  __device__ __forceinline__ void widen(float (&v)[kCount], const Words& words, DType t) const {
    with_elements(
        [&]<class E>() {
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            if constexpr (sizeof(E) == 4) {
              v[j] = __uint_as_float(words[j]);
            } else {
              const auto bits = static_cast<std::uint16_t>(words[j]);
              v[j] = fold::widen(fold::bits_as<E>(bits));
            }
          }
        },
        t);
  }
  /// Which of the lane's elements exist, a bit each.
  __device__ __forceinline__ unsigned shown(const SmallOperand& mask) const {
    if (!kAny || mask.data == nullptr) {
      const int own = max(length - lane + kLanes - 1, 0) / kLanes;
      return own == 0 ? 0U : lift::kWholeWarp >> (32 - min(own, kCount));
    }
    unsigned bits = 0;
    Words bytes;
    fetch_bits<unsigned char>(bytes, mask);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (bytes[j] != 0) bits |= 1U << j;
    return bits;
  }
  /// kNan: there may be one among them.
  template <bool kNan>
  __device__ __forceinline__ void store(const SmallOperand& y, const float (&v)[kCount]) const {
    if (!writes) return;
    with_elements(
        [&]<class E>() {
          const std::int64_t step = axis_of<E>(y);
          char* at = of(y) + lane * step;
#pragma unroll
          for (int j = 0; j < kCount; ++j, at += kLanes * step)
            if (lane + kLanes * j < n)
              *reinterpret_cast<E*>(at) = kNan ? fold::narrow<E>(v[j]) : Packed<E>::narrow(v[j]);
        },
        y.dtype);
  }

 private:
  template <class Go>
  static __device__ __forceinline__ void with_elements(const Go& go, DType t) {
    if constexpr (!kAny) {
      go.template operator()<typename Access::E>();
    } else if (t == DType::float32) {
      go.template operator()<float>();
    } else if (t == DType::bfloat16) {
      go.template operator()<fold::BFloat16>();
    } else {
      go.template operator()<fold::Float16>();
    }
  }
  /// Where the row lies in an operand.
  __device__ __forceinline__ char* of(const SmallOperand& o) const {
    char* at = o.data + static_cast<std::int64_t>(inner) * o.inner;
    return kAny ? at + static_cast<std::int64_t>(outer) * o.outer : at;
  }
  template <class E>
  static __device__ __forceinline__ std::int64_t axis_of(const SmallOperand& o) {
    return kAny ? o.axis : static_cast<std::int64_t>(sizeof(E));
  }
  template <class E>
  __device__ __forceinline__ void fetch_bits(Words& words, const SmallOperand& o) const {
    using Bits = std::conditional_t<sizeof(E) == 4, unsigned, std::conditional_t<sizeof(E) == 2, unsigned short, E>>;
    if constexpr (!kAny) {
      // Without questions, of which only a few can be kept at a time: behind the end the last element once more.
      const Bits* const first = reinterpret_cast<const Bits*>(of(o));
#pragma unroll
      for (int j = 0; j < kCount; ++j) words[j] = first[min(lane + kLanes * j, n - 1)];
    } else {
      const char* at = of(o) + lane * o.axis;
#pragma unroll
      for (int j = 0; j < kCount; ++j, at += kLanes * o.axis)
        words[j] = lane + kLanes * j < length ? *reinterpret_cast<const Bits*>(at) : 0U;
    }
  }
};

/// A lane's elements of any values, and any scale, as they are folded; nothing where one is hidden, or behind the end.
template <class Access, int kLanes, int kCount>
struct ScaledElements {
  using Row = SmallRow<Access, kLanes, kCount>;
  unsigned shown;
  float v[kCount];

  __device__ __forceinline__ ScaledElements(const Row& row, const SmallOperand& of, const SmallOperand& mask,
                                            const lift::Factor& factor)
      : shown(row.shown(mask)) {
    typename Row::Words words;
    row.fetch(words, of);
    row.widen(v, words, of.dtype);
    const float times = factor.plain ? 1.F : factor.times;
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] = (shown >> j & 1U) != 0 ? v[j] * times : lift::absent(factor.c);
  }
};

/// A row of such elements.
template <class Access, int kLanes, int kCount, bool kLog>
struct AnySmallRow : ScaledElements<Access, kLanes, kCount> {
  using Elements = ScaledElements<Access, kLanes, kCount>;
  using Row = typename Elements::Row;
  using Fold = lift::WarpFold<1, kLanes, kCount>;
  using State = fold::LogSumExp<float>::State;
  using Elements::shown, Elements::v;

  Row row;
  typename Fold::Folded folded;

  /// By all lanes of a warp.
  __device__ __forceinline__ AnySmallRow(const SmallRows& p, const Row& row_)
      : Elements(row_, p.x, p.mask, p.factor), row(row_) {
    folded = kLog ? Fold::reduce(v, p.factor.c) : Fold::terms(v, p.factor.c);
  }
  /// The results of a row of this state.
  __device__ __forceinline__ void put(const SmallRows& p, const State& whole) {
    const fold::Normaliser<float> norm(whole);
    if (norm.regular) {
      const float multiplier = fold::Scalar<float>::mul(norm.multiplier(folded.state.m), folded.unit);
      finish<kLog>(v, folded.dense, p.factor, multiplier, whole, p.scale);
    } else {
      const Constant constant = constant_of<kLog>(whole, p.empty);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        v[j] = constant.everywhere || (shown >> j & 1U) != 0 ? constant.value : nothing<kLog>();
    }
    row.template store<true>(p.y, v);
  }
};

/// Rows of which one holds elements far apart, +inf or NaN, or has nothing where that is to become NaN; any scale. By
/// all lanes of a warp.
template <class Access, int kLanes, int kCount, bool kLog>
__device__ __noinline__ void put_any_small_rows(const SmallRows& p) {
  AnySmallRow<Access, kLanes, kCount, kLog> own(p, SmallRow<Access, kLanes, kCount>(p));
  own.put(p, own.folded.state);
}

/// A lane's elements in a row's order, those of softmax and log_softmax: c is positive from here on, what is hidden
/// -inf, and an element that is -inf as good as hidden.
template <class Access, int kLanes, int kCount>
struct ShownElements {
  using Row = SmallRow<Access, kLanes, kCount>;

  float v[kCount], c;
  lift::Extremes extremes{fold::infinity<float>(), -fold::infinity<float>()};  ///< of those that are not -inf

  __device__ __forceinline__ ShownElements(const SmallRows& p, const Row& row) : c(fabsf(p.factor.c)) {
    typename Row::Words words;
    row.fetch(words, p.x);
    const unsigned shown = row.shown(p.mask);
    row.widen(v, words, p.x.dtype);
    const float sign = p.factor.c < 0.F ? -1.F : 1.F;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      v[j] = (shown >> j & 1U) != 0 ? v[j] * sign : -fold::infinity<float>();
      extremes.low = lift::least(extremes.low, v[j] == -fold::infinity<float>() ? fold::infinity<float>() : v[j]);
      extremes.high = lift::most(extremes.high, v[j]);
    }
  }
  /// The row's normaliser.
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser(
      const SmallRows& p, const fold::LogSumExp<float>::State& state) const {
    auto norm = p.log_normaliser(state, true);
    norm.set_c(c);
    return norm;
  }
};

/// The state of a row that holds elements far apart, +inf or NaN, or nothing; any scale. By all lanes of a warp.
template <class Access, int kLanes, int kCount>
__device__ __noinline__ fold::LogSumExp<float>::State any_state_of_small_row(
    const SmallRows& p, const SmallRow<Access, kLanes, kCount>& row) {
  return AnySmallRow<Access, kLanes, kCount, true>(p, row).folded.state;
}
/// The same of any row.
template <class Access, int kLanes, int kCount>
__device__ __forceinline__ fold::LogSumExp<float>::State state_of_small_row(
    const SmallRows& p, const SmallRow<Access, kLanes, kCount>& row) {
  using S = fold::Scalar<float>;
  const ShownElements<Access, kLanes, kCount> own(p, row);
  const auto range = MaskedFold<lift::WarpFold<1, kLanes, kCount>, true, kLanes, kCount>::range(own.c, own.extremes);
  if (!__all_sync(lift::kWholeWarp, p.factor.plain && range.near)) return any_state_of_small_row(p, row);
  const float m = S::sub(range.top, fold::Real<float>::kMagic);
  const lift::FrameTerms terms(own.c, m);
  const float d = lift::add_tree<1, kLanes, float, kCount>([&](int j, int) { return terms.half_term(own.v[j]); });
  return {static_cast<double>(m), S::mul(d, 2.F * terms.unit)};
}

template <class Access, int kLanes, int kCount, bool kLog>
__global__ void __launch_bounds__(kSmallThreads) softmax_small_rows(const __grid_constant__ SmallRows p) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Fold = lift::WarpFold<1, kLanes, kCount>;
  using Row = SmallRow<Access, kLanes, kCount>;
  const Row row(p);
  ShownElements<Access, kLanes, kCount> own(p, row);
  auto& v = own.v;
  const auto range = MaskedFold<Fold, kLog, kLanes, kCount>::range(own.c, own.extremes);
  const bool hidden = range.none && p.empty == Empty::zero;  // all of it
  if (!__all_sync(lift::kWholeWarp, p.factor.plain && (range.near || hidden)))
    return put_any_small_rows<Access, kLanes, kCount, kLog>(p);
  const float m = S::sub(range.top, fold::Real<float>::kMagic);
  const lift::FrameTerms terms(own.c, m);
  const float unit = 2.F * terms.unit;
  const float d = lift::add_tree<1, kLanes, float, kCount>([&](int j, int) {
    const float t = terms.half_term(v[j]);
    if (!kLog) v[j] = t;
    return t;
  });
  // A row that is hidden is nothing times any state.
  const fold::LogSumExp<float>::State state{static_cast<double>(m), hidden ? 1.F : S::mul(d, unit)};
  finish<kLog, kCount>(
      v, true, S::mul(reciprocal_of_normal(state.d), unit), [&] { return own.log_normaliser(p, state); }, [](int) {});
  row.template store<false>(p.y, v);
}

/// A lane's y (p.x) and dy.
template <class Row, class Slots>
__device__ __forceinline__ void load_gradients(const SmallRows& p, const Row& row, Slots& slots) {
  typename Row::Words y, dy;
  row.fetch(y, p.x), row.fetch(dy, p.dy);
  slots.present = row.shown(p.mask);
  row.widen(slots.y, y, p.x.dtype), row.widen(slots.dy, dy, p.dy.dtype);
  slots.hide();
}

/// The gradients of softmax or log_softmax.
template <class Access, int kLanes, int kCount, template <class> class Gradient>
__global__ void __launch_bounds__(kSmallThreads) backward_small_rows(const __grid_constant__ SmallRows p) {
  begin_in_order();
  const SmallRow<Access, kLanes, kCount> row(p);
  GradientSlots<Gradient, 1, kLanes, kCount> slots;
  load_gradients(p, row, slots);
  lift::SumNode sum = slots.sum();
  sum.any = __ballot_sync(lift::kWholeWarp, sum.any != 0) & lift::lanes_of_group<kLanes>();
  slots.finish(sum, p.gradient_scale);
  row.template store<true>(p.y, slots.dy);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
