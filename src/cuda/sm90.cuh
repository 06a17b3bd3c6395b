// Hopper's asynchronous copies, in PTX's terms: a bulk copy from global to shared memory that completes on an mbarrier.
#pragma once

#include "softfold/config.hpp"

#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cuda {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Memory comes in sectors of 32 bytes, four a line. Where the copy engine has to put a sector across two of shared
/// memory, a softmax at copy speed takes 5 percent longer, a line across two 1 percent. So places for copies begin on a
/// line, and what is brought there lies to its sectors as it did where it came from.
inline constexpr int kCopyLine = 128, kCopySector = 32;
constexpr SOFTFOLD_HD int whole_lines(int bytes) { return (bytes + kCopyLine - 1) / kCopyLine * kCopyLine; }
/// Room for vectors that begin anywhere in a sector.
constexpr SOFTFOLD_HD int room_in_sectors(int bytes) { return whole_lines(bytes + kCopySector - 16); }
/// Where in such room, which begins on a line, the vectors around `from` lie.
__device__ __forceinline__ char* place_in_sectors(char* room, const char* from) {
  return room + (reinterpret_cast<std::uintptr_t>(from) & (kCopySector - 16));
}

/// A barrier in shared memory that threads arrive at and asynchronous copies complete.
struct CopyBarrier {
  std::uint64_t word;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(arrivals) : "memory");
  }
  /// Makes inits visible to the copy engine.
  static __device__ __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word)) : "memory");
  }
  /// As so many.
  __device__ __forceinline__ void arrive(int count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)), "r"(count) : "memory");
  }
  /// Returns once the phase of this parity is complete.
  __device__ __forceinline__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}\n" ::"r"(shared_address(&word)),
        "r"(parity)
        : "memory");
  }
  /// Whether that phase is complete; may wait a little.
  __device__ __forceinline__ bool is_complete(unsigned parity) const {
    int complete;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.s32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(complete)
        : "r"(shared_address(&word)), "r"(parity)
        : "memory");
    return complete != 0;
  }
  /// The same without waiting.
  __device__ __forceinline__ bool is_complete_now(unsigned parity) const {
    int complete;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.s32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(complete)
        : "r"(shared_address(&word)), "r"(parity)
        : "memory");
    return complete != 0;
  }
  /// bytes > 0; everything 16-byte aligned.
  __device__ __forceinline__ void copy(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&word))
                 : "memory");
  }
  /// The same, of what the L2 cache is to drop before other things.
  __device__ __forceinline__ void copy_once(void* to, const void* from, int bytes) {
    std::uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&word)), "l"(policy)
        : "memory");
  }
};

/// Makes what this thread wrote to shared memory visible to the copy engine.
__device__ __forceinline__ void fence_for_copy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// From shared to global memory; everything 16-byte aligned, bytes > 0.
__device__ __forceinline__ void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}

/// Waits until the thread's bulk stores have read shared memory.
__device__ __forceinline__ void bulk_drain() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
