// softmax and log_softmax of plain rows by clusters that stay for many of them: each warp has its next rows' elements
// brought to shared memory while it folds, exchanges and writes this one, and no block waits for another but by what
// the row's chunks send it.
#pragma once

#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 64 elements a lane: a chunk takes 16 lanes, a warp two chunks. What a warp does once for its elements is then half
/// as much an element as with 32 a lane, and 8 warps and their registers leave room for another block.
template <class E>
struct StayShape {
  static constexpr int kCount = 64, kLanes = 16, kGroups = 2;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = kCount / kWidth;
  static constexpr int kElements = kGroups * lift::kChunk;  ///< of a warp
  static constexpr int kBytes = kElements * kSize + 16;     ///< of a landing place
  static constexpr int kStages = sizeof(E) == 2 ? 2 : 1;    ///< rows on their way to a warp
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<kWidth, kLanes, kCount>;
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

/// 16 bytes to another block's shared memory; its barrier counts them.
__device__ __forceinline__ void send_mail(unsigned to, unsigned barrier, const StayMail& mail) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(to),
               "l"(fold::bits_as<std::uint64_t>(mail.node)), "l"(fold::bits_as<std::uint64_t>(mail.far)), "r"(barrier)
               : "memory");
}
/// Returns once the phase of this parity is complete; what other blocks of the cluster sent is then visible.
__device__ __forceinline__ void wait_for_mail(CopyBarrier& barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(shared_address(&barrier.word)),
      "r"(parity)
      : "memory");
}

/// A warp's part of a row, on its way to shared memory and there.
template <class E>
struct StayPlace {
  using Shape = StayShape<E>;
  static constexpr int kSize = Shape::kSize, kWidth = Shape::kWidth;

  char* place;
  const char* first;  ///< the part's first element in x
  int n;              ///< its elements

  __device__ __forceinline__ int shift() const {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize;
  }
  using Span = typename Landing<E, 32>::Span;

  /// By one lane.
  __device__ __forceinline__ void fetch(CopyBarrier& barrier, const PlainRows& p) const {
    const Span span(first, n, p.x_begin, p.x_end);
    barrier.expect(span.bytes());
    if (span.bytes() > 0)
      barrier.copy(place + (span.begin - span.from), reinterpret_cast<const void*>(span.begin), span.bytes());
  }

  /// Once it has landed, by all lanes: the vectors of the lane's chunk. `missing` stands where no element is.
  __device__ __forceinline__ void read(uint4 (&raw)[Shape::kVectors], float missing, const PlainRows& p) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, group_lane = lane % Shape::kLanes;
    const bool cut = first < p.x_begin + 16 || first + Shape::kElements * kSize + 16 > p.x_end;
    if (n < Shape::kElements || (cut && shift() != 0)) repair(missing, cut);
    const uint4* at = reinterpret_cast<const uint4*>(place) + lane / Shape::kLanes * (lift::kChunk / kWidth);
#pragma unroll
    for (int j = 0; j < Shape::kVectors; ++j) raw[j] = at[group_lane + Shape::kLanes * j];
    // A chunk that begins inside a vector has its last elements behind its last slot: they go before its first.
    if (shift() == 0) return;
    const uint4 behind = at[lift::kChunk / kWidth];
    if (group_lane == 0) raw[0] = joined(raw[0], behind, shift() * kSize);
  }

 private:
  /// The first `bytes` bytes of `head`, the rest of `own`.
  static __device__ __forceinline__ uint4 joined(const uint4& own, const uint4& head, int bytes) {
    const auto pick = [&](unsigned a, unsigned b, int at) {
      const unsigned mask = bytes >= at + 4 ? 0xFFFFFFFFU : bytes > at ? 0xFFFFU : 0U;
      return (a & ~mask) | (b & mask);
    };
    return {pick(own.x, head.x, 0), pick(own.y, head.y, 4), pick(own.z, head.z, 8), pick(own.w, head.w, 12)};
  }

  /// What the copy may have left out, of a part at the ends of x's memory, and what is beyond the row's end.
  __device__ __forceinline__ void repair(float missing, bool cut) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, begin = shift(), end = n + begin;
    E* e = reinterpret_cast<E*>(place);
    const E nothing = Packed<E>::narrow(missing);
    if (cut && lane < kWidth) {
      const E* x = reinterpret_cast<const E*>(first);
      if (lane < n) e[lane + begin] = x[lane];
      if (lane < n) e[end - 1 - lane] = x[n - 1 - lane];
    }
    const int whole = (end + kWidth - 1) / kWidth;
    if (end + lane < whole * kWidth) e[end + lane] = nothing;
    E none[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) none[k] = nothing;
#pragma unroll 1
    for (int j = whole + lane; j < Shape::kBytes / 16; j += 32)
      reinterpret_cast<uint4*>(place)[j] = Packed<E>::join(none);
    __syncwarp();
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
  using Place = StayPlace<E>;
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
  const std::int64_t begin = static_cast<std::int64_t>(first_chunk) * (lift::kChunk * Shape::kSize);
  const auto place_of = [&](std::int64_t row, int stage) {
    return Place{memory + (warp * kStages + stage) * Shape::kBytes, p.x + row * p.x_stride + begin, n};
  };
  const auto fetch = [&](std::int64_t row, int stage) {
    if (lane == 0 && n > 0 && row < p.rows) place_of(row, stage).fetch(landed[warp][stage], p);
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
    uint4 raw[Shape::kVectors];
    place_of(row, stage).read(raw, lift::absent(p.factor.c), p);
    fence_for_copy();
    __syncwarp();
    fetch(row + std::int64_t{kStages} * clusters, stage);
#pragma unroll
    for (int j = 0; j < Shape::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Shape::kWidth);
    const auto extremes = Packed<E>::extremes(raw);
    const auto own = kLog ? Shape::Fold::reduce(v, p.factor.c, extremes) : Shape::Fold::terms(v, p.factor.c, extremes);
    // Exchange.
    const int turn = step % 2;
    StayBox& box = boxes[turn];
    if (chunk < chunks) {
      const bool is_far = own.node.z == lift::kFar;
      const StayMail mail{{own.node.z, is_far ? own.state.d : own.node.d}, own.state.m};
      for (unsigned to = static_cast<unsigned>(group_lane); to < Cluster::size(); to += Shape::kLanes)
        send_mail(Cluster::map(&box[chunk], to), Cluster::map(&arrived[turn], to), mail);
    }
    [[maybe_unused]] const GradientWords gradient(kLeaves == Leaves::gradient ? p.gradients + row : nullptr);
    wait_for_mail(arrived[turn], static_cast<unsigned>(step / 2) & 1U);
    if (threadIdx.x == 0) arrived[turn].expect(mail_bytes);
    const auto root = box.merge(chunks);
    // Write.
    const int count = min(max(static_cast<int>(p.n) - chunk * lift::kChunk, 0), lift::kChunk);
    char* y = p.y + row * p.y_stride + begin + lane / Shape::kLanes * (lift::kChunk * Shape::kSize);
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
