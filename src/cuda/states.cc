#include "cuda/states.hpp"

#include "front/choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kStateBytes = 4 * sizeof(double);

/// `state` of p's rows; its operand is contiguous over the rows where p has none.
RowProblem states_problem(const RowProblem& p) {
  RowProblem q = p;
  q.op = Op::state;
  q.rung = Rung::automatic;
  for (const Slot s : {Slot::y, Slot::dy, Slot::row}) q[s].given = false;
  Operand& o = q[Slot::states];
  if (o.given) return q;
  o = {nullptr, DType::float64, true, 0, {}};
  std::int64_t stride = kStateBytes;
  for (int d = p.outer_rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    o.strides[at] = stride;
    stride *= p.outer[at];
  }
  return q;
}

const RowKernel* kernel_for(const RowProblem& q, const Context& context) {
  return first_able(q, cuda_row_kernels(Op::state), context);
}

}  // namespace

const char* refuses_states(const RowProblem& p, const Context& context) {
  return kernel_for(states_problem(p), context) == nullptr ? "no kernel folds rows like these" : nullptr;
}

void RowStates::lay_out(const RowProblem& p, Parts& parts, const Context& context) {
  problem_ = states_problem(p);
  kernel_ = kernel_for(problem_, context);
  if (!p[Slot::states].given) problem_[Slot::states].data = parts.bytes_for<char>(kStateBytes * p.rows);
  const std::size_t bytes = kernel_->workspace != nullptr ? kernel_->workspace(problem_, context) : 0;
  workspace_ = {parts.bytes_for<char>(bytes), bytes};
}

void RowStates::run(const Context& context) const {
  if (problem_.rows == 0) return;
  Workspace lent = workspace_;
  Context own = context;
  own.workspace = &lent;
  kernel_->run(problem_, own);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
