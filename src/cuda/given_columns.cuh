// Plain rows that lie side by side, of any length, whose states are known: what softmax, log_softmax, finish_softmax
// and finish_log_softmax write of them, and the gradients of logsumexp. A lane has some neighbouring elements of
// neighbouring rows; no lane waits for another.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/softmax_rows.cuh"

#include <utility>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGivenWarps = 8;  ///< of a block
inline constexpr int kGivenRun = 8;    ///< words of a lane that are worked on at once

struct GivenColumns {
  using State = fold::LogSumExp<float>::State;

  const char* x;
  char* y;
  std::int64_t x_axis, x_outer, y_axis, y_outer;  ///< bytes between neighbours
  ColumnItems share;
  double scale;
  fold::Scale<float> factor;  ///< of `scale`
  float two_kappa;            ///< of fold::LogNormaliser
  Empty empty;
  const State* roots;  ///< [outer][inner], that this call has found; null: those of a caller
  const char *states, *dlse;
  std::int64_t states_outer, states_row, dlse_outer, dlse_row;  ///< bytes between neighbours
  DType dlse_dtype;

  /// row: of those side by side, of which there are `inner`.
  __device__ __forceinline__ State state(unsigned outer, std::int64_t row, std::int64_t inner) const {
    if (roots != nullptr) return roots[outer * inner + row];
    const char* at = states + outer * states_outer + row * states_row;
    return given_state<float>(*reinterpret_cast<const StoredState*>(at), scale);
  }
  __device__ __forceinline__ float gradient(unsigned outer, std::int64_t row) const {
    return fold::narrow<float>(element_at<float>(dlse_dtype, dlse + outer * dlse_outer + row * dlse_row));
  }
};

/// What is known of a row, and a result from an element that is not above the row's frame. p: has the row's scale,
/// factor and two_kappa.
template <Given kWhat>
struct GivenColumnRow {
  using S = fold::Scalar<float>;
  using Lse = fold::LogSumExp<float>;

  float top;  ///< the frame; NaN if results are to be found one by one
  float gradient = 0.F, scale;
  lift::FrameTerms terms;
  float multiplier;

  template <class P>
  __device__ __forceinline__ GivenColumnRow(const P& p, const Lse::State& s, float gradient_)
      : top(frame(p, s, gradient_)),
        gradient(gradient_),
        scale(static_cast<float>(p.scale)),
        terms(p.factor.c, top),
        multiplier(S::mul(S::div(1.F, s.d), terms.unit)) {}
  /// Whether no probability of elements of such a range can be below the smallest that is written.
  __device__ __forceinline__ bool is_dense(float low_n, float high_n) const {
    return fminf(low_n, high_n) >= top - 60.F && multiplier >= 0x1p-60F;
  }
  template <bool kDense>
  __device__ __forceinline__ float result(float x) const {
    const float term = terms.term<!kDense>(x);
    const float own = kDense ? S::mul(term, multiplier) : fold::Normaliser<float>::probability(term, multiplier);
    return kWhat == Given::gradient ? S::mul(S::mul(gradient, own), scale) : own;
  }

  template <class P>
  static __device__ __forceinline__ float frame(const P& p, const Lse::State& s, float gradient) {
    const float scale = static_cast<float>(p.scale);
    const bool plain = Lse::is_regular(s) && Lse::is_fast(s.m) && fabsf(gradient) < fold::infinity<float>() &&
                       fabsf(scale) < fold::infinity<float>();
    return plain ? Lse::narrow(s.m) : fold::canonical_nan<float>();
  }
};
template <>
struct GivenColumnRow<Given::log_softmax> {
  using Lse = fold::LogSumExp<float>;

  float top;
  fold::LogNormaliser<float> norm;

  template <class P>
  __device__ __forceinline__ GivenColumnRow(const P& p, const Lse::State& s, float)
      : top(GivenColumnRow<Given::softmax>::frame(p, s, 0.F)), norm(s, p.factor) {
    norm.two_kappa = p.two_kappa;
    norm.fast = true;  // else `top` is NaN, and nobody asks for a result
  }
  /// Whether all log-probabilities are below 0 (as in finish()).
  __device__ __forceinline__ bool is_dense(float, float) const { return norm.half_log2_d > 0.5F; }
  template <bool kDense>
  __device__ __forceinline__ float result(float x) const {
    using S = fold::Scalar<float>;
    return kDense ? S::mul(norm.two_kappa, S::sub(norm.half_distance(x), norm.half_log2_d)) : norm.log_probability(x);
  }
};

