// sample_shard on the GPU: a block a row. The nodes that the partials have are brought to their places in the row's
// tree, and what lies above them is merged; one way leads down from the root. Where it comes to a node that this shard
// holds, what lies below that is folded from the shard's elements; in a chunk that cuts divide, partials have these.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/sample_row.cuh"
#include "cuda/shards.cuh"
#include "cuda/shards.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<float>;
using State = Lse::State;

constexpr int kDrawThreads = 256, kDrawWarps = kDrawThreads / 32;
/// Up to so many chunks a row, its tree lies in shared memory.
constexpr std::int64_t kSharedLeaves = 2048;

/// A row's tree as far as its nodes are known, by a block: node i has the children 2 i and 2 i + 1, chunk j is node
/// leaves + j.
class KnownTree {
 public:
  __device__ __forceinline__ KnownTree(State* nodes, std::int64_t leaves) : nodes_(nodes), leaves_(leaves) {}

  __device__ __forceinline__ void clear() const {
    for (std::int64_t i = threadIdx.x; i < 2 * leaves_; i += kDrawThreads) nodes_[i].d = kUnknown;
  }
  __device__ __forceinline__ void put(std::int64_t chunk, int level, const State& s) const {
    nodes_[(leaves_ + chunk) >> level] = s;
  }
  __device__ __forceinline__ const State& operator[](std::int64_t node) const { return nodes_[node]; }

  /// Merges what is known below a node, of some level, and not where it is already.
  __device__ __forceinline__ void climb(std::int64_t node, int level) const {
    while (--level >= 0) {
      const std::int64_t first = node << level, end = first + (std::int64_t{1} << level);
      __syncthreads();
      for (std::int64_t i = first + threadIdx.x; i < end; i += kDrawThreads)
        if (!knows(i) && knows(2 * i))
          nodes_[i] = knows(2 * i + 1) ? Lse::merge(nodes_[2 * i], nodes_[2 * i + 1]) : nodes_[2 * i];
    }
    __syncthreads();
  }
  /// From a node as far down as its children are known.
  __device__ __forceinline__ std::int64_t descend(std::int64_t node, fold::Descent& way, double row_m) const {
    while (node < leaves_ && knows(2 * node)) {
      node *= 2;
      if (knows(node + 1) && way.goes_right(fold::mass_of(nodes_[node], row_m), fold::mass_of(nodes_[node + 1], row_m)))
        ++node;
    }
    return node;
  }
  __device__ __forceinline__ int level_of(std::int64_t node) const { return __clzll(node) - __clzll(leaves_); }
  __device__ __forceinline__ std::int64_t chunk_of(std::int64_t node) const {
    return (node << level_of(node)) - leaves_;
  }

 private:
  static constexpr float kUnknown = -1.F;  // no sum of terms
  __device__ __forceinline__ bool knows(std::int64_t node) const { return !(nodes_[node].d < 0.F); }

  State* nodes_;
  std::int64_t leaves_;
};

/// A block at the draw of one row. All threads call every function together, and get its result.
class ShardDraw {
 public:
  __device__ __forceinline__ ShardDraw(const SampleProblem& p, const Shard& shard, const SampleRow& sampled,
                                       const GatheredRow& whole, const KnownTree& tree, float* sums)
      : p_(p), shard_(shard), row_(p, sampled.row), whole_(whole), tree_(tree), sums_(sums) {}

