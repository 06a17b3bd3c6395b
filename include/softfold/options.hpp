// What a caller may ask for. One struct per family of operations; an option that a build does not have is refused by
// name when a plan is made, never ignored.
#pragma once

#include "softfold/executor.hpp"
#include "softfold/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>

namespace softfold {
inline namespace v0 {

/// Every operation.
enum class Op : std::uint8_t {
  softmax,                 ///< x -> y
  log_softmax,             ///< x -> y
  logsumexp,               ///< x -> lse
  state,                   ///< x -> states
  softmax_backward,        ///< y, dy -> dx
  log_softmax_backward,    ///< y, dy -> dx
  logsumexp_backward,      ///< x, states, dlse -> dx
  merge_states,            ///< states a, states b, ... -> states
  finish_softmax,          ///< x (a shard), states (merged) -> y
  finish_log_softmax,      ///< x (a shard), states (merged) -> y
  finish_logsumexp,        ///< states -> lse
  merge_attention,         ///< out a, lse a, out b, lse b, ... -> out, lse
  merge_blocks,            ///< p a, lse a, p b, lse b, ... -> p a, p b, ..., lse
  topk,                    ///< x -> values, indices
  sample,                  ///< x -> tokens
  entropy,                 ///< x -> entropy
  cross_entropy,           ///< x, targets -> loss
  linear_cross_entropy,    ///< x, weight, targets -> loss
  attention,               ///< q, k, v -> out
  cross_entropy_backward,  ///< x, targets, states, dloss -> dx
  entropy_backward,        ///< x, states, dentropy -> dx
  kl_divergence,           ///< p, q -> kl
  kl_divergence_backward,  ///< p, q, p_states, q_states, dkl -> dp, dq
};
inline constexpr Op kLastOp = Op::kl_divergence_backward;

constexpr std::string_view name_of(Op op) {
  constexpr std::string_view names[] = {"softmax",
                                        "log_softmax",
                                        "logsumexp",
                                        "state",
                                        "softmax_backward",
                                        "log_softmax_backward",
                                        "logsumexp_backward",
                                        "merge_states",
                                        "finish_softmax",
                                        "finish_log_softmax",
                                        "finish_logsumexp",
                                        "merge_attention",
                                        "merge_blocks",
                                        "topk",
                                        "sample",
                                        "entropy",
                                        "cross_entropy",
                                        "linear_cross_entropy",
                                        "attention",
                                        "cross_entropy_backward",
                                        "entropy_backward",
                                        "kl_divergence",
                                        "kl_divergence_backward"};
  return names[static_cast<int>(op)];
}

/// What an empty row (length 0, all masked, all -inf) becomes.
enum class Empty : std::uint8_t {
  zero,  ///< probabilities 0, log-probabilities -inf, lse -inf, gradients 0
  nan,   ///< probabilities and log-probabilities NaN, as torch.softmax; lse stays -inf
};

/// The ladder of algorithms: docs/ladder.md says what each reads and writes. `tiled` and `fused` give the bits of
/// `automatic`. The first three are softmax's alone, over plain contiguous rows, and add in an order of their own:
/// the errors of `safe` and `online` grow with n / W, W the lanes of a vector (docs/accuracy.md), `naive` overflows.
/// Attention has a ladder of the same names (docs/attention.md): naive and safe hold all scores, online takes one key
/// at a time, tiled one chunk of keys, fused tiles of queries and keys.
enum class Rung : std::uint8_t {
  automatic,
  naive,   ///< exp(x) / sum exp(x): two reads; overflows, on purpose
  safe,    ///< three reads: maximum, sum, write
  online,  ///< two reads: maximum and sum element by element, write
  tiled,   ///< two reads: a tile to a state, one merge per tile, write
  fused,   ///< one read: the row stays on chip between its sum and its write
  merged,  ///< of attention alone: a chunk's probabilities and lse at a time, merged
};

/// The base of a logarithm that comes from elsewhere. softfold's own are natural, always.
enum class LogBase : std::uint8_t { natural, two };

/// Options of the row operations. "One a row" operands have x's shape without the axis (or with size 1 there), or
/// broadcast to it. On the CPU, length and offsets are checked when a plan is made and read again when it runs: in
/// between they may not change (if they do, no memory outside x is touched, and the rows are those that fit).
struct RowOptions {
  int axis = -1;     ///< the axis that is folded; negative counts from the end
  double scale = 1;  ///< every element is multiplied by it; 1/temperature
  View scales{};     ///< float32 or float64, one a row: multiplies `scale`
  View length{};     ///< int32 or int64, one a row: only the first `length` elements exist
  /// int32 or int64, [rows + 1], ascending: x is 1-D and row i is x[offsets[i] .. offsets[i+1]). Rows need not cover x:
  /// its other elements are not read, and a result of x's shape holds 0 there (log_softmax: -inf), a gradient 0.
  View offsets{};
  View mask{};          ///< boolean, broadcasts to x: only elements where it is true exist
  bool causal = false;  ///< x is (..., T, S), axis -1: row i has its first i + 1 + S - T elements
  Empty empty = Empty::zero;
  Rung rung = Rung::automatic;
};

/// Where a part of rows stands in them: x holds elements [offset, offset + n) of rows of `size` (shards.hpp).
struct Shard {
  std::int64_t offset = 0;
  std::int64_t size = 0;  ///< 0: x's rows are whole
};

/// How the losses of rows become one number.
enum class Reduction : std::uint8_t {
  none,  ///< they do not: one loss a row
  sum,
  mean,  ///< the sum over the weights of the targets of all rows that are not ignored (of no such row: 0)
};

/// Options of cross_entropy and its backward pass. With w the weight of a class, lp its log-probability, K the number
/// of classes that exist, t the target: the loss of a row is
///   (1 - label_smoothing) w_t (-lp_t) + label_smoothing / K sum w (-lp) + z_loss w_t lse^2.
/// The losses are added by the canonical tree over rows, in float64.
struct CrossEntropyOptions {
  RowOptions rows;  ///< of the logits
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;  ///< a row with this target has loss, log-probability and gradient 0
  double label_smoothing = 0;        ///< 0 .. 1
  double z_loss = 0;                 ///< 0 or more
  View weight{};                     ///< floating, [classes]; 1 each if not given
  View log_probability{};            ///< result, one a row: lp_t
  View states{};                     ///< result: the rows' states, for a backward pass
  View dx{};     ///< result, of x's shape: the gradient, in the same call. May be x's own view: then in place
  View dloss{};  ///< for dx: what comes in, of the loss's shape; 1 if not given
  /// Result: int32, one number, the rows whose target is no class of theirs. On the CPU these are refused; a GPU cannot
  /// refuse them any more: such a row's loss, log-probability and gradient are NaN.
  View status{};
  /// Of cross_entropy_backward: x and dx are a shard of rows whose states were joined. Targets and weight are those of
  /// the whole rows. No label smoothing.
  Shard shard{};
};

/// Options of entropy and its backward pass.
struct EntropyOptions {
  RowOptions rows;  ///< of the logits
  View states{};    ///< result: the rows' states, for a backward pass
  View dx{};        ///< result, of x's shape: the gradient, in the same call. May be x's own view: then in place
  View dentropy{};  ///< for dx: what comes in, one a row; 1 if not given
};

/// Options of kl_divergence and its backward pass.
struct KlDivergenceOptions {
  RowOptions rows;              ///< of the logits of both
  View p_states{}, q_states{};  ///< results: the rows' states, for a backward pass
  View dp{}, dq{};              ///< results, of p's shape: the gradients of the logits, in the same call. dp may be
                                ///< p's own view, dq q's: then in place
  View dkl{};                   ///< for dp and dq: what comes in, one a row; 1 if not given
};

/// Options of topk. Elements are ordered by their value, whatever the scale: NaN first, then from +inf down to -inf;
/// -0 equals +0; of equal ones the lowest index first. The scale is that of the probabilities and of lse.
struct TopkOptions {
  RowOptions rows;
  bool sorted = true;        ///< best first; else by ascending index
  View probabilities{};      ///< result, of the values' shape: softmax's, of the taken elements
  View log_probabilities{};  ///< result, of the values' shape
  View lse{};                ///< result, one a row: of the whole row
};

/// In which order the filters of sample look at a row; each sees what the ones before it left. (top-k and min-p
/// commute.)
enum class FilterOrder : std::uint8_t {
  min_p_first,  ///< min-p, top-k, top-p: vLLM's
  min_p_last,   ///< top-k, top-p, min-p: Hugging Face's
};

/// Of which distribution sample tells the token's log-probability and rank.
enum class Distribution : std::uint8_t {
  raw,      ///< softmax(scale x), before bias, bitmask, temperature and filters
  sampled,  ///< the one that was drawn from
};

/// Options of sample. What is drawn from is softmax(scale (x + bias) / temperature) of what the filters leave. Each of
/// the filters keeps every element that equals the last one it keeps. "One a row, or one" operands have one value a
/// row, or broadcast to that; where they are given, the number of the same name is not used.
struct SampleOptions {
  RowOptions rows;         ///< of the logits; scale and scales are positive
  double temperature = 1;  ///< 0: the largest element, of equal ones the first; filters and seed then do not matter
  std::int64_t top_k = 0;  ///< only the k largest elements; 0, or more than exist: all
  double top_p = 1;        ///< only the fewest largest elements that have this share of the probability: 0 .. 1
  double min_p = 0;        ///< only elements at least this probable relative to the most probable one: 0 .. 1
  View temperatures{};     ///< float32 or float64, one a row, or one
  View top_ks{};           ///< int32 or int64, one a row, or one
  View top_ps{};           ///< float32 or float64, one a row, or one
  View min_ps{};           ///< float32 or float64, one a row, or one
  FilterOrder order = FilterOrder::min_p_first;
  View bias{};     ///< floating, broadcasts to x: added to it; -inf forbids an element
  View bitmask{};  ///< int32, x's shape with ceil(n / 32) along the axis: bit i % 32 of word i / 32 allows element i
  std::uint64_t seed = 0, offset = 0;  ///< offset: which draw of this seed
  View seeds{}, offsets{};             ///< int64, one a row, or one
  /// int64, one a row, or one: the row's identity in its seed's draws. By default its index, or with `seeds` 0, so that
  /// a row with a seed of its own draws the same wherever it stands.
  View row_ids{};
  Distribution of = Distribution::raw;
  View log_probability{};  ///< result, floating, one a row: the token's
  View rank{};  ///< result, int32 or int64, one a row: how many elements are at least as large as the token's
  /// Results, both or neither, of x's shape with k along the axis, 0 <= k <= n: the k largest elements of the
  /// distribution that `of` says, best first, of equal ones the first (int32 or int64), and their log-probabilities
  /// (floating). Where it has fewer (-inf is none): -1, and -inf.
  View top_tokens{}, top_log_probabilities{};
  View probabilities{};  ///< result, floating, of x's shape: what was drawn from (renormalised, 0 for what is gone)
  View masked{};         ///< result, floating, of x's shape: x + bias, with -inf for what the filters took away
};

/// How the parts given to merge_attention and merge_blocks say what they hold.
enum class Statistics : std::uint8_t {
  lse,      ///< one number a row: the logarithm of the part's sum of exponentials
  max_sum,  ///< two numbers a row in a last axis: (m, d) with sum exp(x) = d exp(m) (in LogBase::two: d 2^m). Of a
            ///< merge m is the largest of the parts' with d > 0; larger only if d would leave its dtype's range.
};

/// No merge takes more parts at once. Merging merged parts gives the same result within the bounds, and the same bits
/// for states of aligned cuts.
inline constexpr int kMaxMergeParts = 16;

struct MergeOptions {
  LogBase base = LogBase::natural;  ///< of the statistics, given and returned
  Statistics statistics = Statistics::lse;
};

/// The order of the axes of q, k, v and out. A view's strides say where its elements lie; only D must be contiguous.
enum class Layout : std::uint8_t {
  bhtd,  ///< (B, H, T, D), or (H, T, D) or (T, D) with what is missing 1; of Varlen (H, total T, D)
  bthd,  ///< (B, T, H, D), or (T, H, D) or (T, D); of Varlen (total T, H, D)
};

/// A sliding window of keys around the diagonal: i + S - T - left <= j <= i + S - T + right, where S is the number of
/// keys. -1 is unlimited.
struct Window {
  std::int64_t left = -1, right = -1;
};

/// Sequences of one size, B of them.
struct Dense {};
/// Sequences of any sizes, packed one after the other.
struct Varlen {
  /// int32 or int64, [B + 1], ascending: sequence b has rows offsets[b] .. offsets[b+1].
  View q_offsets{}, kv_offsets{};
  /// No sequence has more queries, keys. 0: not known. On the CPU they are checked; elsewhere they are believed.
  std::int64_t max_q = 0, max_kv = 0;
};
/// Keys and values in pages. No kernel of this version has it.
struct Paged {
  View page_table{}, kv_lengths{};
};

/// Options of attention. Sizes: B sequences, H query heads, Hkv key heads, T queries and S keys a sequence (of Varlen:
/// max_q and max_kv), D. Query i stands at key i + S - T, S the sequence's own count of keys: the last query at the
/// last key.
struct AttentionOptions {
  Layout layout = Layout::bhtd;
  double scale = std::numeric_limits<double>::quiet_NaN();  ///< NaN: 1/sqrt(D)
  bool causal = false;                                      ///< as window.right = 0
  Window window{};
  float softcap = 0;  ///< score = softcap tanh(scale q.k / softcap); 0: off
  View sink{};        ///< floating, [H]: one more key a head, of this score and of value 0
  View bias{};        ///< floating, broadcasts to (B, H, T, S): added to the score; -inf alone hides the key
  View mask{};        ///< boolean, broadcasts to (B, H, T, S): only keys where it is true exist
  View slopes{};      ///< float32, [H] or [B, H] (ALiBi): score -= slope |i + S - T - j|
  View kv_lengths{};  ///< int32 or int64, [B]: only the first `length` keys exist
  View kv_starts{};   ///< int32 or int64, [B]: keys before `start` do not exist (padding on the left)
  View kv_index{};    ///< int32 or int64, [B], Dense: sequence b's keys are k[kv_index[b]] of a cache k, v
  std::variant<Dense, Varlen, Paged> kv{};
  View q_positions{}, kv_positions{};  ///< no kernel of this version has them
  Rung rung = Rung::automatic;
  View lse{};    ///< result: float32 or float64, (B, H, T) in either layout, of Varlen (H, total T)
  View state{};  ///< result: the fold's (m, d, o): lse's shape + (2 + Dv,), float32 (float64 for float64 operands)
};

/// Memory that the caller lends for the time of a call; on a GPU it begins at a multiple of 256 bytes, as cudaMalloc's
/// does.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Where and with what a plan runs. No globals: an empty context is the default executor and the null stream.
struct Context {
  Executor* cpu = nullptr;
  void* stream = nullptr;  ///< a cudaStream_t
  Workspace* workspace = nullptr;
  /// CUDA: a call's kernels may begin while what the stream holds before the call ends, and use nothing that this reads
  /// or writes until it has ended (programmatic dependent launch, CUDA C++ Programming Guide). For many short calls
  /// after one another. What the stream's other kernels launch so must wait in the same way.
  bool overlap = false;
};

}  // namespace v0
}  // namespace softfold
