// What the CPU offers for each operation.
#include "cpu/row_kernels.hpp"

namespace softfold {
inline namespace v0 {

std::span<const Kernel<RowProblem>> cpu_row_kernels(Op op) {
  switch (op) {
    case Op::softmax: return cpu::softmax_kernels();
    case Op::log_softmax: return cpu::log_softmax_kernels();
    case Op::logsumexp: return cpu::logsumexp_kernels();
    case Op::state: return cpu::state_kernels();
    case Op::finish_softmax:
    case Op::finish_log_softmax:
    case Op::finish_logsumexp: return cpu::finish_kernels(op);
    case Op::softmax_backward:
    case Op::log_softmax_backward:
    case Op::logsumexp_backward: return cpu::backward_kernels(op);
    default: return {};
  }
}

}  // namespace v0
}  // namespace softfold
