// How a call finds its backend, and the kernel in it.
#pragma once

#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {

/// Whether tensors there are the CUDA backend's; else they are the CPU's. Refuses what no backend of this build has.
bool is_on_cuda(Device device);

/// Whether SOFTFOLD_WITHOUT, names with commas between them, tells plans to do without this kernel. Read by each
/// plan, if it is there when the first is made.
bool is_left_out(const char* kernel);

/// Null if a kernel is to do a problem, else why not.
template <class Problem>
const char* why_not(const Kernel<Problem>& k, const Problem& p, const Context& context) {
  return is_left_out(k.name) ? "SOFTFOLD_WITHOUT names it" : k.refuses(p, context);
}

/// The first of a backend's kernels that can do a problem; null: none can.
template <class Problem>
const Kernel<Problem>* first_able(const Problem& p, std::span<const Kernel<Problem>> kernels, const Context& context) {
  for (const auto& k : kernels)
    if (why_not(k, p, context) == nullptr) return &k;
  return nullptr;
}

}  // namespace v0
}  // namespace softfold
