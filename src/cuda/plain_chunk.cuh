// A chunk of a plain problem, a warp each, once its row is known: where it lies, and the probabilities of its elements.
#pragma once

#include "cuda/rows.cuh"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a row of a plain problem lies in its operands: RowPlace in fewer steps.
struct PlainPlace {
  std::int64_t row;

  template <class Problem>
  __device__ __forceinline__ PlainPlace(const Problem& p, std::int64_t index) : row(p.outer_rank == 0 ? 0 : index) {}
  template <class Operand_>
  __device__ __forceinline__ std::int64_t offset(const Operand_& o) const {
    return row * o.strides[0];
  }
};
__device__ __forceinline__ Row row_at(const RowProblem& p, const PlainPlace& place) {
  return {p[Slot::x].data + place.offset(p[Slot::x]), nullptr, nullptr, p.n, p.n, p.scale, 0};
}

/// A chunk of a plain problem, a warp each.
template <class E>
struct PlainChunk {
  std::int64_t row, begin;
  int n;

  __device__ __forceinline__ PlainChunk(const RowProblem& p, std::int64_t item, std::int64_t chunks) {
    row = quotient(item, chunks);
    begin = (item - row * chunks) * lift::kChunk;
    n = static_cast<int>(clamp(p.n - begin, lift::kChunk));
  }
  __device__ __forceinline__ char* in(const RowProblem& p, const Operand& o) const {
    return o.data + (p.outer_rank == 0 ? 0 : row * o.strides[0]) + begin * static_cast<std::int64_t>(sizeof(E));
  }
};

/// The probabilities of a row in the fast range. In an even frame the low bits of z are the exponent, as in
/// lift::FrameTerms.
struct PlainProbability {
  float magic, lowest, multiplier;

  __device__ __forceinline__ PlainProbability(const fold::Normaliser<float>& row) {
    const lift::FrameTerms terms(1.F, fold::LogSumExp<float>::narrow(row.m));
    magic = terms.magic, lowest = terms.lowest;
    multiplier = fold::Scalar<float>::mul(row.reciprocal, terms.unit);
  }
  __device__ __forceinline__ float operator()(float x, float c) const {
    const float z = fold::Scalar<float>::fma(x, c, magic), y = of(x, c, z);
    return !(z >= lowest) || y < fold::Real<float>::kSmallest ? 0.F : y;
  }
  /// The same where it is known not to be 0.
  __device__ __forceinline__ float near(float x, float c) const {
    return of(x, c, fold::Scalar<float>::fma(x, c, magic));
  }

 private:
  __device__ __forceinline__ float of(float x, float c, float z) const {
    using S = fold::Scalar<float>;
    const float power = fold::exp2_fraction<S>(S::fma(x, c, -S::sub(z, magic)));
    return S::mul(__int_as_float(__float_as_int(power) + (__float_as_int(z) << 23)), multiplier);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
