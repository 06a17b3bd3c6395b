// sample_shard on the GPU: a few rows a block. A warp a row looks at the partials, brings the nodes that they have to
// their places in the row's tree, merges what lies above them, and goes down from the root. Where it comes to a node
// that this shard holds, the whole block folds what lies below that; in a chunk that cuts divide, partials have the
// elements.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/levels.cuh"
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
/// Shared memory for the trees of a block of several rows.
constexpr std::int64_t kTreeBytes = 32 << 10;

/// Threads that work together, of which this is `me`.
struct DrawTeam {
  int me, count;
  static __device__ __forceinline__ DrawTeam warp() { return {static_cast<int>(threadIdx.x) % 32, 32}; }
  static __device__ __forceinline__ DrawTeam block() { return {static_cast<int>(threadIdx.x), kDrawThreads}; }
  __device__ __forceinline__ void sync() const { count == 32 ? __syncwarp() : __syncthreads(); }
};

/// A row's tree as far as its nodes are known: node i has the children 2 i and 2 i + 1, chunk j is node leaves + j.
class KnownTree {
 public:
  __device__ __forceinline__ KnownTree(State* nodes, std::int64_t leaves) : nodes_(nodes), leaves_(leaves) {}

  __device__ __forceinline__ void clear(const DrawTeam& team) const {
    for (std::int64_t i = team.me; i < 2 * leaves_; i += team.count) nodes_[i].d = kUnknown;
    team.sync();
  }
  __device__ __forceinline__ void put(std::int64_t chunk, int level, const State& s) const {
    nodes_[(leaves_ + chunk) >> level] = s;
  }
  __device__ __forceinline__ const State& operator[](std::int64_t node) const { return nodes_[node]; }

