// A row across the blocks of a thread block cluster (sm_90 and later): chunk states cross by distributed shared
// memory, one hop, one barrier.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace lift {

/// The block's place in its cluster and the cluster's barrier, in PTX's terms.
struct Cluster {
  static __device__ __forceinline__ unsigned rank() {
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
  }
  static __device__ __forceinline__ unsigned size() {
    unsigned n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
  }
  // The aligned forms want the warp's lanes together.
  static __device__ __forceinline__ void arrive() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }
  static __device__ __forceinline__ void wait() {
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  /// Stores two 64-bit words at `local`'s place in another block's shared memory.
  static __device__ __forceinline__ void store(const void* local, unsigned to, std::uint64_t a, std::uint64_t b) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(local))), "r"(to));
    asm volatile("st.shared::cluster.v2.b64 [%0], {%1, %2};" ::"r"(address), "l"(a), "l"(b) : "memory");
  }
};

/// Every warp of every block of the cluster brings the state of its chunk; every thread gets the row's. A block without
/// a cluster is a cluster of one. Call begin() early and ready() before the first fold(): no block may write to another
/// that has not started. Successive folds alternate between two storages.
template <int kMaxChunks>
struct ClusterFold {
  static_assert(kMaxChunks <= 256);
  using State = fold::LogSumExp<float>::State;
  struct Storage {
    alignas(16) State states[kMaxChunks];
  };

  static __device__ __forceinline__ void begin() {
    if (Cluster::size() > 1) Cluster::arrive();
  }
  static __device__ __forceinline__ void ready() {
    if (Cluster::size() > 1) Cluster::wait();
  }

  static __device__ __forceinline__ State fold(Storage& storage, const State& own, int chunk, int chunks) {
    const unsigned lane = threadIdx.x % 32;
    if (Cluster::size() == 1) {
      if (lane == 0 && chunk < chunks) storage.states[chunk] = own;
      __syncthreads();
    } else {
      if (lane < Cluster::size() && chunk < chunks)
        Cluster::store(&storage.states[chunk], lane, fold::bits_as<std::uint64_t>(own.m),
                       static_cast<std::uint64_t>(fold::bits_as<std::uint32_t>(own.d)));
      Cluster::arrive();
      Cluster::wait();
    }
    return merge_states([&](int i) { return storage.states[i]; }, chunks);
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
