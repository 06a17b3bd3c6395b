// The draw from a few elements of a row, when all others have been taken away: the row's tree has few nodes then.
#pragma once

#include "cuda/sample_row.cuh"
#include "cuda/topk_select.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// An element that is kept, and the tree: element t and t + 1 part where their places first differ, and that node
/// belongs to t. A run of elements whose nodes have been joined is known at its ends.
struct alignas(16) Kept {
  fold::LogSumExp<float>::State node;  ///< of the run that begins here
  fold::LogSumExp<float>::State left;  ///< of what lies left of the node between this element and the next
  float x;
  std::uint32_t place;       ///< chunk, then the index in it with its bits reversed: the order of the tree's leaves
  std::int16_t first, last;  ///< of the run that ends, begins here
  std::int16_t root;         ///< the node of the run that begins here; -1: it is an element
  std::int16_t left_root;    ///< root of what lies left of this node
};

/// Of a row of few chunks: their sums in one frame, 0 where nothing is kept, and the first kept element of each.
struct ChunkSums {
  static constexpr int kMost = 128;  ///< four a lane
  alignas(16) float sum[kMost];
  std::int16_t first[kMost];
};

/// Elements by a warp, given best first, in `kept` of shared memory: at most 32 * kRun. c > 0 is finite, and so is the
/// largest element.
class KeptElements {
 public:
  using Lse = fold::LogSumExp<float>;
  static constexpr float kNone = -__builtin_inff();
  static constexpr int kRun = 8;

  /// sums: null where the row has too many chunks for them.
  __device__ __forceinline__ KeptElements(Kept* kept, ChunkSums* sums, float c)
      : kept_(kept), sums_(sums), c_(c), lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// The largest element such that those from it up have a share of at least top_p of those from `first` up.
  __device__ __forceinline__ float weigh(const Entry* best, int count, float first, float top, double top_p) const {
    const auto frame = Lse::frame(top, c_);
    unsigned long long weight[kRun], total = 0;
#pragma unroll
    for (int q = 0; q < kRun; ++q) {
      weight[q] = 0;
      if (32 * q >= count) continue;
      const int i = lane_ + 32 * q;
      const float v = i < count ? value_of(best[i]) : kNone;
      if (v > kNone && v >= first) weight[q] = fold::count_of(term(v, frame.m));
      total += weight[q];
    }
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(lift::kWholeWarp, total, distance);
    const std::uint64_t need = fold::share_of(top_p, total);
    unsigned long long before = 0;
    float reached = kNone;
#pragma unroll
    for (int q = 0; q < kRun; ++q) {
      if (before >= need) continue;
      const unsigned long long sum = sum_up_to(weight[q]);
      const unsigned here = __ballot_sync(lift::kWholeWarp, before + sum >= need);
      if (here != 0) reached = value_of(best[32 * q + __ffs(static_cast<int>(here)) - 1]);
      before += __shfl_sync(lift::kWholeWarp, sum, 31);
    }
    return reached;
  }

  /// One draw from those from `from` up.
  __device__ __forceinline__ Drawn draw(const Entry* best, int count, float from, double uniform) const {
    count = arrange(best, count, from);
    const auto top = Lse::frame(value_of(best[0]), c_), low = Lse::frame(value_of(best[count - 1]), c_);
    const bool near = top.fast && low.fast && top.m - low.m <= kNear;
    if (near && sums_ != nullptr) return draw_by_chunks(count, top.m, uniform);
    return near ? draw_arranged<true>(count, top.m, uniform) : draw_arranged<false>(count, top.m, uniform);
  }

 private:
  /// Frames that far from each other at most are as good as one, the largest: every rescale is exact, and the tree is
  /// plain additions.
  static constexpr double kNear = 60.;

