// sample: a row by a block, or by a cluster of blocks that keep it in shared memory if they have room for it. What the
// filters leave is found, folded chunk by chunk, and the draw goes down the row's tree.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/sample_nucleus.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The blocks of a row at work on it. All threads of all of them call every function together; what the first block's
/// get is the result.
template <class Elements>
class SampleBlocks {
 public:
  using Lse = fold::LogSumExp<float>;
  using State = Lse::State;
  using Word = SampleTeam::Word;
  using Row = typename Elements::Row;
  using Part = SamplePart<Elements>;
  static constexpr float kAll = Row::kAll;
  /// Of a row's tree, in shared memory.
  static constexpr int kSharedNodes = 512;

  struct alignas(16) Shared {
    union {
      SampleBins bins;
      struct {
        float sums[2 * lift::kChunk];
        State nodes[kSharedNodes];
      } tree;
    };
    SampleTeam::Mail mail;
    typename SampleSelect<Part>::Shared select;
    typename SampleNucleus<Part>::Shared nucleus;
    SampleList::Shared list;
    Word drawn[3];
  };

  /// nodes: room for every level of the row's tree, where that is more than kSharedNodes.
  __device__ __forceinline__ SampleBlocks(const Row& row, SampleTeam& team, const SampleShare& share, Shared& shared,
                                          State* nodes)
      : row_(row),
        team_(team),
        shared_(shared),
        part_(row, share, team.segment(), reinterpret_cast<char*>(&shared + 1)),
        n_(row.row.length),
        chunks_(lift::chunk_count(n_)),
        nodes_(room_for(row.row.n) > kSharedNodes ? nodes : nullptr) {}

  /// States of all levels of a row's tree.
  static SOFTFOLD_HD std::int64_t room_for(std::int64_t n) { return 2 * lift::chunk_count(n) + lift::kMaxLevels; }

  /// The largest element, to all blocks; NaN if there is one, -inf if there is none.
  __device__ float largest() { return team_.largest_element(largest_of_lane()); }
  /// The first of the elements that are as large; a draw from it alone, to all blocks.
  __device__ Drawn first_largest() {
    const float top = largest();
    if (fold::is_nan(top)) return {-1, Lse::not_a_number()};
    if (top == kAll) return {-1, Lse::identity()};
    std::uint32_t first = ~0U;
    part_.for_indices(n_, [&](float x, std::int64_t i) {
      if (x == top) first = min(first, static_cast<std::uint32_t>(i));
    });
    const Word last = team_.largest(Word{~__reduce_min_sync(lift::kWholeWarp, first)});
    return {static_cast<std::uint32_t>(~last), {0., 1.F}};
  }

  /// What the filters leave are the elements from this one up, to all blocks. NaN if the row is no distribution.
  __device__ float threshold(float c, const Draw& draw) {
    if (!draw.filters() || n_ == 0) {
      team_.sync();  // else done by what follows
      return kAll;
    }
    const float high = largest_of_lane(), top = team_.largest_element(high);
    if (!(fabsf(top) < fold::infinity<float>())) return top == kAll ? kAll : fold::canonical_nan<float>();
    SampleSelect<Part> select(team_, part_, shared_.bins, shared_.select);
    const SampleList list(team_, shared_.bins, shared_.mail, shared_.list);
    float kth = kAll;
    if (draw.top_k > 0 && draw.top_k < n_) {
      const auto wanted = static_cast<Word>(draw.top_k);
      const float low = at_most_kth(high, wanted);
      const float from = low == kAll ? fold::canonical_nan<float>() : threshold_of_few(list, low, top, c, draw);
      if (!fold::is_nan(from)) return from;
      kth = select.down_to(SampleRange(low, top), OneEach{}, [&](Word) { return wanted; });
    }
    return threshold_of(kth, top, c, draw, [&](const TermCount& count, float least) {
      typename SampleNucleus<Part>::Place at{least, top, 0};
      if (SampleNucleus<Part>::allows(part_, count))
        at = SampleNucleus<Part>(team_, part_, shared_.bins, list, shared_.nucleus, count).look(least, top, draw.top_p);
      const auto need = [&](Word total) { return at.need != 0 ? at.need : fold::share_of(draw.top_p, total); };
      return select.down_to(SampleRange(at.from, at.up_to), count, need);
    });
  }

  /// The state of the elements from `from` up, whose tree is left in the first block's nodes. Behind a sync() of all,
  /// as that block may have used what was in their place.
  __device__ State fold(float c, float from, bool of_raw) {
    part_.for_chunks(of_raw, [&](std::int64_t chunk, const uint4* place) {
      float v[lift::kPerLane];
      State s = Lse::identity();
      if (Part::read(v, place, from)) s = lift::WarpFold<Elements::kWidth>::terms(v, c).state;
      if (threadIdx.x % 32 == 0) put_node(chunk, s);
    });
    team_.sync();
    if (!team_.leads()) return Lse::identity();
    return climb(nodes(), chunks_, static_cast<int>(threadIdx.x), threads(), [] { __syncthreads(); });
  }

