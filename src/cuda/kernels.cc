// The order in which plans try the CUDA kernels.
#include "cuda/across_tiles.hpp"

namespace softfold {
inline namespace v0 {
namespace {

using namespace cuda;

const RowKernel kSoftmax[] = {softmax_small_rows_kernel,
                              softmax_any_few_kernel,
                              few_elements_kernel,
                              by_outer_index_kernel,
                              softmax_lane_rows_kernel,
                              softmax_narrow_rows_kernel,
                              softmax_odd_rows_kernel,
                              softmax_warp_rows_kernel,
                              softmax_ring_kernel,
                              softmax_grid_guesses_kernel,
                              softmax_chunk_pairs_kernel,
                              softmax_cluster_stays_kernel,
                              softmax_block_rows_kernel,
                              softmax_grid_few_kernel,
                              softmax_cluster_row_kernel,
                              softmax_grid_ring_kernel,
                              softmax_grid_row_kernel,
                              softmax_hidden_rows_kernel,
                              softmax_any_short_kernel,
                              softmax_lengths_warp_kernel,
                              softmax_apart_rows_kernel,
                              softmax_apart_stays_kernel,
                              softmax_apart_cluster_kernel,
                              softmax_long_rows_kernel,
                              softmax_two_reads_kernel,
                              softmax_lengths_pairs_kernel,
                              softmax_lengths_tiles_kernel,
                              softmax_lengths_stay_kernel,
                              softmax_masked_pairs_kernel,
                              softmax_masked_chunks_kernel,
                              softmax_warp_rows_any_kernel,
                              softmax_masked_stays_kernel,
                              softmax_cluster_row_any_kernel,
                              softmax_ragged_mixed_kernel,
                              softmax_ragged_rows_kernel,
                              softmax_across_short_kernel,
                              softmax_across_tiles_kernel,
                              softmax_across_columns_kernel,
                              softmax_across_columns_twice_kernel,
                              softmax_across_hidden_kernel,
                              softmax_across_hidden_twice_kernel,
                              softmax_across_rows_kernel,
                              softmax_any_rows_kernel,
                              softmax_any_cluster_kernel,
                              softmax_any_long_kernel,
                              softmax_double_rows_kernel,
                              softmax_double_stays_kernel,
                              softmax_double_cluster_kernel,
                              softmax_double_twice_kernel,
                              softmax_double_ragged_kernel,
                              fold_generic_kernel,
                              softmax_naive_kernel,
                              softmax_safe_kernel,
                              softmax_online_kernel};
const RowKernel kFold[] = {
    few_elements_kernel,      by_outer_index_kernel,   fold_lane_rows_kernel,      fold_narrow_rows_kernel,
    fold_any_short_kernel,    fold_odd_rows_kernel,    fold_hidden_rows_kernel,    fold_tiles_kernel,
    fold_masked_stays_kernel, fold_listed_rows_kernel, fold_ragged_mixed_kernel,   fold_ragged_rows_kernel,
    fold_lengths_warp_kernel, fold_any_rows_kernel,    fold_across_columns_kernel, fold_across_hidden_kernel,
    fold_across_rows_kernel,  fold_double_rows_kernel, fold_double_ragged_kernel,  fold_generic_kernel};
const RowKernel kFinish[] = {by_outer_index_kernel, given_rows_kernel, given_across_columns_kernel,
                             given_double_rows_kernel, finish_generic_kernel};
const RowKernel kBackward[] = {backward_small_rows_kernel,
                               backward_any_few_kernel,
                               few_elements_kernel,
                               by_outer_index_kernel,
                               backward_lane_rows_kernel,
                               backward_narrow_rows_kernel,
                               backward_any_short_kernel,
                               backward_odd_rows_kernel,
                               backward_hidden_rows_kernel,
                               backward_hidden_stays_kernel,
                               backward_hidden_blocks_kernel,
                               backward_warp_rows_kernel,
                               backward_block_rows_kernel,
                               backward_cluster_stays_kernel,
                               backward_cluster_row_kernel,
                               backward_across_columns_kernel,
                               backward_across_columns_twice_kernel,
                               backward_across_hidden_kernel,
                               backward_across_hidden_twice_kernel,
                               backward_any_rows_kernel,
                               backward_any_cluster_kernel,
                               backward_long_kernel,
                               backward_any_long_kernel,
                               backward_ragged_kernel,
                               backward_ragged_mixed_kernel,
                               backward_double_rows_kernel,
                               backward_double_cluster_kernel,
                               backward_double_long_kernel,
                               backward_double_ragged_kernel,
                               backward_generic_kernel};
const RowKernel kLseBackward[] = {by_outer_index_kernel, given_rows_kernel, given_across_columns_kernel,
                                  given_double_rows_kernel, lse_backward_generic_kernel};
const AttentionKernel kAttention[] = {attention_sm90_kernel, attention_portable_kernel};

}  // namespace

std::span<const Kernel<RowProblem>> cuda_row_kernels(Op op) {
  switch (op) {
    case Op::softmax:
    case Op::log_softmax: return kSoftmax;
    case Op::logsumexp:
    case Op::state: return kFold;
    case Op::finish_softmax:
    case Op::finish_log_softmax:
    case Op::finish_logsumexp: return kFinish;
    case Op::softmax_backward:
    case Op::log_softmax_backward: return kBackward;
    case Op::logsumexp_backward: return kLseBackward;
    default: return {};
  }
}

std::span<const Kernel<MergeProblem>> cuda_merge_kernels(Op op) {
  switch (op) {
    case Op::merge_states: return merge_states_kernels();
    case Op::merge_attention:
    case Op::merge_blocks: return merge_parts_kernels();
    default: return {};
  }
}

std::span<const Kernel<AttentionProblem>> cuda_attention_kernels() { return kAttention; }

}  // namespace v0
}  // namespace softfold
