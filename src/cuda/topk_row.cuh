// What leaves topk for one row, once its state and its best elements are known.
#pragma once

#include "cuda/generic.cuh"
#include "softfold/fold/topk.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Writes a row's results, a thread an element taken.
template <class T>
class TopkRow {
 public:
  using State = typename fold::LogSumExp<T>::State;

  __device__ __forceinline__ TopkRow(const TopkProblem& p, std::int64_t index, const State& s)
      : p_(p), place_(p, index), row_(row_at(p, place_)), factor_(row_.scale), state_(s) {}

  /// The j-th of the taken elements; index -1: there are fewer.
  __device__ __forceinline__ void put_element(std::int64_t j, std::int64_t index) const {
    const Operand &x = p_[Slot::x], &indices = p_[TopkSlot::indices];
    const bool there = index >= 0;
    const T element = there ? element_at<T>(x.dtype, row_.x + index * x.axis_stride) : -fold::infinity<T>();
    put_at(TopkSlot::values, j, element);
    char* to = indices.data + place_.offset(indices) + j * indices.axis_stride;
    if (indices.dtype == DType::int32) {
      *reinterpret_cast<std::int32_t*>(to) = static_cast<std::int32_t>(index);
    } else {
      *reinterpret_cast<std::int64_t*>(to) = index;
    }
    const fold::Normaliser<T> norm(state_);
    T probability = T(0), log_probability = -fold::infinity<T>();
    if (norm.empty ? p_.empty == Empty::nan : there && !norm.regular) {
      probability = log_probability = fold::canonical_nan<T>();
    } else if (there && norm.regular) {
      fold::LogNormaliser<T> log_norm(state_, factor_.scale);
      log_norm.set_c(factor_.c);
      probability = probability_of(norm, factor_(element));
      log_probability = log_norm.log_probability(factor_(element));
    }
    put_at(TopkSlot::probabilities, j, probability);
    put_at(TopkSlot::log_probabilities, j, log_probability);
  }
  __device__ __forceinline__ void put_lse() const {
    const Operand& o = p_[TopkSlot::lse];
    if (o.given) put(o.dtype, o.data + place_.offset(o), fold::LogSumExp<T>{factor_.scale}.finish(state_));
  }

 private:
  __device__ __forceinline__ T probability_of(const fold::Normaliser<T>& norm, T x) const {
    using Lse = fold::LogSumExp<T>;
    const T term = Lse::is_fast(state_.m)             ? fold::term<fold::Scalar<T>>(x, factor_.c, Lse::narrow(state_.m))
                   : ::fabs(x) == fold::infinity<T>() ? T(0)
                                                      : fold::term_wide(x, factor_.c, state_.m);
    return fold::Normaliser<T>::probability(term, norm.multiplier(state_.m));
  }
  __device__ __forceinline__ void put_at(TopkSlot slot, std::int64_t j, T value) const {
    const Operand& o = p_[slot];
    if (o.given) put(o.dtype, o.data + place_.offset(o) + j * o.axis_stride, value);
  }

  const TopkProblem& p_;
  RowPlace place_;
  Row row_;
  RowFactor<T> factor_;
  State state_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