  /// One draw from the elements from `from` up.
  __device__ Drawn draw(float c, float from, double uniform) {
    if (chunks_ == 0) return {-1, Lse::identity()};
    if (fold::is_nan(from)) return {-1, Lse::not_a_number()};
    const State root = fold(c, from, false);
    if (!team_.leads() || !fold::Normaliser<float>(root).regular) return {-1, root};
    fold::Descent way{fold::Scalar<double>::mul(uniform, static_cast<double>(root.d))};
    const std::int64_t chunk = leaf_of(nodes(), chunks_, way, root.m);
    const State own = nodes()[chunk];
    terms_of(chunk, c, from, own.m);
    const int place = place_of(shared_.tree.sums, own.m, way, root.m);
    __syncthreads();
    return {chunk * lift::kChunk + place, root};
  }
  /// The first block's to all of them.
  __device__ Drawn share(const Drawn& drawn) {
    if (team_.leads() && threadIdx.x == 0) {
      team_.tell(shared_.drawn[0], static_cast<Word>(drawn.token));
      team_.tell(shared_.drawn[1], fold::bits_as<std::uint64_t>(drawn.state.m));
      team_.tell(shared_.drawn[2], fold::bits_as<std::uint32_t>(drawn.state.d));
    }
    team_.sync();
    return {static_cast<std::int64_t>(shared_.drawn[0]),
            {fold::bits_as<double>(std::uint64_t{shared_.drawn[1]}),
             fold::bits_as<float>(static_cast<std::uint32_t>(shared_.drawn[2]))}};
  }

  /// The distribution that was drawn from. `only`: the element that has all of it, or -1.
  __device__ void write_probabilities(const State& s, float c, float from, std::int64_t only) {
    const SampleProblem& p = row_.p;
    const fold::Normaliser<float> norm(s);
    if (norm.regular && only < 0 && Lse::is_fast(s.m)) {
      const PlainProbability probability(norm);
      return write(p[Slot::y], [&](float x) { return x >= from ? probability(x, c) : 0.F; });
    }
    const float multiplier = norm.multiplier(s.m);
    write_any(p[Slot::y], [&](float x, std::int64_t i) {
      if (norm.empty) return p.empty == Empty::nan ? fold::canonical_nan<float>() : 0.F;
      if (!norm.regular)
        return i < n_ && is_present(row_.row, p[Slot::mask].axis_stride, i) ? fold::canonical_nan<float>() : 0.F;
      if (only >= 0) return i == only ? 1.F : 0.F;
      return x != kAll && x >= from ? probability_of(x, c, s.m, multiplier) : 0.F;
    });
  }

  /// The logits, -inf where they were taken away. `only`: the one that stays, or -1.
  __device__ void write_masked(float from, std::int64_t only) {
    const Operand& o = row_.p[SampleSlot::masked];
    if (only >= 0) return write_any(o, [&](float x, std::int64_t i) { return i != only ? kAll : fold::canonical(x); });
    write(o, [&](float x) { return x < from ? kAll : fold::canonical(x); });
  }

  /// How many elements are at least x, which is above -inf; to all blocks.
  __device__ std::int64_t count_from(float x, bool of_raw) {
    unsigned count = 0;
    part_.for_each(of_raw, [&](float v) { count += v >= x ? 1U : 0U; });
    return static_cast<std::int64_t>(team_.sum(Word{__reduce_add_sync(lift::kWholeWarp, count)}));
  }

