// What leaves topk for one row, once its state and its best elements are known.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/plain_chunk.cuh"
#include "cuda/topk_select.cuh"
#include "softfold/fold/topk.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Counts one in a bin of shared memory for every lane that names one (0 or more): lanes of one bin add up first, for
/// the leading bytes of a row's keys are few. All lanes of the warp call it together.
__device__ __forceinline__ void count_in_bins(unsigned long long* bins, int bin) {
  const unsigned same = __match_any_sync(lift::kWholeWarp, bin);
  const bool first = static_cast<int>(threadIdx.x) % 32 == __ffs(static_cast<int>(same)) - 1;
  if (bin >= 0 && first) atomicAdd(&bins[bin], static_cast<unsigned long long>(__popc(same)));
}

/// Writes a row's results, a thread an element taken.
template <class T, class Place = RowPlace>
class TopkRow {
 public:
  using State = typename fold::LogSumExp<T>::State;

  __device__ __forceinline__ TopkRow(const TopkProblem& p, std::int64_t index, const State& s)
      : p_(p), place_(p, index), row_(row_at(p, place_)), factor_(row_.scale), state_(s) {}

  __device__ __forceinline__ T element(std::int64_t index) const {
    const Operand& x = p_[Slot::x];
    return element_at<T>(x.dtype, row_.x + index * x.axis_stride);
  }
  /// The j-th of the taken elements; index -1: there are fewer.
  __device__ __forceinline__ void put_element(std::int64_t j, std::int64_t index) const {
    put_element(j, index, index >= 0 ? element(index) : -fold::infinity<T>());
  }
  /// The same for who has it.
  __device__ __forceinline__ void put_element(std::int64_t j, std::int64_t index, T element) const {
    put_pair(j, index, element);
    if (p_[TopkSlot::probabilities].given) put_probability(j, index, element);
    if (p_[TopkSlot::log_probabilities].given) put_log_probability(j, index, element);
  }
  /// The j-th of the best entries, of which so many are taken, to the place `to`.
  __device__ __forceinline__ void put_entry(std::int64_t to, const Entry* best, int taken, int j) const {
    static_assert(std::is_same_v<T, float>);  // an entry has 32 bits of key
    const std::int64_t index = j < taken ? static_cast<std::int64_t>(index_of(best[j])) : -1;
    T value = j < taken ? value_of(best[j]) : -fold::infinity<T>();
    if (value == T(0)) value = element(index);  // which of both zeros it is
    put_element(to, index, value);
  }
  /// One after the other, for who asks for the last two only where they are given: what they need of the row is then
  /// not found where they are not.
  __device__ __forceinline__ void put_pair(std::int64_t j, std::int64_t index, T element) const {
    const Operand& indices = p_[TopkSlot::indices];
    put_at(TopkSlot::values, j, element);
    put_integer(indices.dtype, indices.data + place_.offset(indices) + j * indices.axis_stride, index);
  }
  __device__ __forceinline__ void put_probability(std::int64_t j, std::int64_t index, T element) const {
    put_at(TopkSlot::probabilities, j, probability(index >= 0, element));
  }
  __device__ __forceinline__ void put_log_probability(std::int64_t j, std::int64_t index, T element) const {
    put_at(TopkSlot::log_probabilities, j, log_probability(index >= 0, element));
  }
  __device__ __forceinline__ void put_lse() const {
    const Operand& o = p_[TopkSlot::lse];
    if (o.given) put(o.dtype, o.data + place_.offset(o), fold::LogSumExp<T>{factor_.scale}.finish(state_));
  }

 private:
  __device__ __forceinline__ T probability(bool there, T element) const {
    const fold::Normaliser<T> norm(state_);
    if (!there || !norm.regular) return special(there, T(0));
    return probability_of(factor_(element), factor_.c, state_.m, norm.reciprocal);
  }
  __device__ __forceinline__ T log_probability(bool there, T element) const {
    fold::LogNormaliser<T> norm(state_, factor_.scale);
    if (!there || !norm.regular) return special(there, -fold::infinity<T>());
    norm.set_c(factor_.c);
    return norm.log_probability(factor_(element));
  }
  /// Of an element that is not there, or of a row without a finite sum.
  __device__ __forceinline__ T special(bool there, T nothing) const {
    const bool empty = state_.m == -fold::infinity<double>();
    const bool nan = empty ? p_.empty == Empty::nan : there && !fold::Normaliser<T>(state_).regular;
    return nan ? fold::canonical_nan<T>() : nothing;
  }
  __device__ __forceinline__ void put_at(TopkSlot slot, std::int64_t j, T value) const {
    const Operand& o = p_[slot];
    if (o.given) put(o.dtype, o.data + place_.offset(o) + j * o.axis_stride, value);
  }

  const TopkProblem& p_;
  Place place_;
  Row row_;
  RowFactor<T> factor_;
  State state_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
