// softfold's C++ front: one function per operation. Each makes a plan and runs it; keep the Plan (plan.hpp) to run it
// again. Everything is refused before any work with softfold::Error; nothing is copied or allocated behind your back.
// Refused are: sizes and ranks (Code::shape), dtypes (dtype), strides and overlaps (strides), another device (device),
// scale, axis and the like (option), lengths and offsets (data), states (state), what no kernel does (unsupported).
// Every result's error has a bound, in docs/accuracy.md.
//
//   const std::int64_t shape[] = {4096, 128256};
//   softfold::softmax({x, softfold::DType::float32, shape}, {y, softfold::DType::float32, shape});
//
// Shapes: x is any shape, folded along options.axis. "rows" is x's shape without that axis (the axis kept with size 1
// is accepted too). dtypes: float32, float64, float16, bfloat16, each operand its own; a float64 x is folded in
// float64, everything else in float32. Strides are in elements and may be anything that reaches valid memory, also
// negative or 0 for inputs. An output may be the very same view as the input (in place); any other overlap is refused.
// Three limits, each refused by name: the last axis of states and of (m, d) statistics is contiguous (Code::shape); the
// parts of a merge are at most kMaxMergeParts (Code::shape), all of the first one's shape, dtype and strides
// (Code::strides); y and dy are both float64 or neither is (Code::dtype).
#pragma once

#include "softfold/plan.hpp"

