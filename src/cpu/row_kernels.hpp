// The CPU's kernel tables, one per operation; kernels.cc hands them to the front.
#pragma once

#include "front/kernel.hpp"

#include <span>

namespace softfold {
inline namespace v0 {
namespace cpu {

using RowKernels = std::span<const Kernel<RowProblem>>;

RowKernels softmax_kernels();
RowKernels log_softmax_kernels();
RowKernels logsumexp_kernels();
RowKernels state_kernels();
RowKernels finish_kernels(Op op);
RowKernels backward_kernels(Op op);

/// The first rungs of the ladder (ladder.cc): softmax's alone.
const char* naive_refuses(const RowProblem& p, const Context&);
const char* safe_refuses(const RowProblem& p, const Context&);
const char* online_refuses(const RowProblem& p, const Context&);
void run_ladder(const RowProblem& p, const Context& context);

inline const char* tiled_refuses(const RowProblem& p, const Context&) { return refuses_rung(p.rung, Rung::tiled); }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
