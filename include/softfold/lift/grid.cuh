// A row across blocks of a grid that runs as one (a cooperative launch): states cross by global memory.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace lift {

/// What the blocks of one row share in global memory.
struct GridExchange {
  fold::LogSumExp<float>::State* nodes;  ///< one a block of the row
  unsigned* arrived;                     ///< 0 before the row's first block arrives
  int blocks;                            ///< of the row, at most 1024
};

/// Each block brings a node of the tree, all of one level, blocks in the row's order; one warp of each block calls it,
/// and every lane of it gets the row's state. Successive rows of the same blocks alternate between two sets of nodes.
struct GridFold {
  using State = fold::LogSumExp<float>::State;

  /// Sends a block's node out, without waiting.
  static __device__ __forceinline__ void send(const GridExchange& exchange, const State& own, int block) {
    if (threadIdx.x % 32 != 0) return;
    store(exchange.nodes + block, own);
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(exchange.arrived) : "memory");
  }
  /// Waits for the nodes of all blocks of the row and merges them.
  static __device__ __forceinline__ State receive(const GridExchange& exchange) {
    if (threadIdx.x % 32 == 0) {
      unsigned seen;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(exchange.arrived) : "memory");
      } while (seen < static_cast<unsigned>(exchange.blocks));
    }
    __syncwarp();
    return merge_blocks([&](int i) { return load(exchange.nodes + i); }, exchange.blocks);
  }
  static __device__ __forceinline__ State fold(const GridExchange& exchange, const State& own, int block) {
    send(exchange, own, block);
    return receive(exchange);
  }

 private:
  static __device__ __forceinline__ void store(State* to, const State& s) {
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(&to->m), "d"(s.m) : "memory");
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(&to->d), "f"(s.d) : "memory");
  }
  static __device__ __forceinline__ State load(const State* from) {
    State s;
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(s.m) : "l"(&from->m) : "memory");
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(s.d) : "l"(&from->d) : "memory");
    return s;
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
