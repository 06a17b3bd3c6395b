// sample_shard on the GPU: a block a row. Its first warp goes down the tree that the partials have, to a node that one
// shard holds; all of them go on in this shard's elements, or in those of a chunk that cuts divide.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/sample_row.cuh"
#include "cuda/shards.cuh"
#include "cuda/shards.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<float>;

constexpr int kDrawThreads = 512;
/// A node of so many chunks has its tree in shared memory.
constexpr int kTreeLevel = 8, kTreeChunks = 1 << kTreeLevel;

/// Where the way down stands.
struct DrawPlace {
  std::int64_t chunk;  ///< of the whole row; -1: there is nothing to draw from
  int level;
  bool has_elements;  ///< the partials have the node's elements
  double row_m, chunk_m;
  fold::Descent way;
};

struct DrawMemory {
  DrawPlace place;
  float held[lift::kChunk], sums[2 * lift::kChunk];
  Lse::State nodes[2 * kTreeChunks];
};

/// What the CPU refuses.
__device__ bool may_draw(const SampleProblem& p, const Shard& shard, const GatheredRow& whole,
                         const DrawOptions& draw) {
  if (!draw.sound() || draw.scaled().c == fold::infinity<float>() || !whole.are_sound()) return false;
  if (whole.is_double() || whole.size() != shard.size || whole.scale() != draw.scale) return false;
  if (p.n == 0) return true;
  const double* own = whole.part_of(shard.offset);
  return own[kOffset] == static_cast<double>(shard.offset) && own[kLength] == static_cast<double>(p.n);
}

/// By a warp: from the root to a node that the partials have as one.
__device__ DrawPlace find_node(const GatheredRow& whole, double uniform, float* held) {
  const std::int64_t chunks = lift::chunk_count(whole.size());
  DrawPlace place{-1, 0, false, 0., 0., {0.}};
  const Lse::State root = whole.state(held);
  if (!fold::Normaliser<float>(root).regular) return place;
  place.row_m = root.m;
  place.way = {fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
  place.chunk = 0;
  while (std::int64_t{1} << place.level < chunks) ++place.level;
  const auto mass = [&](std::int64_t chunk) {
    return fold::mass_of(whole.state(chunk, chunk + (std::int64_t{1} << place.level), held), root.m);
  };
  GatheredRow::Held as = whole.holds(0, place.level);
  for (; as == GatheredRow::Held::not_as_one; as = whole.holds(place.chunk, place.level)) {
    const std::int64_t right = place.chunk + (std::int64_t{1} << --place.level);
    if (right >= chunks) continue;
    const double left_mass = mass(place.chunk);
    if (place.way.goes_right(left_mass, mass(right))) place.chunk = right;
  }
  place.has_elements = as == GatheredRow::Held::as_elements;
  if (place.has_elements) place.chunk_m = whole.state(place.chunk, place.chunk + 1, held).m;
  return place;
}

/// A block on its way through a row's elements. All threads call every function together, and get its result.
class BlockDraw {
 public:
  __device__ __forceinline__ BlockDraw(const FoldedRow<float>& row, DrawMemory& memory) : row_(row), memory_(memory) {}

  /// From a node of the shard, whose first chunk begins there, to an element.
  __device__ std::int64_t through_node(std::int64_t begin, DrawPlace place) {
    std::int64_t chunks = min(std::int64_t{1} << place.level, lift::chunk_count(row_.row.n - begin));
    for (int level = place.level; chunks > kTreeChunks;) {
      const std::int64_t half = std::int64_t{1} << --level;
      const std::int64_t middle = begin + half * lift::kChunk;
      if (chunks <= half) continue;
      const double left = fold::mass_of(fold(begin, half), place.row_m);
      const bool right = place.way.goes_right(left, fold::mass_of(fold(middle, chunks - half), place.row_m));
      if (right) begin = middle;
      chunks = right ? chunks - half : half;
    }
    fold(begin, chunks);
    const std::int64_t leaf = leaf_of(memory_.nodes, chunks, place.way, place.row_m);
    place.chunk_m = memory_.nodes[leaf].m;
    begin += leaf * lift::kChunk;
    return begin + through_chunk([&](int i) { return row_.element(begin + i); }, place);
  }

  /// From a chunk to an element of it.
  template <class Element>
  __device__ __forceinline__ int through_chunk(const Element& element, DrawPlace place) {
    const double m = place.chunk_m;
    for (int i = static_cast<int>(threadIdx.x); i < lift::kChunk; i += kDrawThreads) {
      const float v = element(i);
      memory_.sums[lift::kChunk + i] = v == -fold::infinity<float>() ? 0.F
                                       : Lse::is_fast(m)
                                           ? fold::term<fold::Scalar<float>>(v, row_.scale.c, Lse::narrow(m))
                                           : fold::term_wide(v, row_.scale.c, m);
    }
    __syncthreads();
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < s; i += kDrawThreads)
        memory_.sums[s + i] = fold::Scalar<float>::add(memory_.sums[2 * s + i], memory_.sums[3 * s + i]);
      __syncthreads();
    }
    return place_of(memory_.sums, m, place.way, place.row_m);
  }

 private:
  /// The state of some chunks; the tree of the last ones, up to kTreeChunks, is left in shared memory.
  __device__ __noinline__ Lse::State fold(std::int64_t begin, std::int64_t chunks) {
    lift::TreeBuilder<Lse> tree;
    for (std::int64_t first = 0; first < chunks; first += kTreeChunks) {
      const std::int64_t some = min(chunks - first, std::int64_t{kTreeChunks});
      __syncthreads();
      for (std::int64_t i = threadIdx.x / 32; i < some; i += kDrawThreads / 32) {
        const Lse::State s = row_.chunk_state(begin + (first + i) * lift::kChunk);
        if (threadIdx.x % 32 == 0) memory_.nodes[i] = s;
      }
      __syncthreads();
      const int me = static_cast<int>(threadIdx.x);
      tree.push(climb(memory_.nodes, some, me, kDrawThreads, [] { __syncthreads(); }), kTreeLevel);
    }
    return tree.root();
  }

  const FoldedRow<float>& row_;
  DrawMemory& memory_;
};

