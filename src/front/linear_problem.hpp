// linear_cross_entropy after every check, and the tables of its kernels.
#pragma once

#include "front/kernel.hpp"
#include "softfold/linear_options.hpp"

namespace softfold {
inline namespace v0 {

/// What linear_cross_entropy has beyond the loss. x and dx: one vector of `depth` elements a row; weight and dweight:
/// one a class, strides[0] from class to class; bias and dbias: one number a class. axis_stride is that of the vectors,
/// or from class to class of the biases.
enum class LinearSlot : std::uint8_t { x, weight, bias, dx, dweight, dbias, count };

/// The base is the cross-entropy of the logits, whose Slot::x and Slot::y are memory of the kernel's own: they are not
/// given, but Slot::x has the dtype of x.
struct LinearProblem : LossProblem {
  LinearMode mode;
  double softcap;
  std::int64_t depth;  ///< D
  std::array<Operand, static_cast<std::size_t>(LinearSlot::count)> linear;

  using LossProblem::operator[];
  constexpr const Operand& operator[](LinearSlot s) const { return linear[static_cast<std::size_t>(s)]; }
  Operand& operator[](LinearSlot s) { return linear[static_cast<std::size_t>(s)]; }

  constexpr bool has_gradient() const {
    return (*this)[LinearSlot::dx].given || (*this)[LinearSlot::dweight].given || (*this)[LinearSlot::dbias].given;
  }
};

void build_linear(LinearProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                  const LinearCrossEntropyOptions& options);

std::span<const Kernel<LinearProblem>> cpu_linear_kernels();
std::span<const Kernel<LinearProblem>> cuda_linear_kernels();
void check_cuda_memory(Device device, const LinearProblem& p);

}  // namespace v0
}  // namespace softfold
