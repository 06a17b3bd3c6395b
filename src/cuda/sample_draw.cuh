// sample of plain rows, once one read has brought the states of their chunks or their largest elements: a warp draws.
// A row that these do not decide is left to sample_rows.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/sample.cuh"
#include "cuda/sample_kept.cuh"
#include "cuda/sample_row.cuh"
#include "cuda/topk_filter.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Elements beyond the k-th largest that are asked for: what equals it is kept too. With a greedy
/// row's largest one they are as many as a chunk has lanes, whose maxima bound them.
inline constexpr int kMostTies = 31;
/// Chunks of a row whose tree is built in shared memory.
inline constexpr int kSharedChunks = 256;

/// What decides a row's draw.
enum class DrawnBy { nothing, states, entries, all_elements };

/// What the rows' one read has left.
struct SampleWork {
  TopkShare share;                           ///< entries and nodes
  const fold::LogSumExp<float>::State* raw;  ///< nodes by the scale alone; null: share.nodes has them
  fold::LogSumExp<float>::State* trees;      ///< room for all levels a row, of rows of more than kSharedChunks
  unsigned* left;                            ///< a row: not 0 where it is left to sample_rows; null: none is
  fold::LogSumExp<float>::State* rows;       ///< a row's tree each, for those that sample_rows would have drawn
};

/// A warp's shared memory: the tree of a row that is not too long, and what it draws with.
struct DrawRoom {
  int nodes, rest;  ///< bytes
  DrawRoom(const TopkShare& share, std::int64_t chunks)
      : nodes(chunks <= kSharedChunks && share.nodes != nullptr ? static_cast<int>(2 * chunks + lift::kMaxLevels) * 16
                                                                : 0),
        rest(std::max(share.nodes == nullptr ? 0 : 2 * lift::kChunk * 4,
                      share.k * static_cast<int>(sizeof(Kept)) + static_cast<int>(sizeof(ChunkSums)))) {}
  SOFTFOLD_HD int bytes() const { return nodes + rest; }
};

/// The draws of a call, and which of their rows are drawn how.
struct SampleJob {
  SampleProblem p;
  SampleWork work;
  DrawRoom room;
  int most;    ///< entries that a row may have
  bool alike;  ///< rows have no options of their own: for topk_filter all are `every`
  bool keyed;  ///< rows have keys or counters of their own
  bool tells;  ///< more than tokens is asked for
  FilterRow every;

  struct Plan {
    DrawnBy by;
    int k;  ///< entries wanted
    bool greedy;
  };
  /// Of rows that are alike.
  Plan every_plan;
  fold::Scale<float> every_scale;

  SampleJob(const SampleProblem& problem, const SampleWork& work_, bool alike_)
      : p(problem),
        work(work_),
        room(work_.share, lift::chunk_count(problem.n)),
        most(work_.share.k),
        alike(alike_),
        keyed(p[SampleSlot::seeds].given || p[SampleSlot::offsets].given || p[SampleSlot::row_ids].given),
        tells(p[SampleSlot::log_probability].given || p[SampleSlot::rank].given),
        every(row_of(options())),
        every_plan(plan(options())),
        every_scale(options().scaled()) {}

  SOFTFOLD_HD DrawOptions options() const { return {p.scale, p.temperature, p.top_p, p.min_p, p.top_k}; }
  SOFTFOLD_HD bool tells_raw() const {
    return tells && p.of == Distribution::raw && p[SampleSlot::log_probability].given;
  }
  SOFTFOLD_HD Plan plan(const DrawOptions& draw) const {
    if (!draw.sound()) return {DrawnBy::nothing, 0, false};
    const bool greedy = draw.greedy();
    const bool cuts = draw.top_k > 0 && draw.top_k < p.n;
    std::int64_t k = most;  // the best of a row often have all that top-p and min-p leave
    if (greedy) {
      k = p[SampleSlot::rank].given ? 1 + kMostTies : 1;
    } else if (cuts) {
      k = draw.top_k + kMostTies;
    } else if (draw.top_p >= 1. && draw.min_p <= 0.) {
      // Another scale's states of the same row would be another fold.
      const bool other = tells_raw() && fold::make_scale<float>(draw.scale).c != draw.scaled().c;
      return {other && most > 0 ? DrawnBy::all_elements : DrawnBy::states, 0, greedy};
    } else if (draw.top_p < 1.) {
      k = 0;  // a share of the whole row
    }
    return k > 0 && k <= most ? Plan{DrawnBy::entries, static_cast<int>(k), greedy}
                              : Plan{DrawnBy::all_elements, 0, greedy};
  }
  SOFTFOLD_HD FilterRow row_of(const DrawOptions& draw) const {
    const Plan how = plan(draw);
    const auto scale = how.by == DrawnBy::entries ? fold::make_scale<float>(draw.scale) : draw.scaled();
    return {how.k, how.by == DrawnBy::states || (how.by == DrawnBy::entries && tells_raw()), lift::Factor(scale.c)};
  }
  /// For topk_filter.
  __device__ __forceinline__ FilterRow row(std::int64_t index) const {
    return alike ? every : row_of(Draw(SampleRowAt<PlainPlace>(p, index), index));
  }
  using Finish = class JoinedDraw;
};

