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
  /// The address of `local`'s place in another block's shared memory.
  static __device__ __forceinline__ unsigned map(const void* local, unsigned to) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(local))), "r"(to));
    return address;
  }
  static __device__ __forceinline__ void store(unsigned address, std::uint64_t a) {
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(address), "l"(a) : "memory");
  }
};

/// Every warp of every block of the cluster brings the state of its chunk; every thread gets the row's. A block without
/// a cluster is a cluster of one. Call begin() early and ready() before the first fold(): no block may write to another
/// that has not started. Successive folds alternate between two storages.
template <int kMaxChunks>
struct ClusterFold {
  static_assert(kMaxChunks <= 256);
  using State = fold::LogSumExp<float>::State;
  struct Slot {
    Node node;
    double m;  ///< where the node is kFar: its state is then (m, node.d)
  };
  struct Storage {
    alignas(16) Slot slots[kMaxChunks];
  };

  static __device__ __forceinline__ void begin() {
    if (Cluster::size() > 1) Cluster::arrive();
  }
  static __device__ __forceinline__ void ready() {
    if (Cluster::size() > 1) Cluster::wait();
  }

  static __device__ __forceinline__ State fold(Storage& storage, const State& own, int chunk, int chunks) {
    return fold(storage, node_of(own), own, chunk, chunks).state();
  }
  /// For who has the chunk's state as a node too.
  static __device__ __forceinline__ Root fold(Storage& storage, const Node& own, const State& far, int chunk,
                                              int chunks) {
    const unsigned lane = threadIdx.x % 32;
    const bool is_far = own.z == kFar;
    Slot& slot = storage.slots[chunk];
    if (Cluster::size() == 1) {
      if (lane == 0 && chunk < chunks) {
        slot.node = {own.z, is_far ? far.d : own.d};
        if (is_far) slot.m = far.m;
      }
      __syncthreads();
    } else {
      if (lane < Cluster::size() && chunk < chunks) {
        const auto d = fold::bits_as<std::uint32_t>(is_far ? far.d : own.d);
        Cluster::store(Cluster::map(&slot.node, lane),
                       static_cast<std::uint64_t>(d) << 32 | static_cast<std::uint32_t>(own.z));
        if (is_far) Cluster::store(Cluster::map(&slot.m, lane), fold::bits_as<std::uint64_t>(far.m));
      }
      Cluster::arrive();
      Cluster::wait();
    }
    Root root{merge_some([&](int i) { return storage.slots[i].node; }, chunks), {}};
    if (root.node.z == kFar) root.far = merge_states_wide(Exact{&storage}, chunks);
    return root;
  }

 private:
  struct Exact {
    const Storage* storage;
    __device__ State operator()(int i) const {
      const Slot& slot = storage->slots[i];
      return slot.node.z == kFar ? State{slot.m, slot.node.d} : state_of(slot.node);
    }
  };
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