__global__ void __launch_bounds__(kDrawThreads)
    sample_shard_rows(const __grid_constant__ SampleProblem p, const __grid_constant__ RowProblem q,
                      const __grid_constant__ Gathered partials, Shard shard) {
  begin_in_order();
  __shared__ DrawMemory memory;
  const std::int64_t index = blockIdx.x;
  const SampleRow sampled(p, index);
  if (threadIdx.x < 32) {
    const GatheredRow whole(q, partials, index);
    const Draw draw(sampled, index);
    DrawPlace place{-1, 0, false, 0., 0., {0.}};
    if (may_draw(p, shard, whole, draw)) place = find_node(whole, draw.uniform, memory.held);
    if (threadIdx.x == 0) memory.place = place;
  }
  __syncthreads();
  const DrawPlace place = memory.place;
  const FoldedRow<float> row(p, sampled.row);
  BlockDraw block(row, memory);
  const std::int64_t begin = place.chunk * lift::kChunk;
  std::int64_t token = -1;
  if (place.chunk >= 0 && place.has_elements) {
    const std::int64_t n = shard.size - begin;
    token =
        begin + block.through_chunk([&](int i) { return i < n ? memory.held[i] : -fold::infinity<float>(); }, place);
    if (token < shard.offset || token >= shard.offset + p.n) token = -1;
  } else if (place.chunk >= 0 && begin >= shard.offset && begin < shard.offset + p.n) {
    token = shard.offset + block.through_node(begin - shard.offset, place);
  }
  if (threadIdx.x == 0) sampled.write_integer(SampleSlot::tokens, token);
}

}  // namespace

void sample_shard(const SampleProblem& p, const Shard& shard, const RowProblem& q, const Gathered& partials,
                  const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(partials.first.data);
  launch("sample_shard_rows", sample_shard_rows, {p.rows, kDrawThreads}, stream_of(context), p, q, partials, shard);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
