// The way down the tree of a row that lies in shards: from the root to a node that one of them holds, which goes on
// from there alone, or to a chunk that cuts divide, whose elements all of them know.
#pragma once

#include "cpu/gathered_row.hpp"
#include "cpu/sample_rows.hpp"

#include <vector>

namespace softfold {
inline namespace v0 {
namespace cpu {

class ShardSampler {
 public:
  using Lse = fold::LogSumExp<float>;
  using State = Lse::State;

  ShardSampler(const SampleProblem& p, const Shard& shard) : p_(p), shard_(shard), worker_(p) {}

  /// The row's element in the whole row if this shard holds it, else -1.
  std::int64_t draw(const GatheredRow& whole, const Row& r, std::int64_t index, double uniform) {
    read(whole);
    int level = 0;
    while ((std::int64_t{lift::kChunk} << level) < shard_.size) ++level;
    const State root = state(level, 0);
    if (!fold::Normaliser<float>(root).regular) return -1;
    fold::Descent way{uniform * static_cast<double>(root.d)};
    std::int64_t chunk = 0;
    const Node* node = held(level, chunk);
    for (; node == nullptr; node = held(level, chunk)) {
      const std::int64_t right = chunk + (std::int64_t{1} << --level);
      if (right < lift::chunk_count(shard_.size) &&
          way.goes_right(fold::mass_of(state(level, chunk), root.m), fold::mass_of(state(level, right), root.m)))
        chunk = right;
    }
    const float c = fold::make_scale<float>(whole.scale()).c;
    const std::int64_t begin = chunk * lift::kChunk;
    if (node->count > 0) {
      const Elements x{reinterpret_cast<const char*>(elements_.data() + node->first), DType::float32, node->count};
      const std::int64_t token = begin + worker_.descend_node(x, c, root.m, way);
      return token >= shard_.offset && token < shard_.offset + p_.n ? token : -1;
    }
    if (begin < shard_.offset || begin >= shard_.offset + p_.n) return -1;
    const Elements own = worker_.elements(r, index, false);
    const std::int64_t from = begin - shard_.offset;
    // Elements behind the row's length are in the node, but have no mass.
    const std::int64_t n = std::min(std::int64_t{lift::kChunk} << level, own.n - from);
    if (n <= 0) return -1;
    return begin + worker_.descend_node({static_cast<const char*>(own.at(from)), own.dtype, n}, c, root.m, way);
  }

 private:
  /// Of the tree; of a chunk that cuts divide, its elements are `count` from `first` on.
  struct Node {
    std::int64_t chunk;
    int level;
    State state;
    std::size_t first;
    int count;
  };

  void read(const GatheredRow& whole) {
    nodes_.clear();
    elements_.clear();
    whole.for_nodes<float>(
        [&](std::int64_t chunk, int level, const State& s) {
          nodes_.push_back({chunk, level, s, 0, 0});
        },
        [&](std::int64_t chunk, const float* x, int n, const State& s) {
          nodes_.push_back({chunk, 0, s, elements_.size(), n});
          elements_.insert(elements_.end(), x, x + n);
        });
  }

  const Node* held(int level, std::int64_t chunk) const {
    const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), chunk,
                                     [](const Node& n, std::int64_t place) { return n.chunk < place; });
    return at != nodes_.end() && at->chunk == chunk && at->level == level ? &*at : nullptr;
  }

  /// Of a node that is held, or lies above such.
  State state(int level, std::int64_t chunk) const {
    if (const Node* node = held(level, chunk)) return node->state;
    if (level == 0) return Lse::identity();  // of a row of no elements
    const std::int64_t right = chunk + (std::int64_t{1} << (level - 1));
    const State left = state(level - 1, chunk);
    return right < lift::chunk_count(shard_.size) ? Lse::merge(left, state(level - 1, right)) : left;
  }

  const SampleProblem& p_;
  Shard shard_;
  SampleWorker worker_;
  std::vector<Node> nodes_;
  std::vector<float> elements_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