 private:
  /// result(element) of all of the row's.
  template <class Result>
  __device__ __forceinline__ void write(const Operand& o, const Result& result) {
    char* to = o.data + row_.place.offset(o);
    switch (o.dtype) {
      case DType::float16: return part_.template write<fold::Float16>(row_.row.n, to, o.axis_stride, result);
      case DType::bfloat16: return part_.template write<fold::BFloat16>(row_.row.n, to, o.axis_stride, result);
      case DType::float32: return part_.template write<float>(row_.row.n, to, o.axis_stride, result);
      default: return write_any(o, [&](float x, std::int64_t) { return result(x); });
    }
  }
  /// result(element, its index).
  template <class Result>
  __device__ __forceinline__ void write_any(const Operand& o, const Result& result) {
    char* to = o.data + row_.place.offset(o);
    part_.for_indices(row_.row.n, [&](float x, std::int64_t i) { put(o.dtype, to + i * o.axis_stride, result(x, i)); });
  }
  __device__ __forceinline__ float largest_of_lane() {
    float high = kAll;
    part_.for_each(false, [&](float x) { high = lift::most(high, x); });
    return high;
  }
  /// by_share(count, least): the largest element such that those from it up have top_p of those from `least` up.
  template <class ByShare>
  __device__ __forceinline__ float threshold_of(float kth, float top, float c, const Draw& draw,
                                                const ByShare& by_share) const {
    const float near = draw.min_p > 0. ? fold::least_of_min_p(top, draw.min_p, c) : kAll;
    const float both = fmaxf(kth, near);
    if (draw.top_p >= 1.) return both;
    const float first = row_.p.order == FilterOrder::min_p_first ? both : kth;
    const TermCount count(top, c);
    return fmaxf(both, by_share(count, fmaxf(first, count.least())));
  }
  /// threshold() where there are few elements from `low` up, but at least top_k of them; else NaN.
  __device__ __forceinline__ float threshold_of_few(const SampleList& list, float low, float top, float c,
                                                    const Draw& draw) {
    list.clear();
    __syncthreads();
    part_.for_each(false, [&](float x) {
      if (x >= low) list.add(x);
    });
    team_.sync();
    if (team_.leads()) {
      float from = fold::canonical_nan<float>();
      if (list.count().fits)
        from = list.with_all([&](auto& select, const FoundElements& all, SampleTeam& alone) {
          const auto wanted = static_cast<Word>(draw.top_k);
          const float kth = select.down_to(SampleRange(low, top), OneEach{}, [&](Word) { return wanted; });
          return threshold_of(kth, top, c, draw, [&](const TermCount& count, float least) {
            Word own = 0;
            for (const float x : all.v) own += x >= least ? count(x) : 0;
            const Word need = fold::share_of(draw.top_p, alone.sum(SampleTeam::add_lanes(own)));
            return select.down_to(SampleRange(least, top), count, [&](Word) { return need; });
          });
        });
      if (threadIdx.x == 0) team_.tell(shared_.nucleus.reached, Word{__float_as_uint(from)});
    }
    team_.sync();
    return __uint_as_float(static_cast<unsigned>(shared_.nucleus.reached));
  }
  /// An element that k elements or more are not below: each warp says which is the so-manieth of its lanes' largest,
  /// and of these the so-manieth is taken. -inf where lanes are fewer than k.
  __device__ __forceinline__ float at_most_kth(float high, Word k) {
    const int warps = team_.segments() * SampleTeam::warps(), busy = part_.busy_warps(chunks_);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Word of_warp = (k + busy - 1) / busy;
    if (of_warp > 32) return kAll;
    const std::uint32_t own = key_of(high);
    unsigned before = 0;  // lanes with larger ones, of equal ones those before
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t other = __shfl_sync(lift::kWholeWarp, own, i);
      if (other > own || (other == own && i < lane)) ++before;
    }
    const Word* all = team_.gather(__reduce_max_sync(lift::kWholeWarp, before + 1 == of_warp ? own : 0U));
    const Word of_all = (k + of_warp - 1) / of_warp;
    std::uint32_t found = 0;
    for (int mine = lane; mine < warps; mine += 32) {
      Word larger = 0;
      for (int i = 0; i < warps; ++i) larger += all[i] > all[mine] || (all[i] == all[mine] && i < mine) ? 1 : 0;
      if (larger + 1 == of_all) found = static_cast<std::uint32_t>(all[mine]);
    }
    return value_of(__reduce_max_sync(lift::kWholeWarp, found));
  }
  static __device__ __forceinline__ std::uint32_t key_of(float x) { return fold::Ranked<float>::of(x, 0).key; }
  static __device__ __forceinline__ float value_of(std::uint32_t key) { return fold::Ranked<float>{key, 0}.value(); }
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ State* nodes() const { return nodes_ != nullptr ? nodes_ : shared_.tree.nodes; }
  /// By one thread.
  __device__ __forceinline__ void put_node(std::int64_t chunk, const State& s) const {
    State* to = nodes() + chunk;
    if (nodes_ != nullptr || team_.segments() == 1) {
      *to = s;
    } else {
      lift::Cluster::store(lift::Cluster::map(&to->m, 0), fold::bits_as<std::uint64_t>(s.m));
      lift::Cluster::store(lift::Cluster::map(&to->d, 0), fold::bits_as<int>(s.d));
    }
  }

  /// sums[s .. 2 s): the sums of a chunk's terms whose places agree modulo s. By the first block alone.
  __device__ void terms_of(std::int64_t chunk, float c, float from, double m) {
    float* sums = shared_.tree.sums;
    for (int k = static_cast<int>(threadIdx.x); k < lift::kChunk; k += threads()) {
      const std::int64_t i = chunk * lift::kChunk + k;
      float v = i < n_ ? row_.at(i, false) : kAll;
      if (from != kAll && !(v >= from)) v = kAll;
      sums[lift::kChunk + k] = v == kAll         ? 0.F
                               : Lse::is_fast(m) ? fold::term<fold::Scalar<float>>(v, c, Lse::narrow(m))
                                                 : fold::term_wide(v, c, m);
    }
    __syncthreads();
    for (int s = lift::kChunk / 2; s > 0; s /= 2) {
      for (int k = static_cast<int>(threadIdx.x); k < s; k += threads())
        sums[s + k] = fold::Scalar<float>::add(sums[2 * s + k], sums[3 * s + k]);
      __syncthreads();
    }
  }

  const Row& row_;
  SampleTeam& team_;
  Shared& shared_;
  Part part_;
  std::int64_t n_, chunks_;
  State* nodes_;  ///< null: they are in shared memory
};

