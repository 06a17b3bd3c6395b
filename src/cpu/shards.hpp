// Shards of rows on the CPU, once their operands have been checked.
#pragma once

#include "front/shard_problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

void fold_shard(const ShardProblem& p, const Context& context);

/// What the partials of all rows have in common.
struct Whole {
  std::int64_t size, k;
  bool is_double, has_targets;
};
/// Looks at every partial; refuses (Code::state) what does not make up whole rows.
Whole check_partials(const RowProblem& p, const Gathered& partials);

/// Each writes what the problem's operands ask for; their n is the whole rows' size.
void join_states(const RowProblem& p, const Gathered& partials, bool is_double, const Context& context);
void join_cross_entropy(const LossProblem& p, const Gathered& partials, bool is_double, const Context& context);
void join_topk(TopkProblem& p, const Gathered& partials, bool is_double, const Context& context);

/// Draws from whole rows, of which p's x is a shard: q has the same rows, and the partials their places in it.
void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
