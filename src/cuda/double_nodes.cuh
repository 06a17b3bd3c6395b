// Nodes of 16 bytes, as float64 has them: the tree over a row's chunks.
#pragma once

#include "cuda/tree_nodes.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The root over at(0) ... at(count - 1), up to 256 nodes of 16 bytes, by all lanes of a warp.
template <class Fold, class At>
__device__ __forceinline__ typename Fold::State merge_all(const At& at, int count) {
  constexpr int kRun = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, run = count <= 32 ? 1 : kRun;
  auto s = Fold::identity();
  if (run == 1) {
    if (lane < count) s = at(lane);
  } else {
    s = merge_few<Fold, kRun>([&](int i) { return at(kRun * lane + i); }, count - kRun * lane);
  }
#pragma unroll 1
  for (int distance = 1; distance * run < count; distance *= 2) s = Fold::merge(s, shuffle(s, distance));
  // The first lane has merged all.
  std::uint64_t words[2];
  memcpy(words, &s, sizeof(s));
  for (std::uint64_t& word : words) word = __shfl_sync(lift::kWholeWarp, word, 0);
  memcpy(&s, words, sizeof(s));
  return s;
}

/// Nodes of 16 bytes, one a chunk, from every warp of every block of a cluster to all of its blocks, and the tree over
/// them. Call begin() early and ready() before fold().
template <class Fold>
struct ClusterNodes : lift::ClusterStart {
  using State = typename Fold::State;
  using Words = lift::ClusterWords<std::uint64_t, 8>;
  struct Storage {
    State of[256 + 256 / 8];
    /// Lanes read runs of 8 neighbours: with a gap after every 8 they do not meet in a bank.
    __device__ __forceinline__ State& operator[](int chunk) { return of[chunk + chunk / 8]; }
  };

  static __device__ __forceinline__ State fold(Storage& storage, const State& own, int chunk, int chunks) {
    if (chunk < chunks) send(storage[chunk], own);
    Words::meet();
    return merge_all<Fold>([&](int i) { return storage[i]; }, chunks);
  }

 private:
  static __device__ __forceinline__ void send(State& local, const State& own) {
    static_assert(sizeof(State) == 16);
    std::uint64_t words[2];
    memcpy(words, &own, sizeof(own));
    auto* to = reinterpret_cast<std::uint64_t*>(&local);
    Words::template send<32>(to[0], words[0]);
    Words::template send<32>(to[1], words[1]);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
