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
  /// Of what was written before, only that to the block's own shared memory is seen by who waits: others' answers,
  /// which arrive() waits for (2 us where memory has just been asked for much), are not.
  static __device__ __forceinline__ void arrive_shared() {
    __syncwarp();
    asm volatile(
        "fence.release.sync_restrict::shared::cta.cluster;\n\t"
        "barrier.cluster.arrive.relaxed.aligned;" ::
            : "memory");
  }
  /// Nothing that was written before has to be seen: blocks tell each other that they have begun, or are about to
  /// leave.
  static __device__ __forceinline__ void arrive_relaxed() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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
  static __device__ __forceinline__ void store(unsigned address, int a) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
  }
  static __device__ __forceinline__ unsigned load(unsigned address) {
    unsigned a;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(a) : "r"(address) : "memory");
    return a;
  }
};

/// Words of 8 bytes, one a chunk, from every warp of every block of a cluster to all of its blocks. A block without a
/// cluster is a cluster of one.
template <class Word, int kMaxChunks>
struct ClusterWords {
  static_assert(kMaxChunks <= 256 && sizeof(Word) == 8);
  alignas(16) Word words[kMaxChunks + kMaxChunks / 8];

  /// Lanes read runs of up to 8 neighbours: with a gap after every 8 they do not meet in a bank.
  __device__ __forceinline__ Word& operator[](int chunk) { return words[chunk + chunk / 8]; }
  __device__ __forceinline__ const Word& operator[](int chunk) const { return words[chunk + chunk / 8]; }

  /// By the kLanes lanes that hold a chunk: `own` to the place `local` in every block.
  template <int kLanes, class T>
  static __device__ __forceinline__ void send(T& local, const T& own) {
    const unsigned lane = threadIdx.x % kLanes;
    if (Cluster::size() == 1) {
      if (lane == 0) local = own;
    } else {
      for (unsigned to = lane; to < Cluster::size(); to += kLanes)
        Cluster::store(Cluster::map(&local, to), fold::bits_as<std::uint64_t>(own));
    }
  }
  static __device__ __forceinline__ void meet() {
    if (Cluster::size() == 1) {
      __syncthreads();
    } else {
      Cluster::arrive();
      Cluster::wait();
    }
  }
};

/// Who calls begin() early may call ready() before the first exchange: no block may write to another that has not
/// started.
struct ClusterStart {
  static __device__ __forceinline__ void begin() {
    if (Cluster::size() > 1) Cluster::arrive_relaxed();
  }
  static __device__ __forceinline__ void ready() {
    if (Cluster::size() > 1) Cluster::wait();
  }
};

/// Every warp of every block of the cluster brings the state of its chunk; every thread gets the row's. Call begin()
/// early and ready() before the first fold(). Successive folds alternate between two storages.
template <int kMaxChunks>
struct ClusterFold : ClusterStart {
  using State = fold::LogSumExp<float>::State;
  struct Storage {
    ClusterWords<Node, kMaxChunks> nodes;
    double far[kMaxChunks];  ///< m where the node is kFar: its state is then (m, node.d)
  };

  static __device__ __forceinline__ State fold(Storage& storage, const State& own, int chunk, int chunks) {
    return fold(storage, node_of(own), own, chunk, chunks).state();
  }
  /// For who has the chunk's state as a node too. A chunk is held by a group of kLanes neighbouring lanes.
  template <int kLanes = 32>
  static __device__ __forceinline__ Root fold(Storage& storage, const Node& own, const State& far, int chunk,
                                              int chunks) {
    using Words = ClusterWords<Node, kMaxChunks>;
    if (chunk < chunks) {
      const bool is_far = own.z == kFar;
      Words::template send<kLanes>(storage.nodes[chunk], Node{own.z, is_far ? far.d : own.d});
      if (is_far) Words::template send<kLanes>(storage.far[chunk], far.m);
    }
    Words::meet();
    Root root{merge_some([&](int i) { return storage.nodes[i]; }, chunks), {}};
    if (root.node.z == kFar) root.far = merge_states_wide(Exact{&storage}, chunks);
    return root;
  }

 private:
  struct Exact {
    const Storage* storage;
    __device__ State operator()(int i) const {
      const Node& node = storage->nodes[i];
      return node.z == kFar ? State{storage->far[i], node.d} : state_of(node);
    }
  };
};

/// The same for plain sums (fold::Sum), as gradients need them.
template <int kMaxChunks>
struct ClusterSum : ClusterStart {
  using Storage = ClusterWords<SumNode, kMaxChunks>;

  template <int kLanes = 32>
  static __device__ __forceinline__ SumNode fold(Storage& storage, const SumNode& own, int chunk, int chunks) {
    if (chunk < chunks) Storage::template send<kLanes>(storage[chunk], own);
    Storage::meet();
    return sum_some([&](int i) { return storage[i]; }, chunks);
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