/// Draws from one row.
template <class Elements>
__device__ __forceinline__ void sample_row(const SampleProblem& p, std::int64_t index, SampleTeam& team,
                                           const SampleShare& share, typename SampleBlocks<Elements>::Shared& shared,
                                           fold::LogSumExp<float>::State* nodes) {
  using Blocks = SampleBlocks<Elements>;
  using Lse = fold::LogSumExp<float>;
  const typename Elements::Row row(p, index);
  const Draw draw(row, index);
  Blocks blocks(row, team, share, shared, nodes);
  const auto scale = draw.scaled();
  const bool greedy = draw.greedy(), of_raw = p.of == Distribution::raw;
  const Operand& asked = p[SampleSlot::log_probability];
  Drawn drawn{-1, Lse::not_a_number()};
  float from = Blocks::kAll;
  if (draw.sound() && greedy) {
    drawn = blocks.first_largest();
  } else if (draw.sound()) {
    from = blocks.threshold(scale.c, draw);
    drawn = blocks.draw(scale.c, from, draw.uniform);
    const bool all_go_on =
        p[Slot::y].given || p[SampleSlot::masked].given || p[SampleSlot::rank].given || (asked.given && of_raw);
    if (all_go_on) drawn = blocks.share(drawn);
  }
  const std::int64_t only = greedy ? drawn.token : -1;
  if (p[Slot::y].given) blocks.write_probabilities(drawn.state, scale.c, from, only);
  if (p[SampleSlot::masked].given) blocks.write_masked(from, only);
  const bool point = !of_raw && greedy;
  float lp = drawn.token < 0 ? fold::canonical_nan<float>() : 0.F;
  std::int64_t rank = drawn.token < 0 ? 0 : 1;
  if (drawn.token >= 0 && !point) {
    const float element = row.at(drawn.token, of_raw);
    if (asked.given) {
      const auto own = of_raw ? fold::make_scale<float>(draw.scale) : scale;
      const auto state = of_raw ? blocks.fold(own.c, Blocks::kAll, true) : drawn.state;
      fold::LogNormaliser<float> log_row(state, own);
      log_row.set_c(own.c);
      lp = log_row.regular ? log_row.log_probability(element) : fold::canonical_nan<float>();
    }
    if (p[SampleSlot::rank].given) rank = blocks.count_from(element, of_raw);
  }
  if (!team.leads() || threadIdx.x != 0) return;
  row.write_integer(SampleSlot::tokens, drawn.token);
  row.write_integer(SampleSlot::rank, rank);
  if (asked.given) put(asked.dtype, asked.data + row.place.offset(asked), lp);
}

/// nodes: as many states a cluster as a row's tree has, where shared memory has no room for them. left: a row, 0 where
/// it has been drawn already; null: none has.
template <class Elements>
__global__ void __launch_bounds__(32 * kMostSampleWarps)
    sample_rows(const __grid_constant__ SampleProblem p, const __grid_constant__ SampleShare share,
                fold::LogSumExp<float>::State* nodes, const unsigned* left) {
  begin_in_order();
  using Blocks = SampleBlocks<Elements>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<typename Blocks::Shared*>(memory);
  const unsigned segments = static_cast<unsigned>(share.segments), cluster = blockIdx.x / segments;
  SampleTeam team(shared.mail, share.segments, static_cast<int>(blockIdx.x % segments));
  const std::int64_t step = gridDim.x / segments;
  bool any = left == nullptr;
  if (!any) {  // of rows that the draw has left there is hardly ever one: all threads look for it
#pragma unroll 1
    for (std::int64_t row = cluster + step * threadIdx.x; row < p.rows; row += step * blockDim.x)
      any = any || left[row] != 0;
    any = __syncthreads_or(any ? 1 : 0) != 0;
  }
#pragma unroll 1
  for (std::int64_t row = any ? cluster : p.rows; row < p.rows; row += step) {
    if (left != nullptr && left[row] == 0) continue;
    sample_row<Elements>(p, row, team, share, shared, nodes + cluster * Blocks::room_for(p.n));
    __syncthreads();
  }
  team.begin();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