namespace softfold {
inline namespace v0 {

/// y = exp(scale x) / sum exp(scale x). y: x's shape. Error <= (8 + d_i + 2.5 ln n) 2^-24 relative in float32.
SOFTFOLD_API void softmax(const View& x, const View& y, const RowOptions& options = {}, const Context& context = {});

/// y = scale x - logsumexp(scale x), from the state, never as that difference. y: x's shape.
SOFTFOLD_API void log_softmax(const View& x, const View& y, const RowOptions& options = {},
                              const Context& context = {});

/// lse = ln sum exp(scale x). lse: rows; floating; -inf for an empty row.
SOFTFOLD_API void logsumexp(const View& x, const View& lse, const RowOptions& options = {},
                            const Context& context = {});

/// The state of each row. states: float64, rows + (4,): m, d, scale, digits (24: folded in float32, 53: in float64).
/// sum exp(scale x) = d 2^m with digits 24; with digits 53 m is held halved, and the sum is d 2^(2m).
SOFTFOLD_API void state(const View& x, const View& states, const RowOptions& options = {}, const Context& context = {});

/// dx = scale y (dy - sum y dy). y is softmax's result as it was stored; y, dy, dx of one shape, each of any floating
/// dtype (y and dy both float64, or neither). A row whose y is all 0, as an empty one's is, has dx = 0.
SOFTFOLD_API void softmax_backward(const View& y, const View& dy, const View& dx, const RowOptions& options = {},
                                   const Context& context = {});

/// dx = scale (dy - exp(y) sum dy). y is log_softmax's result, -inf throughout for an empty row; else as above.
SOFTFOLD_API void log_softmax_backward(const View& y, const View& dy, const View& dx, const RowOptions& options = {},
                                       const Context& context = {});

/// dx = scale softmax(x) dlse, from the states that `state` gave of x with the same scale. dlse: rows, floating,
/// rounded to the precision of the fold; dx: x's shape.
SOFTFOLD_API void logsumexp_backward(const View& x, const View& states, const View& dlse, const View& dx,
                                     const RowOptions& options = {}, const Context& context = {});

/// The state of what all parts hold together, neighbours first. Each part and the result: float64, (..., 4).
/// States of another scale or precision are refused, all of them before one is written (Code::state).
SOFTFOLD_API void merge_states(std::span<const View> parts, const View& merged, const Context& context = {});

/// y = softmax of a shard x, given the merged states of all shards: float64, x's rows + (4,). options.scale must be the
/// states' (Code::state). An element that cannot be in a row of that state becomes NaN.
SOFTFOLD_API void finish_softmax(const View& x, const View& states, const View& y, const RowOptions& options = {},
                                 const Context& context = {});
/// The same for log_softmax.
SOFTFOLD_API void finish_log_softmax(const View& x, const View& states, const View& y, const RowOptions& options = {},
                                     const Context& context = {});
/// lse of merged states. states: (..., 4); lse: (...).
SOFTFOLD_API void finish_logsumexp(const View& states, const View& lse, const Context& context = {});

/// The loss of class logits x against targets (int32 or int64, rows): -log_softmax(x)[target], from the state, never as
/// a difference of logits and lse. Targets may also be class probabilities (floating, x's shape; both float64 or
/// neither): -sum targets log_softmax(x), a mean over all rows. loss: rows for Reduction::none, else one number ([]).
/// CrossEntropyOptions says what else it can hold and give, the gradient in the same call among it. A target that is no
/// class is refused before anything is written (on a GPU: its row is NaN, and counted in options.status).
SOFTFOLD_API void cross_entropy(const View& x, const View& targets, const View& loss,
                                const CrossEntropyOptions& options = {}, const Context& context = {});
/// dx = the gradient of that loss times dloss, from the saved states. dloss: the loss's shape; dx: x's shape.
SOFTFOLD_API void cross_entropy_backward(const View& x, const View& targets, const View& states, const View& dloss,
                                         const View& dx, const CrossEntropyOptions& options = {},
                                         const Context& context = {});

/// The cross-entropy of the logits x weight^T + bias, which are never a result: their blocks are memory of the call's
/// own. x: (..., D) or (D); weight: (V, D), both float64 or neither; targets: int32 or int64, x's shape without D; loss
/// as cross_entropy's. LinearCrossEntropyOptions says what else there is: the gradients of x, weight and bias in the
/// same call, softcap, everything that cross_entropy can hold and give. The products are added in an order that depends
/// on D, V, dtypes and the machine, never on the batch: of one row, loss, states and dx have the same bits in any
/// batch. On the CPU logits and their gradient are float32 (float64 for float64), on a GPU of x's dtype.
SOFTFOLD_API void linear_cross_entropy(const View& x, const View& weight, const View& targets, const View& loss,
                                       const LinearCrossEntropyOptions& options = {}, const Context& context = {});

/// The entropy of softmax(scale x), -sum p ln p, of each row, in nats. entropy: rows. A row with nothing in it has 0.
SOFTFOLD_API void entropy(const View& x, const View& entropy, const EntropyOptions& options = {},
                          const Context& context = {});
/// dx = -scale p (ln p + entropy) dentropy, from the saved states. dentropy: rows.
SOFTFOLD_API void entropy_backward(const View& x, const View& states, const View& dentropy, const View& dx,
                                   const EntropyOptions& options = {}, const Context& context = {});

/// The divergence of softmax(scale q) from softmax(scale p), KL(p || q) = sum p (ln p - ln q), of each row of logits p
/// and q, in nats; never negative. p, q: of one shape, both float64 or neither; kl: rows. An element of probability 0
/// in p adds nothing, one whose q alone is -inf makes it +inf. Of a row with nothing in p it is 0.
SOFTFOLD_API void kl_divergence(const View& p, const View& q, const View& kl, const KlDivergenceOptions& options = {},
                                const Context& context = {});
/// dp = scale p (ln p - ln q - kl) dkl and dq = scale (q - p) dkl, the gradients of the logits, from the saved states
/// of both. dkl: rows. dp, dq: p's shape; a View{} for one that is not wanted.
SOFTFOLD_API void kl_divergence_backward(const View& p, const View& q, const View& p_states, const View& q_states,
                                         const View& dkl, const View& dp, const View& dq,
                                         const KlDivergenceOptions& options = {}, const Context& context = {});

/// The k largest elements of each row and where they stand (int32 or int64), in one read. values, indices: x's shape
/// with k along the axis, 0 <= k <= n. Where fewer than k exist: -inf, index -1, probability 0.
SOFTFOLD_API void topk(const View& x, const View& values, const View& indices, const TopkOptions& options = {},
                       const Context& context = {});

/// One element of each row, drawn from softmax(scale (x + bias) / temperature) of what the filters leave. x: float32,
/// float16 or bfloat16; tokens: int32 or int64, rows. A row from which nothing can be drawn (empty, or with a NaN or
/// +inf in it) gives -1. The draw is a function of the row, the seed, the offset and the row's id alone: Philox4x32-10
/// gives one uniform number, which descends through the canonical tree. A row's probability of giving an element is its
/// softmax within (3 + 1.5 ln n) 2^-24 of the whole.
SOFTFOLD_API void sample(const View& x, const View& tokens, const SampleOptions& options = {},
                         const Context& context = {});

/// Attention outputs over disjoint keys, merged: out = sum exp(lse_p) out_p / sum exp(lse_p), lse = ln sum exp(lse_p).
/// parts: out_0, lse_0, out_1, lse_1, ...; out (..., D), lse (...) float32 or float64. Known elsewhere as
/// merge_attn_states or _update_out_and_lse. out: floating, computed in float32 (float64 for float64 parts). The result
/// may be the views of one of the parts. Of parts that are empty (lse = -inf) out is not read.
SOFTFOLD_API void merge_attention(std::span<const View> parts, const View& out, const View& lse,
                                  const MergeOptions& options = {}, const Context& context = {});

/// Softmaxes of the blocks of one row, rescaled to the softmax of the whole row. parts: p_0, lse_0, p_1, lse_1, ...;
/// outputs: one p per part and the joint lse last.
SOFTFOLD_API void merge_blocks(std::span<const View> parts, std::span<const View> outputs,
                               const MergeOptions& options = {}, const Context& context = {});

/// out = softmax(scores) v over the keys that each query sees: score = scale q.k, with what the options add. A row that
/// sees none is 0, its lse -inf. q: (B, H, T, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv), out: (B, H, T, Dv), or as
/// options.layout says; query head h reads key head h / (H / Hkv). D, Dv from 1 to 512. q, k, v: one dtype; out: the
/// same, or float32. Computed in float32 (float64 for float64), which also holds the probabilities. The last axis is
/// contiguous. Each row's bits are the same in any batch and on any number of threads. A score that is NaN or infinite
/// makes its row NaN; a V that is, also other rows of its tile, even those that hide it (docs/attention.md, Limits).
SOFTFOLD_API void attention(const View& q, const View& k, const View& v, const View& out,
                            const AttentionOptions& options = {}, const Context& context = {});

/// The definition of the bits that this library computes (SOFTFOLD_BITS_VERSION of its build).
SOFTFOLD_API int bits_version() noexcept;
/// "major.minor.patch".
SOFTFOLD_API const char* version() noexcept;

}  // namespace v0
}  // namespace softfold