/// Calls f.template operator()<E>() for the element type of plain rows.
template <class F>
__device__ __forceinline__ auto with_elements(DType t, const F& f) {
  switch (t) {
    case DType::bfloat16: return f.template operator()<fold::BFloat16>();
    case DType::float16: return f.template operator()<fold::Float16>();
    default: return f.template operator()<float>();
  }
}

/// A warp at the draw of one row. All lanes call every function together, and get its result.
class RowDraw {
 public:
  using Lse = fold::LogSumExp<float>;
  using State = Lse::State;
  static constexpr float kNone = -__builtin_inff();

  __device__ __forceinline__ RowDraw(const SampleJob& job, std::int64_t index)
      : job_(job),
        row_(job.p, index),
        draw_(draw_of(job, row_, index)),
        plan_(job.alike ? job.every_plan : job.plan(draw_)),
        scale_(job.alike ? job.every_scale : draw_.scaled()) {}

  __device__ __forceinline__ SampleJob::Plan plan() const { return plan_; }

  /// From the row's largest elements, best first, by means of the memory at `kept`. Returns whether they decided it.
  /// raw_tree(): the root of the tree by the scale alone.
  template <class RawTree>
  __device__ __forceinline__ bool from_entries(const Entry* best, int taken, Kept* kept, const RawTree& raw_tree) {
    const float top = taken > 0 ? value_of(best[0]) : kNone;
    // Whether all elements from there up are among the entries.
    const auto has_from = [&](float x) {
      return taken < plan_.k || value_of(best[taken - 1]) < x || value_of(best[taken - 1]) == kNone;
    };
    Drawn drawn{-1, Lse::identity()};
    if (fold::is_nan(top)) drawn.state = Lse::not_a_number();
    if (plan_.greedy) {
      if (!fold::is_nan(top) && top != kNone) drawn = {index_of(best[0]), {0., 1.F}};
      if (job_.p[SampleSlot::rank].given && drawn.token >= 0 && !has_from(top)) return false;
    } else if (fabsf(top) < fold::infinity<float>()) {
      const bool cuts = draw_.top_k > 0 && draw_.top_k < row_.row.n;
      const float kth = cuts ? value_of(best[draw_.top_k - 1]) : kNone;
      const float near = draw_.min_p > 0. ? fold::least_of_min_p(top, draw_.min_p, scale_.c) : kNone;
      const float both = fmaxf(kth, near);
      const float first = job_.p.order == FilterOrder::min_p_first ? both : kth;
      if (!has_from(draw_.top_p < 1. ? first : both)) return false;
      auto* sums = reinterpret_cast<ChunkSums*>(kept + job_.work.share.k);
      const bool few = lift::chunk_count(row_.row.n) <= ChunkSums::kMost;
      const KeptElements elements(kept, few ? sums : nullptr, scale_.c);
      float from = both;
      if (draw_.top_p < 1.) from = fmaxf(both, elements.weigh(best, taken, first, top, draw_.top_p));
      drawn = elements.draw(best, taken, from, draw_.uniform);
    } else if (top != kNone) {
      drawn.state = Lse::not_a_number();
    }
    const bool there = drawn.token >= 0;
    const State raw = there && job_.tells_raw() ? raw_tree() : Lse::identity();
    const float element = element_of(drawn);
    int rank = 0;
    if (job_.tells && job_.p[SampleSlot::rank].given) {
      for (int i = static_cast<int>(threadIdx.x) % 32; i < taken; i += 32) rank += value_of(best[i]) >= element ? 1 : 0;
      rank = __reduce_add_sync(lift::kWholeWarp, rank);
    }
    write(drawn, raw, element, rank);
    return true;
  }

  /// From the row's tree, whose root is given. sums: 2 * kChunk.
  template <class RawTree>
  __device__ __forceinline__ void from_tree(const State* nodes, const State& root, float* sums,
                                            const RawTree& raw_tree) {
    Drawn drawn{-1, root};
    if (fold::Normaliser<float>(root).regular) drawn.token = descend(nodes, root, sums);
    const bool there = drawn.token >= 0;
    const State raw = there && job_.tells_raw() ? raw_tree() : Lse::identity();
    const float element = element_of(drawn);
    write(drawn, raw, element, there && job_.p[SampleSlot::rank].given ? count_from(element) : 0);
  }

