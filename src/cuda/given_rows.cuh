// Plain rows whose states are given: what finish_softmax and finish_log_softmax write of them, and the gradients of
// logsumexp. A group of lanes a row, or a warp a chunk; no lane waits for another.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct GivenRows {
  PlainRows rows;
  double scale;
  const char *states, *dlse;
  std::int64_t states_stride, dlse_stride;  ///< bytes between rows
  DType dlse_dtype;

  __device__ __forceinline__ fold::LogSumExp<float>::State state(std::int64_t row) const {
    return given_state<float>(*reinterpret_cast<const StoredState*>(states + row * states_stride), scale);
  }
  __device__ __forceinline__ float gradient(std::int64_t row) const {
    return fold::narrow<float>(element_at<float>(dlse_dtype, dlse + row * dlse_stride));
  }
};

/// What a lane writes of elements that the row's state may not have seen, or far from its frame: one by one.
template <class E, Given kWhat, class Elements>
__device__ __noinline__ void put_given_any(const GivenRows& g, const Elements& tile, std::int64_t row, const char* x,
                                           char* y, int n) {
  const float gradient = kWhat == Given::gradient ? g.gradient(row) : 0.F;
  with_result_of<kWhat>(g.state(row), g.scale, g.rows.empty, gradient, true, [&](const auto& of) {
#pragma unroll 1
    for (int slot = 0; slot < Elements::kVectors * Elements::kWidth; ++slot) {
      const int i = tile.element(slot / Elements::kWidth, slot % Elements::kWidth);
      if (i < n) reinterpret_cast<E*>(y)[i] = fold::narrow<E>(of(true, fold::widen(reinterpret_cast<const E*>(x)[i])));
    }
  });
}

template <class E, int kLanes, Given kWhat>
__global__ void __launch_bounds__(256, sizeof(E) == 4 ? 3 : 4)
    given_rows(const __grid_constant__ GivenRows g, std::int64_t chunks) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Lse = fold::LogSumExp<float>;
  using Elements = Tile<E, kLanes>;
  const PlainRows& p = g.rows;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (item >= p.rows * chunks) return;
  const std::int64_t row = chunks == 1 ? item : item / chunks, begin = (item - row * chunks) * lift::kChunk;
  const int n = static_cast<int>(min(p.n - begin, static_cast<std::int64_t>(lift::kChunk)));
  const char* x = p.x + row * p.x_stride + begin * static_cast<int>(sizeof(E));
  char* y = p.y + row * p.y_stride + begin * static_cast<int>(sizeof(E));
  const Elements tile(x);
  const auto s = g.state(row);
  float v[lift::kPerLane];
  tile.load(v, x, n, p.factor);
  const float c = p.factor.c;
  const lift::Extremes e = lift::extremes_of(v);
  const float top = S::sub(S::fma(c > 0.F ? e.high : e.low, c, fold::Real<float>::kMagic), fold::Real<float>::kMagic);
  // No element is above the frame, and none a NaN. Nor is a result of a gradient, then.
  bool near = Lse::is_regular(s) && Lse::is_fast(s.m) && top <= Lse::narrow(s.m);
  const float gradient = kWhat == Given::gradient ? g.gradient(row) : 0.F, scale = static_cast<float>(g.scale);
  if constexpr (kWhat == Given::gradient)
    near = near && fabsf(gradient) < fold::infinity<float>() && fabsf(scale) < fold::infinity<float>();
  if (!near) return put_given_any<E, kWhat>(g, tile, row, x, y, n);
  const float reciprocal = S::div(1.F, s.d);
  if constexpr (kWhat == Given::log_softmax) {
    finish<true, lift::kPerLane>(
        v, false, 1.F, [&] { return p.log_normaliser(s); }, [](int) {});
    tile.store(y, n, v);
  } else {
    const lift::FrameTerms terms(c, Lse::narrow(s.m));
    const float multiplier = S::mul(reciprocal, terms.unit);
#pragma unroll
    for (float& at : v) {
      const float own = fold::Normaliser<float>::probability(terms.term<true>(at), multiplier);
      at = kWhat == Given::gradient ? S::mul(S::mul(gradient, own), scale) : own;
    }
    tile.store(y, n, v);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
