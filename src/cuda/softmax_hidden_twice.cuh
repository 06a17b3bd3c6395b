// softmax and log_softmax of rows that lie side by side and of which something is hidden, of any length, from their
// states: as given_across_columns.
#pragma once

#include "cuda/given_columns.cuh"
#include "cuda/hidden_columns.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct GivenHidden {
  const char* x;
  char* y;
  std::int64_t x_axis, x_outer, y_axis, y_outer;  ///< bytes between neighbours
  ColumnItems share;
  HiddenColumns hidden;
  Empty empty;
  const fold::LogSumExp<float>::State* roots;  ///< [outer][inner]
};

/// As GivenColumnRow takes it.
struct HiddenScale {
  double scale;
  fold::Scale<float> factor;
  float two_kappa;

  __device__ __forceinline__ HiddenScale(const HiddenColumns& h, unsigned outer, std::int64_t row)
      : scale(h.scale_of(outer, row)),
        factor(fold::make_scale<float>(scale)),
        two_kappa(fold::LogNormaliser<float>::two_kappa_of(factor)) {}
};

/// `there` elements of a row one by one.
template <class E, class Y, Given kWhat>
__device__ __noinline__ void put_hidden_column(const GivenHidden& p, const fold::LogSumExp<float>::State& s,
                                               double scale, const ShownOfOne& shown, const char* x, char* y,
                                               int there) {
  with_result_of<kWhat>(s, scale, p.empty, 0.F, false, [&](const auto& of) {
#pragma unroll 1
    for (int j = 0; j < there; ++j, x += p.x_axis, y += p.y_axis)
      *reinterpret_cast<Y*>(y) = fold::narrow<Y>(of(shown(j), fold::widen(*reinterpret_cast<const E*>(x))));
  });
}

template <class E, class Y, Given kWhat, int kRows>
__global__ void __launch_bounds__(kGivenWarps * 32, 2) given_across_hidden(const __grid_constant__ GivenHidden p) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Row = GivenColumnRow<kWhat>;
  using Shown = ShownColumn<kRows, kGivenRun>;
  constexpr bool kLog = kWhat == Given::log_softmax;
  constexpr int kSize = static_cast<int>(sizeof(E)), kSizeY = static_cast<int>(sizeof(Y)), kRun = kGivenRun;
  constexpr float kMagic = fold::Real<float>::kMagic;
  const SpanPlace at(p.share, kGivenWarps, true);
  if (at.there == 0) return;
  const std::int64_t first = std::int64_t{at.column} * kRows, inner = std::int64_t{p.share.across} * kRows;
  const char* x = p.x + at.outer * p.x_outer + at.begin * p.x_axis + first * kSize;
  char* y = p.y + at.outer * p.y_outer + at.begin * p.y_axis + first * kSizeY;
  const HiddenWord<kRows> word(p.hidden, at.outer, at.column, at.begin);
  const auto state = [&](int row) { return p.roots[at.outer * inner + first + row]; };
  const auto load = [&](Word(&raw)[kRun], int begin) {
    return word.template run<kRun>(begin, 0, at.there - begin, [&](int reach) {
      const char* from = x + begin * p.x_axis;
#pragma unroll
      for (int j = 0; j < kRun; ++j, from += p.x_axis) {
        raw[j] = Word{};
        if (j < reach) raw[j] = *reinterpret_cast<const Word*>(from);
      }
    });
  };
  bool all_nan = false;  // whether rows without elements are among these, and are to be that
  const auto write_run = [&](const Row(&rows)[kRows], const float(&c)[kRows], const Word(&raw)[kRun],
                             const Shown& shown, int begin) {
    const int there = min(at.there - begin, kRun);
    char* to = y + begin * p.y_axis;
    // No shown element is above its row's frame, and none a NaN, nor is any row's state special that has some.
    bool near = !all_nan;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      float v[kRows];
      Words::unpack(raw[j], v);
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        near = near && (!shown(row, j) || S::sub(S::fma(v[row], c[row], kMagic), kMagic) <= rows[row].top);
    }
    if (!near) {
#pragma unroll 1
      for (int row = 0; row < kRows; ++row) {
        const ShownOfOne alone(p.hidden, at.outer, first + row, at.begin + begin);
        put_hidden_column<E, Y, kWhat>(p, state(row), p.hidden.scale_of(at.outer, first + row), alone,
                                       x + begin * p.x_axis + row * kSize, to + row * kSizeY, there);
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j, to += p.y_axis) {
      if (j >= there) continue;
      float v[kRows];
      Words::unpack(raw[j], v);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float own = rows[row].template result<false>(v[row]);
        v[row] = shown(row, j) ? own : nothing<kLog>();
      }
      *reinterpret_cast<typename AcrossWord<Y, kRows>::Word*>(to) = AcrossWord<Y, kRows>::pack(v);
    }
  };
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    const HiddenScale scales[] = {HiddenScale(p.hidden, at.outer, first + kRow)...};
    const Row rows[] = {Row(scales[kRow], state(kRow), 0.F)...};
    float c[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      c[row] = scales[row].factor.c;
      all_nan = all_nan || (p.empty == Empty::nan && state(row).m == -fold::infinity<double>());
    }
    Word raw[kRun], next[kRun];
    Shown shown = load(raw, 0);
#pragma unroll 1
    for (int begin = 0; begin < at.there; begin += kRun) {
      const Shown next_shown = load(next, begin + kRun);  // on its way while this run is worked on
      write_run(rows, c, raw, shown, begin);
      shown = next_shown;
#pragma unroll
      for (int j = 0; j < kRun; ++j) raw[j] = next[j];
    }
  }
  (std::make_integer_sequence<int, kRows>{});
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