  /// There is nothing to draw from.
  __device__ __forceinline__ void nothing() { write({-1, Lse::not_a_number()}, Lse::identity(), kNone, 0); }

 private:
  /// Each operand that is asked about costs a read of constant memory that a kernel has not seen before.
  static __device__ __forceinline__ Draw draw_of(const SampleJob& job, const SampleRowAt<PlainPlace>& row,
                                                 std::int64_t index) {
    if (!job.alike || job.keyed) return Draw(row, index);
    return Draw(job.options(), fold::uniform(job.p.seed, job.p.offset, static_cast<std::uint64_t>(index)));
  }
  /// One of the elements of the chunk that the tree leads to.
  __device__ __forceinline__ std::int64_t descend(const State* nodes, const State& root, float* sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    fold::Descent way{fold::Scalar<double>::mul(draw_.uniform, static_cast<double>(root.d))};
    const std::int64_t chunk = leaf_of(nodes, lift::chunk_count(row_.row.n), way, root.m), begin = chunk * lift::kChunk;
    const double m = nodes[chunk].m;
    float v[lift::kPerLane];
    with_elements(job_.p[Slot::x].dtype, [&]<class E>() {
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) {
        const std::int64_t i = begin + lane + 32 * j;
        v[j] = i < row_.row.n ? fold::widen(reinterpret_cast<const E*>(row_.row.x)[i]) : kNone;
      }
    });
    float* own = sums + lift::kChunk + lane;
    if (Lse::is_fast(m)) {
      const lift::FrameTerms terms(scale_.c, Lse::narrow(m));
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j)
        own[32 * j] = fold::Scalar<float>::mul(terms.term<true>(v[j]), terms.unit);
    } else {
#pragma unroll
      for (int j = 0; j < lift::kPerLane; ++j) own[32 * j] = v[j];
#pragma unroll 1
      for (int j = 0; j < lift::kPerLane; ++j)
        own[32 * j] = own[32 * j] == kNone ? 0.F : fold::term_wide(own[32 * j], scale_.c, m);
    }
    __syncwarp();
#pragma unroll 1
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int k = lane; k < s; k += 32) sums[s + k] = fold::Scalar<float>::add(sums[2 * s + k], sums[3 * s + k]);
      __syncwarp();
    }
    return begin + place_of(sums, m, way, root.m);
  }

  /// What was drawn, where something that is told follows from it: a load takes as long as the tree.
  __device__ __forceinline__ float element_of(const Drawn& drawn) const {
    return job_.tells && drawn.token >= 0 ? row_.raw(drawn.token) : kNone;
  }
  __device__ __forceinline__ std::int64_t count_from(float x) const {
    unsigned long long count = 0;
    with_elements(job_.p[Slot::x].dtype, [&]<class E>() {
#pragma unroll 8
      for (std::int64_t i = threadIdx.x % 32; i < row_.row.n; i += 32)
        count += fold::widen(reinterpret_cast<const E*>(row_.row.x)[i]) >= x ? 1 : 0;
    });
    for (int distance = 16; distance > 0; distance /= 2) count += __shfl_xor_sync(lift::kWholeWarp, count, distance);
    return static_cast<std::int64_t>(count);
  }

  __device__ __forceinline__ void write(const Drawn& drawn, const State& raw, float element, std::int64_t rank) const {
    if (threadIdx.x % 32 != 0) return;
    const bool of_raw = job_.p.of == Distribution::raw, there = drawn.token >= 0;
    const bool point = !of_raw && plan_.greedy;
    row_.write_integer(SampleSlot::tokens, drawn.token);
    if (!job_.tells) return;
    row_.write_integer(SampleSlot::rank, !there ? 0 : point ? 1 : rank);
    const Operand& asked = job_.p[SampleSlot::log_probability];
    if (!asked.given) return;
    float lp = there ? 0.F : fold::canonical_nan<float>();
    if (there && !point) {
      const auto own = of_raw ? fold::make_scale<float>(draw_.scale) : scale_;
      fold::LogNormaliser<float> log_row(of_raw ? raw : drawn.state, own);
      log_row.set_c(own.c);
      lp = log_row.regular ? log_row.log_probability(element) : fold::canonical_nan<float>();
    }
    put(asked.dtype, asked.data + row_.place.offset(asked), lp);
  }

  const SampleJob& job_;
  SampleRowAt<PlainPlace> row_;
  Draw draw_;
  SampleJob::Plan plan_;
  fold::Scale<float> scale_;
};

inline constexpr int kDrawWarps = 4;

