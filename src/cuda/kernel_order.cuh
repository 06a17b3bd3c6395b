// Kernels that overlap: one that follows another on its stream may begin while that one ends.
#pragma once

#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A kernel launched by launch_following() may begin once every block of the one before has called release() or ended;
/// all of its threads call wait() before anything that the one before has to do with.
struct KernelOrder {
  static __device__ __forceinline__ void release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
  static __device__ __forceinline__ void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
};

template <class... Parameters, class... Arguments>
void launch_following(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
                      Arguments&&... arguments) {
  if (grid.blocks == 0) return;
  check_blocks(name, grid.blocks);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
