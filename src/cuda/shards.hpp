// Shards of rows on the GPU, once their operands have been checked. What is wrong with partials is found by the
// kernels: such a row's results are NaN.
#pragma once

#include "front/shard_problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

void fold_shard(const ShardProblem& p, const Context& context);

/// The problems' operands are results alone, and targets.
void join_states(const RowProblem& p, const Gathered& partials, const Context& context);
/// p.n: how many classes have a weight, where weights are given.
void join_cross_entropy(const LossProblem& p, const Gathered& partials, const Context& context);
void join_topk(const TopkProblem& p, const Gathered& partials, const Context& context);
/// q: p's rows as the partials lie.
void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context);

}  // namespace cuda

void check_cuda_memory(Device device, const Operand& o);

}  // namespace v0
}  // namespace softfold