  /// The element of the whole row, if the shard has it; else -1.
  __device__ __forceinline__ std::int64_t draw(const DrawOptions& options, double uniform) {
    tree_.clear();
    const bool sound = options.sound() && options.scaled().c < fold::infinity<float>();
    if (__syncthreads_and(sound && whole_.are_sound(warp(), kDrawWarps) ? 1 : 0) == 0 || !fits(options.scale))
      return -1;
    put_nodes();
    tree_.climb(1, tree_.level_of(1));
    const State root = tree_[1];
    if (lift::chunk_count(shard_.size) == 0 || !fold::Normaliser<float>(root).regular) return -1;
    fold::Descent way{fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
    std::int64_t node = tree_.descend(1, way, root.m);
    const std::int64_t begin = lift::kChunk * tree_.chunk_of(node);
    if (whole_.is_divided(tree_.chunk_of(node))) {
      load_divided(tree_.chunk_of(node));
      const std::int64_t token = begin + in_chunk([&](int i) { return sums_[lift::kChunk + i]; }, node, way, root.m);
      return token >= shard_.offset && token < shard_.offset + p_.n ? token : -1;
    }
    if (begin < shard_.offset || begin >= shard_.offset + p_.n) return -1;
    fold_chunks(node);
    node = tree_.descend(node, way, root.m);
    const std::int64_t first = lift::kChunk * tree_.chunk_of(node), own = first - shard_.offset;
    return first + in_chunk([&](int i) { return row_.element(own + i); }, node, way, root.m);
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ bool leads() { return threadIdx.x % 32 == 0; }

  /// Whether the partials, which are sound, are of such rows, and one of them of this shard.
  __device__ __forceinline__ bool fits(double scale) const {
    if (whole_.is_double() || whole_.size() != shard_.size || whole_.scale() != scale) return false;
    if (p_.n == 0) return true;
    const double* own = whole_.part_of(shard_.offset);
    return own[kOffset] == static_cast<double>(shard_.offset) && own[kLength] == static_cast<double>(p_.n);
  }

  /// All nodes that the partials have, and the chunks that cuts divide.
  __device__ __forceinline__ void put_nodes() const {
    for (std::int64_t i = warp(); i < whole_.parts(); i += kDrawWarps) {
      const PartialPieces pieces(whole_.part(i));
      whole_.for_nodes(pieces, [&](std::int64_t chunk, int level, const double* node) {
        tree_.put(chunk, level, {node[0], static_cast<float>(node[1])});
      });
      const std::int64_t divided = whole_.completed_by(pieces.layout);
      if (divided < 0) continue;
      const State s = whole_.divided_state<float>(divided);
      if (leads()) tree_.put(divided, 0, s);
    }
  }

  /// The shard's chunks below a node of its own, and what is between.
  __device__ __noinline__ void fold_chunks(std::int64_t node) const {
    const int level = tree_.level_of(node);
    if (level == 0) return;
    const std::int64_t chunk = tree_.chunk_of(node), first = lift::kChunk * chunk - shard_.offset;
    const std::int64_t chunks = min(std::int64_t{1} << level, lift::chunk_count(p_.n - first));
    for (std::int64_t i = warp(); i < chunks; i += kDrawWarps) {
      const State s = row_.chunk_state(first + i * lift::kChunk);
      if (leads()) tree_.put(chunk + i, 0, s);
    }
    tree_.climb(node, level);
  }

  __device__ __noinline__ void load_divided(std::int64_t chunk) const {
    if (warp() == 0) {
      float v[lift::kPerLane];
      whole_.load_divided(chunk, v);
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) sums_[lift::kChunk + threadIdx.x + 32 * j] = v[j];
    }
    __syncthreads();
  }

  /// From a chunk to an element of it.
  template <class Element>
  __device__ __forceinline__ int in_chunk(const Element& element, std::int64_t leaf, fold::Descent& way,
                                          double row_m) const {
    const double m = tree_[leaf].m;
    for (int i = static_cast<int>(threadIdx.x); i < lift::kChunk; i += kDrawThreads) {
      const float v = element(i);
      sums_[lift::kChunk + i] = v == -fold::infinity<float>() ? 0.F
                                : Lse::is_fast(m) ? fold::term<fold::Scalar<float>>(v, row_.scale.c, Lse::narrow(m))
                                                  : fold::term_wide(v, row_.scale.c, m);
    }
    __syncthreads();
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < s; i += kDrawThreads)
        sums_[s + i] = fold::Scalar<float>::add(sums_[2 * s + i], sums_[3 * s + i]);
      __syncthreads();
    }
    return place_of(sums_, m, way, row_m);
  }

  const SampleProblem& p_;
  const Shard& shard_;
  FoldedRow<float> row_;
  const GatheredRow& whole_;
  const KnownTree& tree_;
  float* sums_;  ///< 2 kChunk
};

/// trees: room for one a block; null: it lies in shared memory.
__global__ void __launch_bounds__(kDrawThreads, 3)
    sample_shard_rows(const __grid_constant__ SampleProblem p, const __grid_constant__ RowProblem q,
                      const __grid_constant__ Gathered partials, Shard shard, std::int64_t leaves, State* trees) {
  begin_in_order();
  extern __shared__ double memory[];
  __shared__ float sums[2 * lift::kChunk];
  const KnownTree tree(trees == nullptr ? reinterpret_cast<State*>(memory) : trees + blockIdx.x * 2 * leaves, leaves);
  for (std::int64_t index = blockIdx.x; index < p.rows; index += gridDim.x) {
    const SampleRow sampled(p, index);
    const GatheredRow whole(q, partials, index);
    const Draw draw(sampled, index);
    const std::int64_t token = ShardDraw(p, shard, sampled, whole, tree, sums).draw(draw, draw.uniform);
    if (threadIdx.x == 0) sampled.write_integer(SampleSlot::tokens, token);
    __syncthreads();
  }
}

}  // namespace

void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(partials.first.data);
  std::int64_t leaves = 1;
  while (leaves < lift::chunk_count(shard.size)) leaves *= 2;
  const std::int64_t bytes = 2 * leaves * static_cast<std::int64_t>(sizeof(State));
  const bool shared = leaves <= kSharedLeaves;
  const std::int64_t blocks =
      shared ? p.rows : std::min<std::int64_t>(p.rows, 2 * traits_of(device.device()).processors);
  const Scratch scratch(shared ? 0 : static_cast<std::size_t>(blocks * bytes), context);
  const Grid grid{blocks, kDrawThreads, 1, shared ? static_cast<int>(bytes) : 0};
  launch("sample_shard_rows", sample_shard_rows, grid, stream_of(context), p, q, partials, shard, leaves,
         reinterpret_cast<State*>(scratch.data()));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
