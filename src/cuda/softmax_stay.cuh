// softmax and log_softmax of plain rows by clusters that stay for many of them: each warp has its next rows' elements
// brought to shared memory while it folds, exchanges and writes this one, and no block waits for another but by what
// the row's chunks send it.
#pragma once

#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 64 elements a lane: a chunk takes 16 lanes, a warp two chunks. What a warp does once for its elements is then half
/// as much an element as with 32 a lane, and 8 warps and their registers leave room for another block.
template <class E>
struct StayShape {
  static constexpr int kCount = 64, kLanes = 16, kGroups = 2;
  static constexpr int kElements = kGroups * lift::kChunk;  ///< of a warp
  static constexpr int kStages = sizeof(E) == 2 ? 2 : 1;    ///< rows on their way to a warp
  using Place = WarpPart<E, kLanes, kCount>;
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Place::kWidth, kLanes, kCount>;
};

/// What a chunk sends to all blocks of its row's cluster.
struct alignas(16) StayMail {
  lift::Node node;
  double far;  ///< m where the node is kFar: its state is then (m, node.d)
};

/// The mail of one row. Lanes read runs of up to 8 neighbours: with a gap after every 8 they hardly meet in a bank.
struct StayBox {
  static constexpr int kMostChunks = 256;
  StayMail mail[kMostChunks + kMostChunks / 8];
  __device__ __forceinline__ StayMail& operator[](int chunk) { return mail[chunk + chunk / 8]; }
  __device__ __forceinline__ const StayMail& operator[](int chunk) const { return mail[chunk + chunk / 8]; }

  struct State {
    const StayBox* box;
    __device__ fold::LogSumExp<float>::State operator()(int i) const {
      const StayMail& m = (*box)[i];
      return m.node.z == lift::kFar ? fold::LogSumExp<float>::State{m.far, m.node.d} : lift::state_of(m.node);
    }
  };
  __device__ __forceinline__ lift::Root merge(int chunks) const {
    lift::Root root{lift::merge_some([&](int i) { return (*this)[i].node; }, chunks), {}};
    if (root.node.z == lift::kFar) root.far = lift::merge_states_wide(State{this}, chunks);
    return root;
  }
};

