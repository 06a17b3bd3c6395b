// The kernel tables of the merges.
#pragma once

#include "front/kernel.hpp"

#include <span>

namespace softfold {
inline namespace v0 {
namespace cpu {

std::span<const Kernel<MergeProblem>> merge_states_kernels();

inline const char* never_refuses(const MergeProblem&, const Context&) { return nullptr; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
