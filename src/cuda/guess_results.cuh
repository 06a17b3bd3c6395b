// What softmax_cluster_guesses writes of a warp's part of a row: terms to results, and away.
#pragma once

#include "cuda/guess_part.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E, GuessForm kForm>
struct GuessResults {
  using Part = GuessPart<E, kForm>;
  using Shape = GuessShape<E, kForm>;
  using Place = typename Shape::Place;
  using Vectors = uint4[Place::kVectors];
  using Values = float[Shape::kCount];
  static constexpr int kLanes = Shape::kLanes;

  const Part& part;

  /// Terms to results, by `raw`, and away.
  __device__ __forceinline__ void put(Vectors& raw, Values& v, char* y, bool dense, float unit) const {
    finish<false, Place::kWidth>(
        v, dense, unit, [] {}, [&](int j) { raw[j] = Packed<E>::pack(v + j * Place::kWidth); });
    write(raw, y);
  }
  /// log_softmax's, of elements, which in 16 bit are in `raw`, else in v. log_norm() is the row's LogNormaliser.
  template <class LogNorm>
  __device__ __forceinline__ void put_logarithms(Vectors& raw, Values& v, char* y, const LogNorm& log_norm) const {
    if constexpr (kForm.template packed<E>()) unpack<E>(raw, v);
    finish<true, Place::kWidth>(v, false, 0.F, log_norm,
                                [&](int j) { raw[j] = Packed<E>::pack(v + j * Place::kWidth); });
    write(raw, y);
  }
  /// Of a row that is not wild. (Constants by the stores of all others: a call would have registers spilled.)
  __device__ __forceinline__ void put_guessed_gradients(Vectors& raw, Values& v, float least, float unit,
                                                        const GradientRow& gradient, char* y) const {
    if (gradient.kind == GradientRow::Kind::regular) {
      to_gradients(v, least, unit, gradient);
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) raw[j] = Packed<E>::pack(v + j * Place::kWidth);
    } else {
      // (Packed<E>::narrow makes another NaN of it.)
      const E nan = fold::narrow<E>(fold::canonical_nan<float>());
      const bool zero = gradient.kind == GradientRow::Kind::zero;
      E constants[Place::kWidth];
#pragma unroll
      for (E& e : constants) e = zero ? fold::narrow<E>(0.F) : nan;
#pragma unroll
      for (uint4& vector : raw) vector = Packed<E>::join(constants);
    }
    write(raw, y);
  }
  /// Of a row that no guess held, whose elements, which are in raw for log_softmax, `own` has folded to the terms v.
  template <class Folded>
  __device__ __forceinline__ void put_exactly(Vectors& raw, Values& v, const Folded& own, const lift::Root& root,
                                              int row) const {
    if constexpr (kForm.state()) {
      if (part.is_first()) part.p.states[row] = root.state();
      return;
    }
    const ChunkMultiplier multiplier(root, own.node, own.state.m);
    const float unit = fold::Scalar<float>::mul(multiplier.value, own.unit);
    char* y = part.y_of(row);
    if constexpr (kForm.gradient()) {
      if (part.is_first()) part.p.states[row] = root.state();
      put_gradient<E>(typename Shape::Elements(y), y, part.count, v, own.dense ? 0x1p-62F : 0.F, unit,
                      GradientWords(part.p.gradients + row).row(), root, [&] {
#pragma unroll
                        for (int j = 0; j < Place::kVectors; ++j) raw[j] = Packed<E>::pack(v + j * Place::kWidth);
                        write(raw, y);
                      });
    } else if (!multiplier.regular) {
      fill<E, kForm.log()>(y, part.mask_of(row), 1, lane_index() % kLanes, kLanes, part.count, part.count,
                           constant_of<kForm.log()>(root.state(), part.p.empty));
    } else if constexpr (kForm.log()) {
      if constexpr (!kForm.template packed<E>()) unpack<E>(raw, v);
      put_logarithms(raw, v, y, [&] { return part.p.log_normaliser(root.state()); });
    } else {
      put(raw, v, y, own.dense, unit);
    }
  }

 private:
  __device__ __forceinline__ void write(const Vectors& raw, char* y) const {
    const int lane = lane_index() % kLanes;
    if constexpr (Part::kOnVectors) {
      uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j)
        if (Place::kWidth * (lane + kLanes * j) < part.count) to[kLanes * j] = raw[j];
    } else if (__any_sync(lift::kWholeWarp, part.count % lift::kChunk != 0)) {
      write_vectors<E, kLanes, Place::kVectors>(y, part.count, [&](int j) { return raw[j]; });
    } else {
      write_whole_chunks<E, kLanes>(y, raw, part.count > 0, part.waits.own().ends);
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
