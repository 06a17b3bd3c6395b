// How a call finds its backend, and the kernel in it.
#pragma once

#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {

/// Whether tensors there are the CUDA backend's; else they are the CPU's. Refuses what no backend of this build has.
bool is_on_cuda(Device device);

/// The first of a backend's kernels that can do a problem; null: none can.
template <class Problem>
const Kernel<Problem>* first_able(const Problem& p, std::span<const Kernel<Problem>> kernels, const Context& context) {
  for (const auto& k : kernels)
    if (k.refuses(p, context) == nullptr) return &k;
  return nullptr;
}

}  // namespace v0
}  // namespace softfold