/// `there` elements of a row one by one.
template <class E, Given kWhat>
__device__ __noinline__ void put_given_column(const GivenColumns& p, const GivenColumns::State& s, float gradient,
                                              const char* x, char* y, int there) {
  with_result_of<kWhat>(s, p.scale, p.empty, gradient, p.roots == nullptr, [&](const auto& of) {
#pragma unroll 1
    for (int j = 0; j < there; ++j, x += p.x_axis, y += p.y_axis)
      *reinterpret_cast<E*>(y) = fold::narrow<E>(of(true, fold::widen(*reinterpret_cast<const E*>(x))));
  });
}

template <class E, Given kWhat, int kRows>
__global__ void __launch_bounds__(kGivenWarps * 32, 3) given_across_columns(const __grid_constant__ GivenColumns p) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Row = GivenColumnRow<kWhat>;
  constexpr int kSize = static_cast<int>(sizeof(E)), kRun = kGivenRun;
  constexpr float kMagic = fold::Real<float>::kMagic;
  const SpanPlace at(p.share, kGivenWarps, p.roots != nullptr);
  if (at.there == 0) return;
  const std::int64_t first = std::int64_t{at.column} * kRows, inner = std::int64_t{p.share.across} * kRows;
  const char* x = p.x + at.outer * p.x_outer + at.begin * p.x_axis + first * kSize;
  char* y = p.y + at.outer * p.y_outer + at.begin * p.y_axis + first * kSize;
  const auto state = [&](int row) { return p.state(at.outer, first + row, inner); };
  const auto gradient = [&](int row) { return kWhat == Given::gradient ? p.gradient(at.outer, first + row) : 0.F; };
  const auto n_of = [&](float x) { return S::sub(S::fma(x, p.factor.c, kMagic), kMagic); };
  const auto load = [&](Word(&raw)[kRun], int begin) {
    const char* from = x + begin * p.x_axis;
#pragma unroll
    for (int j = 0; j < kRun; ++j, from += p.x_axis)
      if (begin + j < at.there) raw[j] = *reinterpret_cast<const Word*>(from);
  };
  const auto write_run = [&](const Row(&rows)[kRows], const Word(&raw)[kRun], int begin) {
    const int there = min(at.there - begin, kRun);
    char* to = y + begin * p.y_axis;
    bool near = true;  // no element is above its row's frame, and none a NaN
    bool dense = there == kRun;
    AcrossRange<E, kRows> range(raw[0]);
#pragma unroll
    for (int j = 0; j < kRun; j += 2) {
      if (j >= there) continue;
      Word other = raw[j];
      if (j + 1 < there) other = raw[j + 1];
      range.add(raw[j], other);
    }
    range.finish();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float low = n_of(range.low[row]), high = n_of(range.high[row]);
      near = near && low <= rows[row].top && high <= rows[row].top;
      dense = dense && rows[row].is_dense(low, high);
    }
    if (!near) {
#pragma unroll 1
      for (int row = 0; row < kRows; ++row)
        put_given_column<E, kWhat>(p, state(row), gradient(row), x + begin * p.x_axis + row * kSize, to + row * kSize,
                                   there);
      return;
    }
    const auto write = [&]<bool kDense>() {  // kDense: all words are there
#pragma unroll
      for (int j = 0; j < kRun; ++j, to += p.y_axis) {
        if (!kDense && j >= there) continue;
        float v[kRows];
        Words::unpack(raw[j], v);
#pragma unroll
        for (int row = 0; row < kRows; ++row) v[row] = rows[row].template result<kDense>(v[row]);
        *reinterpret_cast<Word*>(to) = Words::pack(v);
      }
    };
    dense ? write.template operator()<true>() : write.template operator()<false>();
  };
  const auto write_rows = [&](const Row(&rows)[kRows]) {
    Word raw[kRun], next[kRun];
    load(raw, 0);
#pragma unroll 1
    for (int begin = 0; begin < at.there; begin += kRun) {
      load(next, begin + kRun);  // on its way while this run is worked on
      write_run(rows, raw, begin);
#pragma unroll
      for (int j = 0; j < kRun; ++j) raw[j] = next[j];
    }
  };
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    const Row rows[] = {Row(p, state(kRow), gradient(kRow))...};
    write_rows(rows);
  }
  (std::make_integer_sequence<int, kRows>{});
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
