// Which rows of q and which keys belong together: what every attention kernel asks of its problem. Numbers that lie on
// the device are never believed: all of them are brought into the tensors' ranges.
#pragma once

#include "cuda/generic.cuh"
#include "front/problem.hpp"
#include "softfold/fold/attend.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Sequence b of a problem. Query i is row q_begin + i of q's batch q_batch, key j row kv_begin + j of k's kv_batch.
struct AttentionSequence {
  std::int64_t q_batch, q_begin, tq;
  std::int64_t kv_batch, kv_begin, start, end;  ///< keys [start, end) exist
};

__device__ __forceinline__ std::int64_t clamp_to(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

__device__ __forceinline__ std::int64_t index_at(const VectorOperand& v, std::int64_t i) {
  const std::int64_t at = i * v.stride;
  return v.dtype == DType::int64 ? reinterpret_cast<const std::int64_t*>(v.data)[at]
                                 : reinterpret_cast<const std::int32_t*>(v.data)[at];
}

/// Where sequence b begins among `tokens` packed rows; returns how many rows it has.
__device__ __forceinline__ std::int64_t packed_rows(const VectorOperand& offsets, std::int64_t b, std::int64_t tokens,
                                                    std::int64_t& begin) {
  begin = clamp_to(index_at(offsets, b), 0, tokens);
  return clamp_to(index_at(offsets, b + 1), begin, tokens) - begin;
}

__device__ __forceinline__ AttentionSequence sequence_of(const AttentionProblem& p, std::int64_t b) {
  AttentionSequence s{b, 0, p.tq, b, 0, 0, p.tk};
  if (p.packed) {
    s.q_batch = s.kv_batch = 0;
    s.tq = packed_rows(p.q_offsets, b, p.q_tokens, s.q_begin);
    s.end = packed_rows(p.kv_offsets, b, p.kv_tokens, s.kv_begin);
  }
  if (p.kv_index.given) s.kv_batch = clamp_to(index_at(p.kv_index, b), 0, p.kv_sequences - 1);
  if (p.kv_lengths.given) s.end = clamp_to(index_at(p.kv_lengths, b), 0, s.end);
  if (p.kv_starts.given) s.start = clamp_to(index_at(p.kv_starts, b), 0, s.end);
  return s;
}

/// The keys [first_key, last_key) are those in query i's window.
__device__ __forceinline__ std::int64_t first_key(const AttentionProblem& p, const AttentionSequence& s,
                                                  std::int64_t i) {
  return p.left < 0 ? s.start : clamp_to(i + s.end - s.tq - p.left, s.start, s.end);
}
__device__ __forceinline__ std::int64_t last_key(const AttentionProblem& p, const AttentionSequence& s,
                                                 std::int64_t i) {
  if (p.right < 0 || p.right > p.q_tokens + p.kv_tokens) return s.end;
  return clamp_to(i + s.end - s.tq + p.right + 1, s.start, s.end);
}

/// A bias or sink (fold::finite_bias): one of float64 is brought into T's range before it is rounded.
template <class T>
__device__ T bias_at(DType t, const char* at) {
  return t == DType::float64 ? fold::finite_bias<T>(element_at<double>(t, at))
                             : fold::finite_bias<T>(element_at<T>(t, at));
}

/// A row's m and d after its head's sink, one more key of value 0, and what its values are multiplied by.
template <class T>
struct WithSink {
  T m, d, factor;
};
template <class T>
__device__ WithSink<T> join_sink(const AttentionProblem& p, std::int64_t head, T m, T d) {
  constexpr T unit = static_cast<T>(fold::Real<T>::kUnit);
  const auto at = head * p.sink.stride * static_cast<std::int64_t>(size_of(p.sink.dtype));
  const T t = static_cast<T>(fold::kLog2E) * bias_at<T>(p.sink.dtype, p.sink.data + at);
  const auto joined = fold::join<T>({static_cast<double>(m / unit), d}, fold::lift_score(t));
  return {static_cast<T>(joined.sum.m) * unit, joined.sum.d, joined.a};
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
