// One sequence of an attention: which tokens and keys are its own, and which of them each query sees.
#pragma once

#include "front/problem.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cpu {

inline std::int64_t integer_at(const VectorOperand& v, std::int64_t i) {
  const std::int64_t at = i * v.stride;
  return v.dtype == DType::int32 ? reinterpret_cast<const std::int32_t*>(v.data)[at]
                                 : reinterpret_cast<const std::int64_t*>(v.data)[at];
}

/// Keys [first, last) in memory.
struct KeyRange {
  std::int64_t first, last;
};

/// Whatever the numbers in memory have become since they were checked, everything lies within the tensors.
struct AttentionSequence {
  std::int64_t index;       ///< b
  std::int64_t q_token;     ///< of the first query; 0 unless packed
  std::int64_t kv_token;    ///< of key 0 in memory
  std::int64_t kv_batch;    ///< 0 if packed
  std::int64_t queries;     ///< T
  std::int64_t start, end;  ///< the keys that exist
  std::int64_t left, right;

  AttentionSequence(const AttentionProblem& p, std::int64_t b)
      : index(b), q_token(0), kv_token(0), kv_batch(p.packed ? 0 : b), queries(p.tq), left(p.left), right(p.right) {
    std::int64_t keys = p.tk;
    if (p.packed) {
      const auto cut = [b](const VectorOperand& offsets, std::int64_t tokens, std::int64_t most, std::int64_t* first) {
        *first = std::clamp<std::int64_t>(integer_at(offsets, b), 0, tokens);
        return std::clamp<std::int64_t>(integer_at(offsets, b + 1) - *first, 0, std::min(most, tokens - *first));
      };
      queries = cut(p.q_offsets, p.q_tokens, p.tq, &q_token);
      keys = cut(p.kv_offsets, p.kv_tokens, p.tk, &kv_token);
    }
    if (p.kv_index.given) kv_batch = std::clamp<std::int64_t>(integer_at(p.kv_index, b), 0, p.kv_sequences - 1);
    end = p.kv_lengths.given ? std::clamp<std::int64_t>(integer_at(p.kv_lengths, b), 0, keys) : keys;
    start = p.kv_starts.given ? std::clamp<std::int64_t>(integer_at(p.kv_starts, b), 0, end) : 0;
  }

  /// Where query i stands among the keys.
  std::int64_t position(std::int64_t i) const { return i + end - queries; }

  KeyRange seen_by(std::int64_t i) const {
    const std::int64_t at = position(i);
    return {left >= 0 ? std::max(start, at - left) : start, right >= 0 ? std::min(end, at + right + 1) : end};
  }
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
