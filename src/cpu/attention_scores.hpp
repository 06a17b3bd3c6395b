// What each head adds to its scores, and how a row's results are written.
#pragma once

#include "cpu/attention_sequence.hpp"
#include "cpu/attention_tile.hpp"
#include "cpu/row.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

inline double floating_at(const VectorOperand& v, std::int64_t i) {
  return with_dtype(
      v.dtype, [&]<class S>(S) { return static_cast<double>(fold::widen(reinterpret_cast<const S*>(v.data)[i])); });
}

template <class S>
S* row_of(const AttentionTensor& t, std::int64_t batch, std::int64_t head, std::int64_t token) {
  return reinterpret_cast<S*>(t.data) + (batch * t.batch + head * t.head + token * t.token);
}

/// What q is multiplied by, once: then q.k is log2(e) * score, or with softcap what its tanh takes.
template <class T>
T q_scale(const AttentionProblem& p) {
  return p.softcap > 0 ? static_cast<T>(p.scale / static_cast<double>(p.softcap)) : fold::make_scale<T>(p.scale).c;
}

template <class T>
T slope_of(const AttentionProblem& p, const AttentionSequence& s, std::int64_t head) {
  return static_cast<T>(fold::kLog2E * floating_at(p.slopes, s.index * p.slopes.batch + head * p.slopes.stride));
}

/// The state of a head's sink: one key of value 0.
template <class T>
typename fold::LogSumExp<T>::State sink_of(const AttentionProblem& p, std::int64_t head) {
  if (!p.sink.given) return fold::LogSumExp<T>::identity();
  return fold::lift_score<T>(static_cast<T>(
      fold::kLog2E * static_cast<double>(fold::finite_bias<T>(floating_at(p.sink, head * p.sink.stride)))));
}

/// Writes what was asked for of one row, from its keys' state.
template <class T>
void write_row(const AttentionProblem& p, const AttentionSequence& s, std::int64_t head, std::int64_t i,
               const typename fold::LogSumExp<T>::State& keys, const T* values, const TileOps<T>& ops) {
  const auto joined = fold::join<T>(keys, sink_of<T>(p, head));
  const std::int64_t b = p.packed ? 0 : s.index, token = s.q_token + i;
  const T share = fold::Scalar<T>::mul(joined.a, fold::share_of<T>(joined.sum));
  with_dtype(p.out.dtype, [&]<class S>(S) {
    ops.narrow[index(p.out.dtype)](values, p.dv, share, row_of<S>(p.out, b, head, token));
  });
  if (p.lse.given) {
    const double lse = fold::lse_of<T>(joined.sum);
    if (p.lse.dtype == DType::float64) {
      *row_of<double>(p.lse, b, head, token) = lse;
    } else {
      *row_of<float>(p.lse, b, head, token) = fold::narrow<float>(lse);
    }
  }
  if (!p.state.given) return;
  T* state = row_of<T>(p.state, b, head, token);
  state[0] = static_cast<T>(joined.sum.m * fold::Real<T>::kUnit);
  state[1] = joined.sum.d;
  for (int c = 0; c < p.dv; ++c) state[2 + c] = fold::Scalar<T>::mul(values[c], joined.a);
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
