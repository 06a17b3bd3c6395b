// What a group of lanes holds of a row of float64 by its parts: as ragged_parts.cuh has it of other dtypes.
#pragma once

#include "cuda/double_elements.cuh"
#include "cuda/double_gradient.cuh"
#include "cuda/double_nodes.cuh"
#include "cuda/ragged_parts.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Of softmax and log_softmax, or of what leaves one result a row.
template <int kLanes_, int kCount, RaggedLeaves kLeaves>
struct DoubleSoftmaxPart {
  using Real = double;
  using Lse = fold::LogSumExp<Real>;
  using State = Lse::State;
  using Elements = DoubleElements<kLanes_, kCount>;
  static constexpr int kLanes = kLanes_, kSlots = Elements::kSlots;
  static constexpr bool kOfRow = kLeaves == RaggedLeaves::row, kLog = kLeaves == RaggedLeaves::log_softmax;
  static constexpr int kThreads = 512, kShortThreads = 768, kBlockThreads = 256;  ///< as of SoftmaxPart

  Elements tile;
  RowFactor<double> factor;
  State own;

  __device__ __forceinline__ DoubleSoftmaxPart(const RowProblem& p, const PartedRow& r)
      : tile(p, r.x, 0), factor(r.scale) {}

  __device__ __forceinline__ void load(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n) {
    tile.load(p, r, begin, n);
    own = tile.template fold<kLog>(factor);
  }
  __device__ __forceinline__ State state() const { return own; }
  template <bool>
  __device__ __forceinline__ void write(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n,
                                        const State& row) {
    tile.template write<kLog>(p, {r.index, r.y, r.scale}, begin, n, row, own.m);
  }
  __device__ __forceinline__ void rewrite(const RowProblem& p, const PartedRow& r, std::int64_t begin, int length,
                                          int n, const State& row) {
    tile.load(p, r, begin, length);
    if (!tile.template fold_in<kLog>(factor, row.m))
      return write_one_by_one<kLog>(p, tile.share(r.index, begin), row, false);
    tile.template write<kLog>(p, {r.index, r.y, r.scale}, begin, n, row, row.m);
  }

  template <class Load>
  static __device__ __forceinline__ State merge(const Load& load, int count) {
    return merge_all<Lse>(load, count);
  }
  static __device__ __forceinline__ State merge_groups(const State* states, std::int64_t count) {
    return merge_by_lanes<Lse>(states, count);
  }
};

/// Of the gradients of these.
template <int kLanes_, int kCount, template <class> class Gradient>
struct DoubleGradientPart : DoubleGradient<kLanes_, kCount, Gradient> {
  using Base = DoubleGradient<kLanes_, kCount, Gradient>;
  using State = typename Base::Node;
  static constexpr int kLanes = kLanes_, kSlots = kLanes * kCount;
  static constexpr int kThreads = 256, kBlockThreads = 256, kShortThreads = 512;
  static constexpr bool kOfRow = false;

  State own;

  __device__ __forceinline__ DoubleGradientPart(const RowProblem& p, const PartedRow& r) : Base(p, r.x) {}

  __device__ __forceinline__ void load(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n) {
    Base::load(p, r, begin, n);
    own = this->sum();
    own.any = __ballot_sync(lift::kWholeWarp, own.any != 0) & lift::lanes_of_group<kLanes>();
  }
  __device__ __forceinline__ State state() const { return own; }
  template <bool>
  __device__ __forceinline__ void write(const RowProblem& p, const PartedRow& r, std::int64_t begin, int n,
                                        const State& row) {
    Base::write(p, r, begin, n, row);
  }
  __device__ __forceinline__ void rewrite(const RowProblem& p, const PartedRow& r, std::int64_t begin, int length,
                                          int n, const State& row) {
    Base::load(p, r, begin, length);
    Base::write(p, r, begin, n, row);
  }

  template <class Load>
  static __device__ __forceinline__ State merge(const Load& load, int count) {
    return merge_all<GradientFold<double>>(load, count);
  }
  static __device__ __forceinline__ State merge_groups(const State* states, std::int64_t count) {
    return merge_by_lanes<GradientFold<double>>(states, count);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
