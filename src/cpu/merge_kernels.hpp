// The kernel tables of the merges.
#pragma once

#include "front/kernel.hpp"

#include <span>

namespace softfold {
inline namespace v0 {
namespace cpu {

std::span<const Kernel<MergeProblem>> merge_states_kernels();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
