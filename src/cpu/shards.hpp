// Shards of rows on the CPU, once their operands have been checked.
#pragma once

#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// What stands at the head of a row's partial, each a number of float64. Then 2 k numbers, the largest elements and
/// their indices; the single elements before the nodes, the nodes (m, d), the single elements behind them.
enum PartialWord : std::uint8_t {
  kVersion,
  kDigits,
  kScale,
  kSize,
  kOffset,
  kLength,
  kBest,
  kHasTarget,
  kTarget,
  kTargetIndex,  ///< in the whole row, also where another shard holds the element; -1: none
  kPartialWords
};

/// Rows of x (Slot::x) to their partials (Slot::states, `width` numbers each), and where the targets lie.
struct ShardProblem : LossProblem {
  std::int64_t k, width;
};
void fold_shard(const ShardProblem& p, const Context& context);

/// The partials of all shards: part i of row r lies i * stride bytes behind where row r of `first` does.
struct Gathered {
  Operand first;
  std::int64_t parts, stride, width;
};

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
