// softmax and log_softmax of plain rows that a block holds: every warp has its part of a row brought to shared memory
// by the copy engine, folds it in registers, and writes it. Nothing may be spilled here: what is goes to the L2 cache,
// beside the rows.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// float32: 32 elements a lane. 16 bit, whose time has half as many instructions an element: 64, of rows that fill
/// their warps, so that nothing is asked about their ends; others are faster by softmax_cluster_row.
template <class E>
struct BlockShape {
  static constexpr bool kWhole = sizeof(E) == 2;  ///< every warp's part is full and begins at a vector
  static constexpr int kCount = kWhole ? 64 : 32, kLanes = lift::kChunk / kCount;
  static constexpr int kGroups = 32 / kLanes;  ///< chunks a warp
  static constexpr int kRegisters = kWhole ? 96 : 64;
  static constexpr int kMostRuns = kWhole ? 2 : 1;  ///< rows a block, on their way to it together
  using Part = WarpPart<E, kLanes, kCount>;
  static constexpr int kRoom = kWhole ? whole_lines(Part::kBytes) : room_in_sectors(Part::kBytes);
  using Fold = lift::WarpFold<Part::kWidth, kLanes, kCount>;
};

/// A row has at most so many chunks.
inline constexpr int kBlockChunks = 16;

/// A warp's part of one of its block's rows. Found anew where it is needed: registers are for elements.
template <class E>
struct BlockPart : BlockShape<E>::Part {
  using Shape = BlockShape<E>;
  using Part = typename Shape::Part;
  std::int64_t row;
  unsigned begin;  ///< bytes from the row's first element

  __device__ __forceinline__ BlockPart(const PlainRows& p, char* memory, int runs, int run) {
    const unsigned warp = thread_index() / 32;
    constexpr unsigned kElements = Shape::kGroups * lift::kChunk;
    row = static_cast<std::int64_t>(blockIdx.x) * runs + run;
    begin = warp * (kElements * Part::kSize);
    this->first = p.x + row * p.x_stride + begin;
    this->place = memory + (static_cast<int>(warp) * runs + run) * Shape::kRoom;
    if constexpr (!Shape::kWhole) this->place = place_in_sectors(this->place, this->first);
    this->n =
        static_cast<int>(Shape::kWhole ? kElements : min(static_cast<unsigned>(p.n) - warp * kElements, kElements));
    this->chunks = (this->n + lift::kChunk - 1) / lift::kChunk;
    this->whole = Shape::kWhole || (p.joined && static_cast<unsigned>(p.n) % kElements == 0);
  }
  __device__ __forceinline__ char* y(const PlainRows& p) const { return p.y + row * p.y_stride + begin; }
};

/// What is known of each chunk of a row. It waits here, not in registers, while the row's chunks meet.
struct BlockChunks {
  lift::Node nodes[kBlockChunks];
  double far[kBlockChunks];   ///< m where the node is kFar: its state is then (m, node.d)
  float units[kBlockChunks];  ///< of the terms (WarpFold::Folded); negative where they are not dense

  /// By the kLanes lanes that hold the chunk.
  template <int kLanes, class Folded>
  __device__ __forceinline__ void put(const Folded& own, int chunks) {
    const auto chunk = static_cast<int>(thread_index() / kLanes);
    if (thread_index() % kLanes == 0 && chunk < chunks) put(own, chunk);
  }
  /// By one lane.
  template <class Folded>
  __device__ __forceinline__ void put(const Folded& own, int chunk) {
    const bool is_far = own.node.z == lift::kFar;
    nodes[chunk] = {own.node.z, is_far ? own.state.d : own.node.d};
    far[chunk] = own.state.m;
    units[chunk] = own.dense ? own.unit : -own.unit;
  }
  /// By all lanes of a warp.
  __device__ __forceinline__ lift::Root merge(int chunks) const {
    lift::Root root{lift::merge_run<1>([&](int i) { return nodes[i]; }, chunks), {}};
    if (root.node.z == lift::kFar) root.far = lift::merge_states_wide(State{this}, chunks);
    return root;
  }

 private:
  struct State {
    const BlockChunks* of;
    __device__ fold::LogSumExp<float>::State operator()(int i) const {
      const lift::Node& node = of->nodes[i];
      return node.z == lift::kFar ? fold::LogSumExp<float>::State{of->far[i], node.d} : lift::state_of(node);
    }
  };
};

