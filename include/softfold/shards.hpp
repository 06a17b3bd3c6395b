// Rows whose elements are held in shards: a vocabulary cut over ranks. Each rank folds its own shard to a partial, the
// partials are brought together by whatever transport there is, and every rank joins them to the result of the whole
// row: the bits of the operation on the uncut row, wherever the cuts are (docs/shards.md).
//
//   softfold::fold_shard(x, partials, {.shard = {offset, size}, .targets = targets});  // x: elements [offset, ...)
//   all_gather(partials, gathered);                                      // (P, rows, width), in any order
//   softfold::join_cross_entropy(gathered, targets, loss, {.states = states});
//   softfold::cross_entropy_backward(x, targets, states, dloss, dx, {.shard = {offset, size}});
//
// On the CPU and on CUDA, with the same partials. Nothing here communicates.
#pragma once

#include "softfold/options.hpp"

namespace softfold {
inline namespace v0 {

/// Options of fold_shard.
struct ShardOptions {
  RowOptions rows{};   ///< of x; length and mask count the shard's own elements. No offsets, causal limits, rungs
  Shard shard{};       ///< which elements of the rows x holds
  View targets{};      ///< int32 or int64, rows, for join_cross_entropy: the rows' targets, of the whole rows' classes
  std::int64_t k = 0;  ///< for join_topk: the k largest, 0 .. shard.size
};

/// How many numbers of float64 a row's partial of a shard of n elements has; of the same k on all ranks. The ranks'
/// partials may have any larger width: the largest of theirs, where a transport wants one size.
SOFTFOLD_API std::int64_t partial_width(std::int64_t n, const Shard& shard, std::int64_t k = 0);

/// The partial of a shard, from its elements alone: its place and scale, complete nodes of the canonical tree, single
/// elements of chunks that a cut divides (none where cuts are multiples of 1024); the target's index and, where it has
/// it, element, the k largest elements and their indices in the whole row. x: (..., n); partials: float64, rows +
/// (width,).
SOFTFOLD_API void fold_shard(const View& x, const View& partials, const ShardOptions& options = {},
                             const Context& context = {});

/// The joins. partials: float64, (P,) + rows + (width,), those of P shards that together are the rows, in any order.
/// Refused before anything is written (Code::state): a gap, an overlap, shards of another scale, precision, size, k or
/// definition of the bits; another target than the one given here. On CUDA such rows give NaN, and indices of -1.

/// states: rows + (4,), what `state` gives of the whole rows. finish_logsumexp, finish_softmax and finish_log_softmax
/// take them, the latter with any shard.
SOFTFOLD_API void join_states(const View& partials, const View& states, const Context& context = {});

/// loss: as cross_entropy's of the whole rows, for partials that hold the targets' elements. options: reduction,
/// ignore_index, z_loss, weight (of all classes), log_probability, states, status and rows.empty. status: how many rows
/// are NaN on CUDA because the CPU would refuse them, or their targets.
SOFTFOLD_API void join_cross_entropy(const View& partials, const View& targets, const View& loss,
                                     const CrossEntropyOptions& options = {}, const Context& context = {});

/// values, indices: as topk's of the whole rows, rows + (k,), of as many as were folded or fewer. options: sorted,
/// probabilities, log_probabilities, lse and rows.empty.
SOFTFOLD_API void join_topk(const View& partials, const View& values, const View& indices,
                            const TopkOptions& options = {}, const Context& context = {});

/// tokens: int32 or int64, rows: the index in the whole rows that `sample` draws, where this shard has it, else -1, so
/// that the largest of all ranks' is the row's token. x: this rank's shard; partials: those of all shards, folded from
/// float32, float16 or bfloat16. options: rows as they were for fold_shard, with scale / temperature as the scale;
/// seed, offset, seeds, offsets, row_ids. Refused by name (Code::unsupported): a temperature, filters, bias, bitmask,
/// rows.empty, other results; scales whose product with log2(e) is beyond float32 (Code::data; on CUDA -1). The largest
/// element, which temperature 0 takes, is join_topk's with k = 1.
SOFTFOLD_API void sample_shard(const View& x, const View& partials, const View& tokens, const Shard& shard,
                               const SampleOptions& options = {}, const Context& context = {});

}  // namespace v0
}  // namespace softfold
