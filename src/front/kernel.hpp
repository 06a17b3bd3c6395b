// The tables that plans choose from. A backend offers kernels for an operation in order of preference; the first whose
// `refuses` has no objection is taken, and the others' objections are what `explain` prints.
#pragma once

#include "front/problem.hpp"

#include <cstddef>
#include <span>

namespace softfold {
inline namespace v0 {

template <class Problem>
struct Kernel {
  const char* name;
  /// Null if the kernel can do this problem, else why not, in a few words.
  const char* (*refuses)(const Problem&, const Context&);
  void (*run)(const Problem&, const Context&);
  /// Bytes of Context::workspace that run() needs; null is none.
  std::size_t (*workspace)(const Problem&, const Context&);
  /// Of ragged rows, run() also writes what a result holds where no row is (outside.hpp); else plan.cc has it written.
  bool fills_outside = false;
};

/// The CPU's kernels for an operation on rows; empty if it has none.
std::span<const Kernel<RowProblem>> cpu_row_kernels(Op op);
/// The CPU's kernels for merge_states, merge_attention and merge_blocks.
std::span<const Kernel<MergeProblem>> cpu_merge_kernels(Op op);
/// The CPU's kernels for attention.
std::span<const Kernel<AttentionProblem>> cpu_attention_kernels();
/// The CPU's kernels for cross_entropy, entropy and their backward passes.
std::span<const Kernel<LossProblem>> cpu_loss_kernels(Op op);
/// The CPU's kernels for topk.
std::span<const Kernel<TopkProblem>> cpu_topk_kernels();
/// The CPU's kernels for sample.
std::span<const Kernel<SampleProblem>> cpu_sample_kernels();

// The CUDA backend's, which plan.cc asks where there is one.
std::span<const Kernel<RowProblem>> cuda_row_kernels(Op op);
std::span<const Kernel<MergeProblem>> cuda_merge_kernels(Op op);
std::span<const Kernel<AttentionProblem>> cuda_attention_kernels();
std::span<const Kernel<LossProblem>> cuda_loss_kernels(Op op);
std::span<const Kernel<TopkProblem>> cuda_topk_kernels();
std::span<const Kernel<SampleProblem>> cuda_sample_kernels();
/// Refuses operands that do not lie on the device that their views name (Code::device).
void check_cuda_memory(Device device, const RowProblem& p);
void check_cuda_memory(Device device, const MergeProblem& p);
void check_cuda_memory(Device device, const AttentionProblem& p);
void check_cuda_memory(Device device, const LossProblem& p);
void check_cuda_memory(Device device, const TopkProblem& p);
void check_cuda_memory(Device device, const SampleProblem& p);

}  // namespace v0
}  // namespace softfold