  /// Merges what is known below a node, of some level, and not where it is already.
  __device__ __forceinline__ void climb(std::int64_t node, int level, const DrawTeam& team) const {
    while (--level >= 0) {
      const std::int64_t first = node << level, end = first + (std::int64_t{1} << level);
      for (std::int64_t i = first + team.me; i < end; i += team.count) {
        if (knows(i) || !knows(2 * i)) continue;
        nodes_[i] = knows(2 * i + 1) ? Lse::merge(nodes_[2 * i], nodes_[2 * i + 1]) : nodes_[2 * i];
      }
      team.sync();
    }
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

/// Where a row's way down stands, in shared memory.
struct DrawPlace {
  enum class Next : int { nothing, look, own_node, divided };
  Next next;
  double row_m;
  std::int64_t node;
  fold::Descent way;
};

/// The way down a row's tree as far as the partials know it, by its warps.
struct WholeWay {
  const SampleProblem& p;
  const Shard& shard;
  const GatheredRow& whole;
  const KnownTree& tree;

  /// By one warp: whether there is something to draw from; then all nodes that the partials have are in the tree.
  __device__ __forceinline__ bool begin(const DrawOptions& options) const {
    if (!options.sound() || options.scaled().c == fold::infinity<float>() || !whole.are_sound()) return false;
    if (whole.is_double() || whole.size() != shard.size || whole.scale() != options.scale) return false;
    if (p.n > 0) {
      const double* own = whole.part_of(shard.offset);
      if (own[kOffset] != static_cast<double>(shard.offset) || own[kLength] != static_cast<double>(p.n)) return false;
    }
    tree.clear(DrawTeam::warp());
    for (std::int64_t i = threadIdx.x % 32; i < whole.parts(); i += 32) {
      const PartialPieces pieces(whole.part(i));
      const double* node = pieces.nodes;
      pieces.layout.for_nodes([&](std::int64_t chunk, int level) {
        tree.put(chunk, level, {node[0], static_cast<float>(node[1])});
        node += 2;
      });
    }
    return shard.size > 0;
  }
  /// By each of some warps: the chunks that cuts divide.
  __device__ __forceinline__ void put_divided(int warp, int warps) const {
    for (std::int64_t i = warp; i < whole.parts(); i += warps) {
      const std::int64_t chunk = whole.completed_by(PartialPieces(whole.part(i)).layout);
      if (chunk < 0) continue;
      const State s = whole.divided_state<float>(chunk);
      if (threadIdx.x % 32 == 0) tree.put(chunk, 0, s);
    }
  }
  /// By one warp: from the root to a node that is one of a partial's, or a chunk that cuts divide.
  __device__ __forceinline__ void descend(double uniform, DrawPlace& to) const {
    tree.climb(1, tree.level_of(1), DrawTeam::warp());
    const State root = tree[1];
    DrawPlace place{DrawPlace::Next::nothing, root.m, 1, {0.}};
    if (fold::Normaliser<float>(root).regular) {
      place.way = {fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
      place.node = tree.descend(1, place.way, root.m);
      const std::int64_t begin = lift::kChunk * tree.chunk_of(place.node);
      if (whole.is_divided(tree.chunk_of(place.node))) {
        place.next = DrawPlace::Next::divided;
      } else if (begin >= shard.offset && begin < shard.offset + p.n) {
        place.next = DrawPlace::Next::own_node;
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) to = place;
  }
};

/// The rest of the way, by a block. All threads call every function together; the first warp gets the results.
class ShardDraw {
 public:
  /// sums: 2 kChunk.
  __device__ __forceinline__ ShardDraw(const WholeWay& way, const Row& row, float* sums)
      : way_(way), tree_(way.tree), row_(way.p, row), sums_(sums) {}

  /// The element of the whole row, if the shard has it; else -1. place: in shared memory, and followed to its end.
  __device__ __forceinline__ std::int64_t draw(DrawPlace& place) const {
    const std::int64_t offset = way_.shard.offset;
    const bool is_own = place.next == DrawPlace::Next::own_node;
    if (is_own && tree_.level_of(place.node) > 0) {
      fold_chunks(place.node);
      if (threadIdx.x < 32) go_on(place);
      __syncthreads();
    }
    const std::int64_t begin = lift::kChunk * tree_.chunk_of(place.node);
    if (is_own) {
      for (int i = static_cast<int>(threadIdx.x); i < lift::kChunk; i += kDrawThreads)
        sums_[lift::kChunk + i] = row_.element(begin - offset + i);
    } else {
      load_divided(begin / lift::kChunk);
    }
    const std::int64_t token = begin + in_chunk(place);
    __syncthreads();  // the sums have been read
    return token >= offset && token < offset + way_.p.n ? token : -1;
  }

 private:
  /// The shard's chunks below a node of its own, and what is between.
  __device__ __noinline__ void fold_chunks(std::int64_t node) const {
    const int level = tree_.level_of(node);
    const std::int64_t chunk = tree_.chunk_of(node), first = lift::kChunk * chunk - way_.shard.offset;
    const std::int64_t chunks = min(std::int64_t{1} << level, lift::chunk_count(way_.p.n - first));
    for (std::int64_t i = threadIdx.x / 32; i < chunks; i += kDrawWarps) {
      const State s = row_.chunk_state(first + i * lift::kChunk);
      if (threadIdx.x % 32 == 0) tree_.put(chunk + i, 0, s);
    }
    __syncthreads();
    tree_.climb(node, level, DrawTeam::block());
  }
  /// By a warp.
  __device__ __forceinline__ void go_on(DrawPlace& place) const {
    DrawPlace next = place;
    next.node = tree_.descend(next.node, next.way, next.row_m);
    __syncwarp();
    if (threadIdx.x == 0) place = next;
  }
  __device__ __noinline__ void load_divided(std::int64_t chunk) const {
    if (threadIdx.x < 32) {
      float v[lift::kPerLane];
      way_.whole.load_divided(chunk, v);
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) sums_[lift::kChunk + threadIdx.x + 32 * j] = v[j];
    }
    __syncthreads();
  }
  /// From a chunk, whose elements lie behind its sums, to one of them.
  __device__ __forceinline__ int in_chunk(const DrawPlace& place) const {
    const double m = tree_[place.node].m;
    for (int i = static_cast<int>(threadIdx.x); i < lift::kChunk; i += kDrawThreads) {
      float& v = sums_[lift::kChunk + i];
      v = v == -fold::infinity<float>() ? 0.F
          : Lse::is_fast(m)             ? fold::term<fold::Scalar<float>>(v, row_.scale.c, Lse::narrow(m))
                                        : fold::term_wide(v, row_.scale.c, m);
    }
    __syncthreads();
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < s; i += kDrawThreads)
        sums_[s + i] = fold::Scalar<float>::add(sums_[2 * s + i], sums_[3 * s + i]);
      __syncthreads();
    }
    fold::Descent way = place.way;
    return threadIdx.x < 32 ? place_of(sums_, m, way, place.row_m) : 0;
  }

  const WholeWay& way_;
  const KnownTree& tree_;
  FoldedRow<float> row_;
  float* sums_;
};

/// How rows are shared out: so many a block, and of each its tree's leaves.
struct DrawShare {
  int rows;
  std::int64_t leaves;
  State* trees;  ///< room for those of every block; null: they lie in shared memory
};

__device__ __forceinline__ void put_token(const SampleProblem& p, std::int64_t row, std::int64_t token) {
  const Operand& o = p[SampleSlot::tokens];
  put_integer(o.dtype, o.data + RowPlace(p, row).offset(o), token);
}

__global__ void __launch_bounds__(kDrawThreads, 3)
    sample_shard_rows(const __grid_constant__ SampleProblem p, const __grid_constant__ RowProblem q,
                      const __grid_constant__ Gathered partials, Shard shard, DrawShare share) {
  begin_in_order();
  extern __shared__ double memory[];
  __shared__ float sums[2 * lift::kChunk];
  __shared__ DrawPlace places[kDrawWarps];
  const int warps = kDrawWarps / share.rows, warp = static_cast<int>(threadIdx.x) / 32, mine = warp / warps;
  State* const trees = share.trees == nullptr ? reinterpret_cast<State*>(memory)
                                              : share.trees + blockIdx.x * share.rows * 2 * share.leaves;
  const auto tree_of = [&](int i) { return KnownTree(trees + i * 2 * share.leaves, share.leaves); };
  for (std::int64_t first = std::int64_t{blockIdx.x} * share.rows; first < p.rows;
       first += std::int64_t{gridDim.x} * share.rows) {
    const bool exists = first + mine < p.rows, leads = exists && warp % warps == 0;
    const std::int64_t index = exists ? first + mine : first;
    const GatheredRow whole(q, partials, index);
    const KnownTree tree = tree_of(mine);
    const WholeWay way{p, shard, whole, tree};
    DrawPlace& place = places[mine];
    double uniform = 0.;
    if (leads) {
      const Draw draw(SampleRow(p, index), index);
      uniform = draw.uniform;
      const bool begins = way.begin(draw);
      if (threadIdx.x % 32 == 0) place.next = begins ? DrawPlace::Next::look : DrawPlace::Next::nothing;
    }
    __syncthreads();
    if (exists && place.next == DrawPlace::Next::look) way.put_divided(warp % warps, warps);
    __syncthreads();
    const bool looks = leads && place.next == DrawPlace::Next::look;
    __syncwarp();
    if (looks) way.descend(uniform, place);
    __syncwarp();
    if (leads && threadIdx.x % 32 == 0 && place.next == DrawPlace::Next::nothing) put_token(p, index, -1);
    __syncthreads();
    for (int i = 0; i < share.rows && first + i < p.rows; ++i) {
      if (places[i].next == DrawPlace::Next::nothing) continue;
      const GatheredRow partials_of_row(q, partials, first + i);
      const KnownTree its_tree = tree_of(i);
      const WholeWay so_far{p, shard, partials_of_row, its_tree};
      const std::int64_t token = ShardDraw(so_far, row_at(p, RowPlace(p, first + i)), sums).draw(places[i]);
      if (threadIdx.x == 0) put_token(p, first + i, token);
    }
    __syncthreads();
  }
}

}  // namespace

void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(partials.first.data);
  DrawShare share{1, 1, nullptr};
  while (share.leaves < lift::chunk_count(shard.size)) share.leaves *= 2;
  const std::int64_t bytes = 2 * share.leaves * static_cast<std::int64_t>(sizeof(State));
  const int processors = traits_of(device.device()).processors;
  while (share.rows < kDrawWarps && 2 * share.rows * bytes <= kTreeBytes && p.rows > 2 * share.rows * processors)
    share.rows *= 2;
  const bool shared = share.leaves <= kSharedLeaves;
  std::int64_t blocks = ceil_div(p.rows, share.rows);
  if (!shared) blocks = std::min<std::int64_t>(blocks, 2 * processors);
  const Scratch scratch(shared ? 0 : static_cast<std::size_t>(blocks * bytes), context);
  share.trees = reinterpret_cast<State*>(scratch.data());
  const Grid grid{blocks, kDrawThreads, 1, shared ? static_cast<int>(share.rows * bytes) : 0};
  launch("sample_shard_rows", sample_shard_rows, grid, stream_of(context), p, q, partials, shard, share);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
