// The builders behind plan(): each checks one family's operands and brings them to the form its kernels read.
#pragma once

#include "front/problem.hpp"

#include <span>

namespace softfold {
inline namespace v0 {

void build_rows(RowProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                const RowOptions& options);
void build_merge(MergeProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                 const MergeOptions& options);
void build_attention(AttentionProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                     const AttentionOptions& options);
void build_loss(LossProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                const CrossEntropyOptions& options);
void build_entropy(LossProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                   const EntropyOptions& options);
void build_topk(TopkProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                const TopkOptions& options);
void build_sample(SampleProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                  const SampleOptions& options);

}  // namespace v0
}  // namespace softfold
