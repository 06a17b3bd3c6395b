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

/// The same for a kernel behind which others begin_before_wait(): these then begin after all that came before this one
/// has ended. Also later in a kernel that has used nothing so far that kernels before it of the call write: the one
/// behind may then read what these have written without waiting for this one's end.
__device__ __forceinline__ void begin_first() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In a kernel that reads some things before it waits; all its blocks have to wait_for_before() before they read
/// anything else, or write. Right if a kernel of this call, behind those that write what is read so early, has called
/// begin_first(); or, of what no kernel of this call writes, if the one before was launched without overlap.
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
