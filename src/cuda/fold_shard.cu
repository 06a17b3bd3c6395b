// fold_shard on the GPU: a block a row, in one read of its elements. The k largest are found before, by topk's kernels.
#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/shards.cuh"
#include "cuda/shards.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// A warp a chunk; the chunks of a group, the first a multiple of their number, are merged at once.
constexpr int kGroupLevel = 3, kGroup = 1 << kGroupLevel, kFoldThreads = 32 * kGroup;

/// Where the numbers of every row's partial lie.
struct PartialPlaces {
  lift::ShardLayout layout;
  std::int64_t head, nodes, tail, end;
  std::int64_t found;  ///< of the k largest, as many as topk has left there, their indices as integers

  explicit PartialPlaces(const ShardProblem& p)
      : layout(p.shard.offset, p.shard.offset + p.n, p.shard.size),
        head(kPartialWords + 2 * p.k),
        nodes(head + layout.first - layout.begin),
        tail(nodes + 2 * layout.nodes()),
        end(tail + layout.end - layout.last),
        found(std::min(p.k, p.n)) {}
};

/// A row's elements as they are folded, and its partial.
template <class T>
struct ShardRow : FoldedRow<T> {
  const ShardProblem& p;
  RowPlace place;
  double* to;

  __device__ __forceinline__ ShardRow(const ShardProblem& problem, const RowPlace& at)
      : FoldedRow<T>(problem, row_at(problem, at)),
        p(problem),
        place(at),
        to(reinterpret_cast<double*>(p[Slot::states].data + place.offset(p[Slot::states]))) {}

  __device__ __forceinline__ double number(std::int64_t i) const {
    return fold::canonical(static_cast<double>(this->element(i)));
  }
  /// By one thread: all that has one number.
  __device__ __forceinline__ void write_head() const {
    const Operand& targets = p[LossSlot::targets];
    const std::int64_t offset = p.shard.offset;
    std::int64_t t = -1;
    if (targets.given) t = integer_at(targets.dtype, targets.data + place.offset(targets));
    to[kVersion] = SOFTFOLD_BITS_VERSION;
    to[kDigits] = fold::Real<T>::kDigits;
    to[kScale] = fold::canonical(this->row.scale);
    to[kSize] = static_cast<double>(p.shard.size);
    to[kOffset] = static_cast<double>(offset);
    to[kLength] = static_cast<double>(p.n);
    to[kBest] = static_cast<double>(p.k);
    to[kHasTarget] = targets.given ? 1. : 0.;
    to[kTarget] = t >= offset && t - offset < p.n ? number(t - offset) : 0.;
    to[kTargetIndex] = t >= 0 && t < p.shard.size ? static_cast<double>(t) : -1.;
  }
  /// By all threads of the block: the largest elements' indices, the single elements, zeros behind all.
  __device__ __forceinline__ void write_singles(const PartialPlaces& places) const {
    const lift::ShardLayout& l = places.layout;
    for (std::int64_t j = threadIdx.x; j < p.k; j += kFoldThreads) {
      double* entry = to + kPartialWords + 2 * j;
      const std::int64_t index = j < places.found ? __double_as_longlong(entry[1]) : -1;
      if (j >= places.found) entry[0] = -fold::infinity<double>();
      entry[1] = index >= 0 ? static_cast<double>(p.shard.offset + index) : -1.;
    }
    for (std::int64_t i = threadIdx.x; i < l.first - l.begin; i += kFoldThreads) to[places.head + i] = number(i);
    for (std::int64_t i = threadIdx.x; i < l.end - l.last; i += kFoldThreads)
      to[places.tail + i] = number(l.last - l.begin + i);
    for (std::int64_t i = places.end + threadIdx.x; i < p.width; i += kFoldThreads) to[i] = 0.;
  }
};

/// The nodes of a shard, by a warp, from the states of one group of chunks after another.
template <class T>
class NodeWriter {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;

  __device__ __forceinline__ NodeWriter(const lift::ShardLayout& layout, double* to)
      : layout_(layout), chunk_(layout.first / lift::kChunk), level_(layout.level_at(chunk_)), to_(to) {}

