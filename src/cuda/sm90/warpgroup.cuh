// What the roles of a block need beside data: registers moved between warp-groups, barriers among some of the warps.
#pragma once

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kWarpgroup = 128;  ///< threads; its first warp's index is a multiple of 4

/// setmaxnreg (PTX ISA 9.7.19.5): the registers a thread of this warp-group may use from here on, a multiple of 8.
/// Takes effect only in a kernel with a register cap, in a branch that a whole warp-group takes.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// bar.sync and bar.arrive (PTX ISA 9.7.13.1): barrier `id` (1 .. 15; 0 is __syncthreads') opens when `threads`
/// threads have come, of which those that only arrive do not wait.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