/// A warp's terms to its part of the row's gradient, beside which the row's state goes.
template <class E, int kCount>
__device__ __forceinline__ void put_block_gradient(const PlainRows& p, const BlockPart<E>& part, float (&v)[kCount],
                                                   float least, float multiplier, const lift::Root& root) {
  using Shape = BlockShape<E>;
  using Part = typename Shape::Part;
  if (thread_index() == 0) p.states[part.row] = root.state();
  const int group = lane_index() / Shape::kLanes;
  char* y = part.y(p);
  char* chunk = y + group * (lift::kChunk * Part::kSize);
  put_gradient<E>(Tile<E, Shape::kLanes, kCount>(chunk), chunk, min(part.n - group * lift::kChunk, lift::kChunk), v,
                  least, multiplier, p.gradients[part.row], root, [&] {
                    uint4 raw[Part::kVectors];
#pragma unroll
                    for (int j = 0; j < Part::kVectors; ++j) raw[j] = Packed<E>::pack(v + j * Part::kWidth);
                    part.write(y, raw);
                  });
}

template <class E, Leaves kLeaves>
__global__ void __maxnreg__(BlockShape<E>::kRegisters)
    softmax_block_rows(const __grid_constant__ PlainRows p, int runs) {
  begin_in_order();
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  using Shape = BlockShape<E>;
  using Part = typename Shape::Part;
  constexpr int kCount = Shape::kCount, kLanes = Shape::kLanes, kMost = Shape::kMostRuns;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kBlockChunks][kMost];
  __shared__ BlockChunks row_chunks[kMost];
  const std::int64_t left = p.rows - static_cast<std::int64_t>(blockIdx.x) * runs;
  const int count = kMost > 1 && runs <= left ? runs : 1;
  if (lane_index() < count) {
    const int run = lane_index();
    CopyBarrier& barrier = landed[thread_index() / 32][run];
    const BlockPart<E> part(p, landing_memory, runs, run);
    barrier.init(1);
    CopyBarrier::publish();
    barrier.expect(part.bytes(p.x_begin, p.x_end));
    part.fetch(barrier, p.x_begin, p.x_end);
  }
  __syncwarp();
#pragma unroll 1
  for (int run = 0; run < count; ++run) {
    const auto own = [&] { return BlockPart<E>(p, landing_memory, runs, run); };
    float v[kCount];
    uint4 raw[Part::kVectors];
    const auto unpack = [&] {
#pragma unroll
      for (int j = 0; j < Part::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Part::kWidth);
    };
    landed[thread_index() / 32][run].wait(0);
    own().read(raw, lift::absent(p.factor.c), p.x_begin, p.x_end);
    const auto extremes = extremes_by_integers<E>(raw);
    unpack();
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    row_chunks[run].put<kLanes>(Shape::Fold::terms(v, p.factor.c, extremes), chunks);
    __syncthreads();
    const auto root = row_chunks[run].merge(chunks);
    const int chunk = min(static_cast<int>(thread_index() / kLanes), chunks - 1);
    const ChunkMultiplier multiplier(root, row_chunks[run].nodes[chunk], row_chunks[run].far[chunk]);
    const float unit = row_chunks[run].units[chunk],
                to_result = fold::Scalar<float>::mul(multiplier.value, fabsf(unit));
    if constexpr (kLeaves == Leaves::gradient) {
      put_block_gradient<E>(p, own(), v, unit > 0.F ? 0x1p-62F : 0.F, to_result, root);
      continue;
    }
    if (!multiplier.regular) {
      const auto part = own();
      fill<E, kLog>(part.y(p), nullptr, 0, lane_index(), 32, part.n, part.n, constant_of<kLog>(root.state(), p.empty));
      continue;
    }
    if constexpr (kLog) {  // the elements are still where they landed
      own().read_again(raw);
      unpack();
    }
    finish<kLog, Part::kWidth>(
        v, unit > 0.F, to_result, [&] { return p.log_normaliser(root.state()); },
        [&](int j) { raw[j] = Packed<E>::pack(v + j * Part::kWidth); });
    const auto part = own();
    part.write(part.y(p), raw);
  }
  if constexpr (!Shape::kWhole) bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