/// A cluster of blocks a row, `clusters` rows at a time; p.factor is plain. Two boxes by turns: who sends a row's mail
/// has received that of the row before from every warp, and with it the word that they have read the row before that.
/// Warps without a chunk send no such word, so they take no part; the first warp of a block has one.
template <class E, Leaves kLeaves, int kThreads, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    softmax_cluster_stays(const __grid_constant__ PlainRows p, int clusters) {
  constexpr bool kLog = kLeaves == Leaves::log_softmax;
  using Shape = StayShape<E>;
  using Place = typename Shape::Place;
  using Cluster = lift::Cluster;
  constexpr int kStages = Shape::kStages;
  extern __shared__ __align__(16) char memory[];
  __shared__ StayBox boxes[2];
  __shared__ CopyBarrier arrived[2], landed[kThreads / 32][kStages];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group_lane = lane % Shape::kLanes;
  const int chunks = static_cast<int>(lift::chunk_count(p.n));
  const int first_chunk = (static_cast<int>(Cluster::rank() * (blockDim.x / 32)) + warp) * Shape::kGroups;
  const int chunk = first_chunk + lane / Shape::kLanes;
  const int n = min(max(static_cast<int>(p.n) - first_chunk * lift::kChunk, 0), Shape::kElements);  // of the warp
  const std::int64_t begin = static_cast<std::int64_t>(first_chunk) * (lift::kChunk * Place::kSize);
  const auto place_of = [&](std::int64_t row, int stage) {
    return Place{memory + (warp * kStages + stage) * Place::kBytes, p.x + row * p.x_stride + begin, n,
                 (n + lift::kChunk - 1) / lift::kChunk};
  };
  const auto fetch = [&](std::int64_t row, int stage) {
    if (lane != 0 || n == 0 || row >= p.rows) return;
    const Place place = place_of(row, stage);
    landed[warp][stage].expect(place.bytes(p.x_begin, p.x_end));
    place.fetch(landed[warp][stage], p.x_begin, p.x_end);
  };
  if (threadIdx.x < 2) arrived[threadIdx.x].init(1);
  if (lane < kStages) landed[warp][lane].init(1);
  CopyBarrier::publish();
  __syncthreads();
  const int mail_bytes = chunks * static_cast<int>(sizeof(StayMail));
  if (threadIdx.x < 2) arrived[threadIdx.x].expect(mail_bytes);
  const std::int64_t start = blockIdx.x / Cluster::size();
  for (int stage = 0; stage < kStages; ++stage) fetch(start + std::int64_t{stage} * clusters, stage);
  Cluster::arrive();
  Cluster::wait();

  int step = 0;
  for (std::int64_t row = start; n > 0 && row < p.rows; row += clusters, ++step) {
    // Fold: the landing place is free again as soon as its elements are in registers.
    float v[Shape::kCount];
    const int stage = step % kStages;
    landed[warp][stage].wait(static_cast<unsigned>(step / kStages) & 1U);
    uint4 raw[Place::kVectors];
    place_of(row, stage).read(raw, lift::absent(p.factor.c), p.x_begin, p.x_end);
    fence_for_copy();
    __syncwarp();
    fetch(row + std::int64_t{kStages} * clusters, stage);
#pragma unroll
    for (int j = 0; j < Place::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Place::kWidth);
    const auto extremes = Packed<E>::extremes(raw);
    const auto own = kLog ? Shape::Fold::reduce(v, p.factor.c, extremes) : Shape::Fold::terms(v, p.factor.c, extremes);
    // Exchange.
    const int turn = step % 2;
    StayBox& box = boxes[turn];
    if (chunk < chunks) {
      const bool is_far = own.node.z == lift::kFar;
      const lift::Node node{own.node.z, is_far ? own.state.d : own.node.d};
      for (unsigned to = static_cast<unsigned>(group_lane); to < Cluster::size(); to += Shape::kLanes)
        send_words(Cluster::map(&box[chunk], to), Cluster::map(&arrived[turn], to), fold::bits_as<std::uint64_t>(node),
                   fold::bits_as<std::uint64_t>(own.state.m));
    }
    [[maybe_unused]] const GradientWords gradient(kLeaves == Leaves::gradient ? p.gradients + row : nullptr);
    wait_for_words(arrived[turn], static_cast<unsigned>(step / 2) & 1U);
    if (threadIdx.x == 0) arrived[turn].expect(mail_bytes);
    const auto root = box.merge(chunks);
    // Write.
    const int count = min(max(static_cast<int>(p.n) - chunk * lift::kChunk, 0), lift::kChunk);
    char* y = p.y + row * p.y_stride + begin + lane / Shape::kLanes * (lift::kChunk * Place::kSize);
    const ChunkMultiplier multiplier(root, own.node, own.state.m);
    if constexpr (kLeaves == Leaves::gradient) {
      if (chunk == 0 && group_lane == 0) p.states[row] = root.state();
      const float unit = fold::Scalar<float>::mul(multiplier.value, own.unit);
      const GradientRow of = gradient.row();
      if (count > 0) put_gradient<E>(typename Shape::Elements(y), y, count, v, own.dense, unit, of, root);
    } else if (!multiplier.regular) {
      fill<E, kLog>(y, nullptr, 0, group_lane, Shape::kLanes, count, count, constant_of<kLog>(root.state(), p.empty));
    } else {
      finish<kLog>(v, own.dense, p.factor, fold::Scalar<float>::mul(multiplier.value, own.unit), root.state(), p.scale);
      if (count > 0) typename Shape::Elements(y).store(y, count, v);
    }
  }
  Cluster::arrive();  // nobody leaves while others still send
  Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
