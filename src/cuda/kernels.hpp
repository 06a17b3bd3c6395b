// The CUDA backend's kernels; kernels.cc puts them in order of preference.
#pragma once

#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

using RowKernel = Kernel<RowProblem>;
using MergeKernel = Kernel<MergeProblem>;
using LossKernel = Kernel<LossProblem>;
using TopkKernel = Kernel<TopkProblem>;
using AttentionKernel = Kernel<AttentionProblem>;

/// Rows of several outer axes by the kernels of rows one stride apart, where these are faster.
extern const RowKernel by_outer_index_kernel;
/// Few short rows, plain or not: softmax and log_softmax, and their gradients.
extern const RowKernel softmax_small_rows_kernel, backward_small_rows_kernel;
/// The same of rows that lie side by side, but few together.
extern const RowKernel softmax_any_few_kernel, backward_any_few_kernel;
/// Of few elements: by that of the others that is faster there.
extern const RowKernel few_elements_kernel;
/// softmax and log_softmax of plain problems, with one read.
extern const RowKernel softmax_lane_rows_kernel, softmax_narrow_rows_kernel, softmax_odd_rows_kernel,
    softmax_warp_rows_kernel, softmax_chunk_pairs_kernel, softmax_block_rows_kernel, softmax_ring_kernel,
    softmax_cluster_stays_kernel, softmax_grid_few_kernel, softmax_cluster_row_kernel, softmax_grid_guesses_kernel,
    softmax_grid_ring_kernel, softmax_grid_row_kernel;
/// The same to another dtype, or to where y lies otherwise than x.
extern const RowKernel softmax_apart_rows_kernel, softmax_apart_stays_kernel, softmax_apart_cluster_kernel;
/// The same with two reads; logsumexp and state of plain problems.
extern const RowKernel softmax_long_rows_kernel, softmax_two_reads_kernel, fold_lane_rows_kernel,
    fold_narrow_rows_kernel, fold_odd_rows_kernel, fold_hidden_rows_kernel, fold_tiles_kernel;
/// The same with masks, lengths and scales a row.
extern const RowKernel softmax_lengths_warp_kernel, softmax_lengths_pairs_kernel, softmax_masked_pairs_kernel,
    softmax_masked_chunks_kernel, softmax_lengths_tiles_kernel, softmax_lengths_stay_kernel,
    softmax_masked_stays_kernel, softmax_hidden_rows_kernel, softmax_warp_rows_any_kernel,
    softmax_cluster_row_any_kernel;
/// What no kernel takes by vectors: other dtypes and alignments with any of these, elements that lie apart.
/// …_short: of what others take too.
extern const RowKernel softmax_any_short_kernel, softmax_any_rows_kernel, softmax_any_cluster_kernel,
    backward_any_short_kernel, backward_any_rows_kernel, backward_any_cluster_kernel;
/// The same of rows that no cluster holds, with two reads.
extern const RowKernel softmax_any_long_kernel, backward_any_long_kernel, backward_long_kernel;
/// float64: a group of lanes a row, a cluster a row, of plain rows one that stays for many, two reads; states that are
/// known.
extern const RowKernel softmax_double_rows_kernel, softmax_double_stays_kernel, softmax_double_cluster_kernel,
    softmax_double_twice_kernel, fold_double_rows_kernel, given_double_rows_kernel, backward_double_rows_kernel,
    backward_double_cluster_kernel, backward_double_long_kernel;
/// Ragged rows of it.
extern const RowKernel softmax_double_ragged_kernel, fold_double_ragged_kernel, backward_double_ragged_kernel;
/// softmax and log_softmax, logsumexp and state, and gradients along an outer axis.
extern const RowKernel softmax_across_rows_kernel, fold_across_rows_kernel;
/// logsumexp and state of rows that are not plain.
extern const RowKernel fold_masked_stays_kernel, fold_lengths_warp_kernel, fold_any_short_kernel, fold_any_rows_kernel;
/// Ragged rows.
extern const RowKernel softmax_ragged_rows_kernel, fold_ragged_rows_kernel, fold_listed_rows_kernel;
/// The same with masks and scales a row, of several dtypes, and as no vectors lie.
extern const RowKernel softmax_ragged_mixed_kernel, fold_ragged_mixed_kernel, backward_ragged_mixed_kernel;
/// The gradients of softmax and log_softmax with one read.
extern const RowKernel backward_lane_rows_kernel, backward_narrow_rows_kernel, backward_block_rows_kernel,
    backward_odd_rows_kernel, backward_warp_rows_kernel, backward_cluster_stays_kernel, backward_cluster_row_kernel,
    backward_ragged_kernel, backward_hidden_rows_kernel, backward_hidden_blocks_kernel, backward_hidden_stays_kernel;
/// Rows whose states are given: finish_softmax, finish_log_softmax, the gradients of logsumexp.
extern const RowKernel given_rows_kernel;
/// Rungs of the ladder, when asked for.
extern const RowKernel softmax_naive_kernel, softmax_safe_kernel, softmax_online_kernel;
/// Everything else: any dtype, stride, axis and length.
extern const RowKernel fold_generic_kernel, finish_generic_kernel, backward_generic_kernel, lse_backward_generic_kernel;

/// Attention: on Hopper's tensor cores; everything else.
extern const AttentionKernel attention_sm90_kernel, attention_portable_kernel;

std::span<const LossKernel> entropy_kernels(Op op);
extern const LossKernel cross_entropy_small_kernel;
std::span<const MergeKernel> merge_states_kernels();
std::span<const MergeKernel> merge_parts_kernels();

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