  /// kOneFrame: all in the frame m, the row's.
  template <bool kOneFrame>
  __device__ __forceinline__ Drawn draw_arranged(int count, double m, double uniform) const {
    fold_leaves<kOneFrame>(count, m);
    join<kOneFrame>(count, ~0U);
    const Lse::State root = kept_[0].node;
    fold::Descent way{fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
    return {descend<kOneFrame>(way, 0, root.m), root};
  }
  /// In the frame m. Above the chunks the tree is four of them a lane, and then the lanes: which of its nodes have
  /// anything below them need not be known, for a sum with 0 is the other one.
  __device__ __forceinline__ Drawn draw_by_chunks(int count, double m, double uniform) const {
    using S = fold::Scalar<float>;
    reinterpret_cast<float4*>(sums_->sum)[lane_] = {0.F, 0.F, 0.F, 0.F};
    fold_leaves<true>(count, m);
    join<true>(count, lift::kChunk - 1);
    const auto chunk_of = [&](int i) { return kept_[i].place / lift::kChunk; };
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) {
      const std::uint32_t chunk = chunk_of(i);
      if (i > 0 && chunk_of(i - 1) == chunk) continue;
      sums_->sum[chunk] = kept_[i].node.d;
      sums_->first[chunk] = static_cast<std::int16_t>(i);
    }
    __syncwarp();
    const float4 own = reinterpret_cast<const float4*>(sums_->sum)[lane_];
    const float pair[2] = {S::add(own.x, own.y), S::add(own.z, own.w)};
    float level[6] = {S::add(pair[0], pair[1])};
#pragma unroll
    for (int i = 0; i < 5; ++i) level[i + 1] = S::add(level[i], __shfl_xor_sync(lift::kWholeWarp, level[i], 1 << i));
    fold::Descent way{fold::Scalar<double>::mul(uniform, static_cast<double>(level[5]))};
    int at = 0;
    const auto sum = [&](float of, int lane) { return static_cast<double>(__shfl_sync(lift::kWholeWarp, of, lane)); };
#pragma unroll
    for (int i = 4; i >= 0; --i)
      if (way.goes_right(sum(level[i], at), sum(level[i], at + (1 << i)))) at += 1 << i;
    const double four[4] = {sum(own.x, at), sum(own.y, at), sum(own.z, at), sum(own.w, at)};
    const bool upper = way.goes_right(sum(pair[0], at), sum(pair[1], at));
    const bool odd = way.goes_right(upper ? four[2] : four[0], upper ? four[3] : four[1]);
    return {descend<true>(way, sums_->first[4 * at + (upper ? 2 : 0) + (odd ? 1 : 0)], m), {m, level[5]}};
  }
  /// From the run of elements that begins at `at` to one of them.
  template <bool kOneFrame>
  __device__ __forceinline__ std::int64_t descend(fold::Descent& way, int at, double row_m) const {
#pragma unroll 1
    for (int node = kept_[at].root; node >= 0;) {
      const auto left = kept_[node].left, right = kept_[node + 1].node;
      const int left_root = kept_[node].left_root, right_root = kept_[node + 1].root;
      bool goes_right;
      if constexpr (kOneFrame) {
        goes_right = way.goes_right(static_cast<double>(left.d), static_cast<double>(right.d));
      } else {
        goes_right = chunks_part(node) ? way.goes_right(fold::mass_of(left, row_m), fold::mass_of(right, row_m))
                                       : goes_right_in_chunk(way, left, right.d, row_m);
      }
      at = goes_right ? node + 1 : node;
      node = goes_right ? right_root : left_root;
    }
    return static_cast<std::int64_t>(reversed(kept_[at].place));
  }
  /// Index to place and back.
  static __device__ __forceinline__ std::uint32_t reversed(std::uint32_t i) {
    constexpr std::uint32_t kIn = lift::kChunk - 1;
    return (i & ~kIn) | __brev(i & kIn) >> 22;
  }
  static __device__ __forceinline__ bool goes_right_in_chunk(fold::Descent& way, const Lse::State& left, float right,
                                                             double row_m) {
    const double unit = chunk_unit(left.m, row_m);
    return way.goes_right(static_cast<double>(left.d) * unit, static_cast<double>(right) * unit);
  }
  __device__ __forceinline__ float term(float x, double m) const {
    return Lse::is_fast(m) ? fold::term<fold::Scalar<float>>(x, c_, Lse::narrow(m)) : wide_term(x, c_, m);
  }
  static __device__ __noinline__ float wide_term(float x, float c, double m) { return fold::term_wide(x, c, m); }
  __device__ __forceinline__ int level_of(int node) const {
    return 31 - __clz(static_cast<int>(kept_[node].place ^ kept_[node + 1].place));
  }
  __device__ __forceinline__ bool chunks_part(int node) const { return level_of(node) >= 10; }