  /// s: of chunk kGroup * group + lane; the identity where that is not in the shard's nodes, or lane is no such.
  __device__ __noinline__ void take(std::int64_t group, const State& s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t end = kGroup * (group + 1);
    State nodes[kGroupLevel + 1] = {s};
#pragma unroll
    for (int level = 1; level <= kGroupLevel; ++level) {
      const int distance = 1 << (level - 1);
      const State other = shuffle(nodes[level - 1], distance);
      nodes[level] = (lane & distance) == 0 ? Lse::merge(nodes[level - 1], other) : Lse::merge(other, nodes[level - 1]);
    }
    if (level_ > kGroupLevel) {  // the group is a part of one node
      if (lane == 0) open_.push(nodes[kGroupLevel]);
      if (chunk_ + (std::int64_t{1} << level_) > end) return;
      if (lane == 0) nodes[0] = open_.root(), open_ = {};
      return put(nodes[0], lane == 0);
    }
    while (chunk_ < end && chunk_ < layout_.stop()) {
      State node = nodes[0];
#pragma unroll
      for (int level = 1; level <= kGroupLevel; ++level)
        if (level == level_) node = nodes[level];
      put(node, lane == static_cast<int>(chunk_ % kGroup));
    }
  }

 private:
  __device__ __forceinline__ void put(const State& node, bool mine) {
    if (mine) to_[0] = node.m, to_[1] = fold::canonical(static_cast<double>(node.d));
    to_ += 2;
    chunk_ += std::int64_t{1} << level_;
    level_ = layout_.level_at(chunk_);
  }

  const lift::ShardLayout& layout_;
  std::int64_t chunk_;  ///< where the next node begins
  int level_;
  double* to_;
  lift::TreeBuilder<Lse> open_;  ///< of a node that is larger than a group
};

template <class T>
__global__ void __launch_bounds__(kFoldThreads, sizeof(T) == 4 ? 3 : 1)
    fold_shard_rows(const __grid_constant__ ShardProblem p, const __grid_constant__ PartialPlaces places) {
  begin_in_order();
  using Lse = fold::LogSumExp<T>;
  __shared__ typename Lse::State states[2][kGroup];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ShardRow<T> row(p, RowPlace(p, blockIdx.x));
  const lift::ShardLayout& l = places.layout;
  const std::int64_t first = l.first / lift::kChunk, stop = l.stop();
  if (threadIdx.x == 0) row.write_head();
  row.write_singles(places);
  NodeWriter<T> nodes(l, row.to + places.nodes);
  int turn = 0;
#pragma unroll 1
  for (std::int64_t group = first / kGroup; kGroup * group < stop; ++group, turn ^= 1) {
    const std::int64_t chunk = kGroup * group + warp;
    auto s = Lse::identity();
    if (chunk >= first && chunk < stop) s = row.chunk_state(chunk * lift::kChunk - l.begin);
    if (lane == 0) states[turn][warp] = s;
    __syncthreads();  // the next group's states go elsewhere, so that once is enough
    if (warp == 0) nodes.take(group, lane < kGroup ? states[turn][lane] : Lse::identity());
  }
}

/// The k largest elements, or as many as there are, into the partials.
void find_best(const ShardProblem& p, const PartialPlaces& places, const Context& context) {
  TopkProblem q;
  static_cast<RowProblem&>(q) = p;
  q.op = Op::topk;
  q.scale = 1;  // the order is the elements', whatever their scale
  q.k = places.found;
  q.sorted = true;
  q[Slot::scales].given = q[Slot::states].given = false;
  for (Operand& o : q.more) o.given = false;
  Operand &values = q[TopkSlot::values], &indices = q[TopkSlot::indices];
  values = indices = p[Slot::states];
  values.axis_stride = indices.axis_stride = 2 * sizeof(double);
  values.data += kPartialWords * sizeof(double);
  indices.data += (kPartialWords + 1) * sizeof(double);
  indices.dtype = DType::int64;
  for (const TopkKernel& kernel : cuda_topk_kernels())
    if (kernel.refuses(q, context) == nullptr) return kernel.run(q, context);
}

}  // namespace

void fold_shard(const ShardProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::states].data);
  const PartialPlaces places(p);
  Stream stream = stream_of(context);
  if (places.found > 0) {
    find_best(p, places, context);
    stream = stream.following();
  }
  const Grid grid{p.rows, kFoldThreads};
  if (p.is_double()) {
    launch("fold_shard_rows", fold_shard_rows<double>, grid, stream, p, places);
  } else {
    launch("fold_shard_rows", fold_shard_rows<float>, grid, stream, p, places);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