/// By a warp: one row, whose best elements or whose chunks' states are there. own: job.room.bytes() of shared memory.
/// Returns whether these decided it.
__device__ __forceinline__ bool draw_row(const SampleJob& job, RowDraw& draw, std::int64_t row, const Entry* best,
                                         int taken, char* own) {
  using State = fold::LogSumExp<float>::State;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SampleWork& work = job.work;
  const auto plan = draw.plan();
  const std::int64_t chunks = lift::chunk_count(job.p.n);
  State* nodes =
      job.room.nodes != 0 ? reinterpret_cast<State*>(own) : work.trees + row * (2 * chunks + lift::kMaxLevels);
  const auto root_of = [&](const State* leaves) {
    __syncwarp();
    for (std::int64_t i = lane; i < chunks; i += 32) nodes[i] = leaves[row * chunks + i];
    __syncwarp();
    return climb(nodes, chunks, lane, 32, [] { __syncwarp(); });
  };
  const auto raw_tree = [&] { return root_of(work.raw != nullptr ? work.raw : work.share.nodes); };
  char* rest = own + job.room.nodes;
  bool done = true;
  if (plan.by == DrawnBy::nothing) {
    draw.nothing();
  } else if (plan.by == DrawnBy::states) {
    const State root = root_of(work.share.nodes);
    draw.from_tree(nodes, root, reinterpret_cast<float*>(rest), raw_tree);
  } else {
    done = plan.by == DrawnBy::entries && draw.from_entries(best, taken, reinterpret_cast<Kept*>(rest), raw_tree);
  }
  if (work.left != nullptr && lane == 0) work.left[row] = done ? 0 : 1;
  return done;
}

/// Bytes of what a block draws with: behind the entries that it joins, or, for draw_from_all(), instead of them.
inline int joined_draw_bytes(const SampleJob& job) {
  constexpr int kAlone =
      static_cast<int>(sizeof(SampleBlocks<AnyElements>::Shared)) + kSampleWarps * SamplePart<AnyElements>::kBytes;
  return std::max(join_bytes(job.most) + job.room.bytes(), kAlone);
}

/// By a block, in `memory`: a row that its largest elements do not decide.
__device__ __noinline__ inline void draw_from_all(const SampleProblem& p, std::int64_t row, char* memory,
                                                  fold::LogSumExp<float>::State* nodes) {
  auto& shared = *reinterpret_cast<SampleBlocks<AnyElements>::Shared*>(memory);
  SampleTeam team(shared.mail, 1, 0);
  const SampleShare share{1, kSampleWarps, static_cast<int>(lift::chunk_count(p.n)), kSampleWarps};
  sample_row<AnyElements>(p, row, team, share, shared, nodes);
}

/// By the block of a cluster that joins a row's segments: the draw.
class JoinedDraw {
 public:
  __device__ __forceinline__ JoinedDraw(const SampleJob& job, std::int64_t row)
      : job_(job), row_(row), draw_(job, row) {}
  __device__ __forceinline__ void operator()(const fold::LogSumExp<float>::State&, const Entry* best, int taken) {
    extern __shared__ __align__(16) char memory[];
    const SampleWork& work = job_.work;
    if (!work.share.joins) return;
    bool done = true;
    if (threadIdx.x < 32) done = draw_row(job_, draw_, row_, best, taken, memory + join_bytes(job_.most));
    if (work.left != nullptr || __syncthreads_and(done ? 1 : 0) != 0) return;
    const std::int64_t room = 2 * lift::chunk_count(job_.p.n) + lift::kMaxLevels;
    draw_from_all(job_.p, row_, memory, work.rows + row_ * room);
  }

 private:
  const SampleJob& job_;
  std::int64_t row_;
  RowDraw draw_;
};

/// A warp a row; with kJoin a block, whose first warp draws from the best of all segments.
template <bool kJoin>
__global__ void __launch_bounds__(kJoin ? kJoinThreads : kDrawWarps * 32)
    sample_draw(const __grid_constant__ SampleJob job) {
  begin_in_order();
  extern __shared__ __align__(16) char memory[];
  __shared__ typename BlockSelect<1>::Shared shared;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = kJoin ? blockIdx.x : static_cast<std::int64_t>(blockIdx.x) * kDrawWarps + warp;
  if (row >= job.p.rows) return;
  RowDraw draw(job, row);
  const auto plan = draw.plan();
  const TopkShare& share = job.work.share;
  char* own = memory + (kJoin ? 0 : warp * job.room.bytes());
  const Entry* best = share.entries + row * share.k;
  int taken = 0;
  if (plan.by == DrawnBy::entries) {
    if constexpr (kJoin) {
      Entry* to = reinterpret_cast<Entry*>(own + job.room.bytes());
      taken = join_entries(share, row, plan.k, shared, to);
      best = to;
    } else {
      for (int i = lane; i < plan.k; i += 32) taken += best[i] != 0 ? 1 : 0;
      taken = __reduce_add_sync(lift::kWholeWarp, taken);
    }
  }
  if (kJoin && warp != 0) return;
  draw_row(job, draw, row, best, taken, own);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
