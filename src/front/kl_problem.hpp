// The divergence of two rows, after every check.
#pragma once

#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {

/// What kl_divergence has beyond p's rows, whose gradient is Slot::y.
enum class KlSlot : std::uint8_t { q, dq, q_states, kl, dkl, count };

struct KlProblem : RowProblem {
  std::array<Operand, static_cast<std::size_t>(KlSlot::count)> more;

  using RowProblem::operator[];
  constexpr const Operand& operator[](KlSlot s) const { return more[static_cast<std::size_t>(s)]; }
  Operand& operator[](KlSlot s) { return more[static_cast<std::size_t>(s)]; }
};

/// q's rows as a problem of their own.
inline RowProblem rows_of_q(const KlProblem& p) {
  RowProblem q = p;
  q[Slot::x] = p[KlSlot::q];
  q[Slot::y] = p[KlSlot::dq];
  q[Slot::states] = p[KlSlot::q_states];
  return q;
}

void build_kl(KlProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
              const KlDivergenceOptions& options);

std::span<const Kernel<KlProblem>> cpu_kl_kernels(Op op);
std::span<const Kernel<KlProblem>> cuda_kl_kernels(Op op);
void check_cuda_memory(Device device, const KlProblem& p);

}  // namespace v0
}  // namespace softfold
