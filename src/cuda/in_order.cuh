// Programmatic dependent launch (PTX ISA, griddepcontrol): what Context::overlap asks of a kernel.
#pragma once

namespace softfold {
inline namespace v0 {
namespace cuda {

/// First in every kernel that is launched on a Stream, but for the two forms below; attention's are not, and begin when
/// all before them has ended. Lets the next kernel of the stream begin once all blocks of this one have begun, then
/// waits until the kernel before this one has ended and its writes are seen. Since every kernel waits, one that has
/// ended has all that came before it behind it. Costs nothing in a kernel that was launched without overlap.
__device__ __forceinline__ void begin_in_order() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

/// The same in the first kernel of a call, if later ones begin_before_wait(): these then begin after all that came
/// before the call has ended.
__device__ __forceinline__ void begin_first() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In a kernel that reads the call's inputs before it waits; all its blocks have to wait_for_before() before they read
/// anything else, or write. Right if the call's first kernel begins by begin_first(), or the one before was launched
/// without overlap, and no kernel since writes what is read so early.
__device__ __forceinline__ void begin_before_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