  /// The elements from `from` up by their places; how many there are.
  __device__ __forceinline__ int arrange(const Entry* best, int count, float from) const {
    float x[kRun];
    std::uint32_t place[kRun];
    int all = 0;
#pragma unroll
    for (int q = 0; q < kRun; ++q) {
      const int i = lane_ + 32 * q;
      x[q] = i < count ? value_of(best[i]) : kNone;
      place[q] = i < count ? reversed(index_of(best[i])) : 0;
      if (32 * q >= count) continue;
      const bool stays = x[q] > kNone && x[q] >= from;
      if (stays) kept_[i].place = place[q];
      if (!stays) x[q] = kNone;
      all += __popc(__ballot_sync(lift::kWholeWarp, stays));
    }
    __syncwarp();
    int rank[kRun] = {};
    const auto rank_of = [&](const auto& runs) {
#pragma unroll 4
      for (int j = 0; j < all; ++j) {
        const std::uint32_t other = kept_[j].place;
#pragma unroll
        for (int q = 0; q < runs.value; ++q) rank[q] += other < place[q] ? 1 : 0;
      }
    };
    if (all <= 64) {
      rank_of(std::integral_constant<int, 2>{});
    } else {
      rank_of(std::integral_constant<int, kRun>{});
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < kRun; ++q)
      if (x[q] != kNone) kept_[rank[q]].x = x[q], kept_[rank[q]].place = place[q];
    __syncwarp();
    return all;
  }

  /// Every element's term, in the frame m or that of its chunk.
  template <bool kOneFrame>
  __device__ __forceinline__ void fold_leaves(int count, double m) const {
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) {
      if constexpr (!kOneFrame) {
        const std::uint32_t chunk = kept_[i].place / lift::kChunk;
        float most = kept_[i].x;
        for (int j = i - 1; j >= 0 && kept_[j].place / lift::kChunk == chunk; --j) most = fmaxf(most, kept_[j].x);
        for (int j = i + 1; j < count && kept_[j].place / lift::kChunk == chunk; ++j) most = fmaxf(most, kept_[j].x);
        m = Lse::frame(most, c_).m;
      }
      kept_[i].node = {m, term(kept_[i].x, m)};
      kept_[i].first = kept_[i].last = static_cast<std::int16_t>(i);
      kept_[i].root = -1;
    }
    __syncwarp();
  }

  /// The tree, a level at a time, of those in `which`. What is not kept is the identity, so a node with one child is
  /// that child; within a chunk all frames agree, and a merge is the addition.
  template <bool kOneFrame>
  __device__ __forceinline__ void join(int count, unsigned which) const {
    unsigned levels = 0;
    int own[2] = {-1, -1};  // the first of the lane's nodes' levels, which are most often all
#pragma unroll 1
    for (int t = lane_; t + 1 < count; t += 32) {
      const int level = level_of(t);
      levels |= 1U << level;
      if (t < 32) own[0] = level;
      if (t >= 32 && t < 64) own[1] = level;
    }
    levels = __reduce_or_sync(lift::kWholeWarp, levels) & which;
#pragma unroll 1
    for (; levels != 0; levels &= levels - 1) {
      const int level = __ffs(static_cast<int>(levels)) - 1;
      if (own[0] == level) join_at<kOneFrame>(lane_);
      if (own[1] == level) join_at<kOneFrame>(lane_ + 32);
#pragma unroll 1
      for (int t = lane_ + 64; t + 1 < count; t += 32)
        if (level_of(t) == level) join_at<kOneFrame>(t);
      __syncwarp();
    }
  }
  template <bool kOneFrame>
  __device__ __forceinline__ void join_at(int t) const {
    const int first = kept_[t].first, last = kept_[t + 1].last;
    const Lse::State right = kept_[t + 1].node, left = kept_[first].node;
    const std::int16_t left_root = kept_[first].root;
    kept_[t].left = left;
    kept_[t].left_root = left_root;
    if constexpr (kOneFrame) {
      kept_[first].node.d = fold::Scalar<float>::add(left.d, right.d);
    } else {
      kept_[first].node = Lse::merge(left, right);
    }
    kept_[first].root = static_cast<std::int16_t>(t);
    kept_[first].last = static_cast<std::int16_t>(last);
    kept_[last].first = static_cast<std::int16_t>(first);
  }

  Kept* kept_;
  ChunkSums* sums_;
  float c_;
  int lane_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
