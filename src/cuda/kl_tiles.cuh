// kl_divergence of rows that lie on vectors, masks and lengths too, a chunk of both rows a warp: each chunk's state
// with one read, its elements waiting in shared memory for their leaves while registers hold their terms; and the
// gradients.
#pragma once

#include "cuda/kl.cuh"
#include "cuda/plain_chunk.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// fold::KlDivergence of regular rows, or chunks, that are exact; c > 0.
struct PlainKl {
  PlainProbability p, q;
  float c, scale, scale_low, shift, shift_low;

  __device__ __forceinline__ explicit PlainKl(const fold::KlDivergence<float>& rows)
      : p(rows.p.row),
        q(rows.q.row),
        c(rows.p.c),
        scale(rows.scale),
        scale_low(rows.scale_low),
        shift(rows.shift),
        shift_low(rows.shift_low) {}

  __device__ __forceinline__ float log_ratio(float a, float b) const {
    return fold::kl_log_ratio<fold::Scalar<float>>(a, b, scale, scale_low, shift, shift_low);
  }
};

/// What is known of all plain rows: it comes with the launch.
struct PlainKlRows {
  lift::Factor factor;
  fold::Scale<float> scale;
  fold::KlScale<float> split;
};

/// Where a chunk of a pair of rows lies. kPlain: of rows that refuses_plain() accepts.
template <class E, bool kPlain>
struct KlChunk {
  std::int64_t row, begin;
  int n, length;  ///< elements of the gradients, and how many of them exist
  const char *x, *q, *mask;
  lift::Factor factor;
  fold::Scale<float> scale;
  fold::KlScale<float> split;

  __device__ __forceinline__ KlChunk(const KlProblem& p, const PlainKlRows& all, const PlainChunk<E>& at)
      : row(at.row),
        begin(at.begin),
        n(at.n),
        length(at.n),
        mask(nullptr),
        factor(all.factor),
        scale(all.scale),
        split(all.split) {
    if constexpr (kPlain) {
      x = at.in(p, p[Slot::x]), q = at.in(p, p[KlSlot::q]);
    } else {
      const KlRows<float> r(p, row);
      const std::int64_t bytes = begin * static_cast<std::int64_t>(sizeof(E));
      x = r.row.x + bytes, q = r.q + bytes;
      if (r.row.mask != nullptr) mask = r.row.mask + begin * p[Slot::mask].axis_stride;
      length = static_cast<int>(clamp(r.row.length - begin, lift::kChunk));
      factor = r.factor.of_tiles();
      scale = r.factor.scale, split = fold::KlScale<float>(scale);
    }
  }
};

/// What an element adds. kDense: no p or q of its chunk is 0.
template <bool kDense>
__device__ __forceinline__ fold::KlLeaf<fold::Scalar<float>> plain_kl_leaf(const PlainKl& rows, float a, float b,
                                                                           float p_term, float q_term) {
  using S = fold::Scalar<float>;
  const auto share = [](float term, float multiplier) {
    return kDense ? S::mul(term, multiplier) : fold::Normaliser<float>::probability(term, multiplier);
  };
  const float r = fold::kl_log_ratio<S, kDense>(a, b, rows.scale, rows.scale_low, rows.shift, rows.shift_low);
  return fold::kl_leaf<S, kDense>(share(p_term, rows.p.multiplier), share(q_term, rows.q.multiplier), r);
}

/// An element's gradients in place of its terms; 0 where it is not `there`.
__device__ __forceinline__ void to_kl_gradients(const PlainKl& rows, float a, float b, float& p, float& q, bool there,
                                                float divergence, float incoming) {
  using Row = fold::Normaliser<float>;
  const float of_p = Row::probability(p, rows.p.multiplier), of_q = Row::probability(q, rows.q.multiplier);
  const float r = rows.log_ratio(a, b);
  const auto d = fold::KlDivergence<float>::gradient_of(of_p, of_q, r, divergence, incoming);
  p = there ? d.p : 0.F, q = there ? d.q : 0.F;
}

/// In the exact range; of a group that is not, what comes out is nobody's. The units: what terms are multiplied by to
/// be in the states' frames (1 where another group of the warp is beyond the fast range).
__device__ __forceinline__ PlainKl exact_kl(const PlainKlRows& all, const fold::KlState<float>& s, float p_unit,
                                            float q_unit) {
  const fold::KlDivergence<float> of(s.p(), s.q(), all.scale, all.split, all.factor.c, s.ratio);
  PlainKl rows(of);
  rows.p.multiplier = fold::Scalar<float>::mul(of.p.row.reciprocal, p_unit);
  rows.q.multiplier = fold::Scalar<float>::mul(of.q.row.reciprocal, q_unit);
  return rows;
}

/// A row that is not exact, by a warp, from memory.
static __device__ __noinline__ void do_kl_row(const KlProblem& p, std::int64_t index) {
  const KlRows<float> r(p, index);
  const Share share{index, threadIdx.x % 32, 32, lift::kPerLane};
  auto s = fold_kl_chunk(p, r, share);
  if (p.op == Op::kl_divergence_backward || threadIdx.x % 32 == 0) finish_kl_row(p, r, s);
  write_kl_share(p, r, s, share);
}
/// The rows of those of its lanes that ask for it, by a warp.
__device__ __forceinline__ void do_kl_rows_left(const KlProblem& p, std::int64_t index, bool asks) {
  for (unsigned left = __ballot_sync(lift::kWholeWarp, asks); left != 0; left &= left - 1)
    do_kl_row(p, __shfl_sync(lift::kWholeWarp, index, __ffs(static_cast<int>(left)) - 1));
}

/// A chunk of both rows by a group of lanes: raw vectors in shared memory, a lane's own at [vector][lane], and terms in
/// registers. All lanes of a warp take part.
template <class E, int kLanes = 32>
struct KlTile {
  using Elements = Tile<E, kLanes>;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes>;
  static constexpr int kWidth = Elements::kWidth, kVectors = Elements::kVectors;
  using Kept = uint4[2][kVectors][32];
  struct Leaves {
    float divergence[kWidth], ratio[kWidth];
  };

  const Elements& tile;
  uint4 (&kept)[2][kVectors][32];
  const lift::Factor& factor;
  float terms[2][lift::kPerLane];

  /// The states of both rows' elements [0, n) that `present` names.
  struct Folded {
    typename Fold::Folded p, q;
  };
  __device__ __forceinline__ Folded fold(const char* x, const char* q, int n, unsigned present) {
    uint4 of_p[kVectors], of_q[kVectors];
    const float missing = lift::absent(factor.c);
    tile.gather(of_p, x, n, missing);
    tile.gather(of_q, q, n, missing);
    return {fold_one(0, of_p, n, present), fold_one(1, of_q, n, present)};
  }

  /// The leaves of both, added up.
  template <bool kDense>
  __device__ __forceinline__ fold::KlLeaf<fold::Scalar<float>> sum(const PlainKl& rows) const {
    Leaves all = leaves<kDense, 1, 0>(rows);
    return {lift::add_across<kWidth, kLanes>(all.divergence), lift::add_across<kWidth, kLanes>(all.ratio)};
  }

  /// The terms become gradients, of elements that `present` names; 0 elsewhere.
  __device__ __forceinline__ void to_gradients(const PlainKl& rows, float divergence, float incoming,
                                               unsigned present) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      float a[kWidth], b[kWidth];
      elements(a, b, j);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const int i = j * kWidth + k;
        to_kl_gradients(rows, a[k], b[k], terms[0][i], terms[1][i], (present >> i & 1U) != 0, divergence, incoming);
      }
    }
  }

 private:
  __device__ __forceinline__ typename Fold::Folded fold_one(int side, const uint4 (&raw)[kVectors], int n,
                                                            unsigned present) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) kept[side][j][threadIdx.x % 32] = raw[j];
    float(&v)[lift::kPerLane] = terms[side];
    lift::Extremes own = tile.unpack(v, raw, n, factor);
    if (present != 0xFFFFFFFFU && n > 0) {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i)
        if ((present >> i & 1U) == 0) v[i] = lift::absent(factor.c);
      own = lift::extremes_of(v);
    }
    return Fold::terms(v, factor.c, own);
  }

  __device__ __forceinline__ void elements(float (&a)[kWidth], float (&b)[kWidth], int j) const {
    Packed<E>::unpack(kept[0][j][threadIdx.x % 32], a);
    Packed<E>::unpack(kept[1][j][threadIdx.x % 32], b);
    if (factor.plain) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) a[k] *= factor.times, b[k] *= factor.times;
  }

  /// Over vectors kFirst, kFirst + kStep, ...: the tree's order, few at a time.
  template <bool kDense, int kStep, int kFirst>
  __device__ __forceinline__ Leaves leaves(const PlainKl& rows) const {
    if constexpr (kStep == kVectors) {
      return vector<kDense>(rows, kFirst);
    } else {
      Leaves even = leaves<kDense, 2 * kStep, kFirst>(rows);
      const Leaves odd = leaves<kDense, 2 * kStep, kFirst + kStep>(rows);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        even.divergence[k] = fold::Scalar<float>::add(even.divergence[k], odd.divergence[k]);
        even.ratio[k] = fold::Scalar<float>::add(even.ratio[k], odd.ratio[k]);
      }
      return even;
    }
  }
  template <bool kDense>
  __device__ __forceinline__ Leaves vector(const PlainKl& rows, int j) const {
    float a[kWidth], b[kWidth];
    elements(a, b, j);
    Leaves at;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const int i = j * kWidth + k;
      const auto leaf = plain_kl_leaf<kDense>(rows, a[k], b[k], terms[0][i], terms[1][i]);
      at.divergence[k] = leaf.divergence, at.ratio[k] = leaf.ratio;
    }
    return at;
  }
};

/// Where a chunk is not exact, from memory.
static __device__ __noinline__ fold::KlLeaf<fold::Scalar<float>> sum_kl_from_memory(
    const KlProblem& p, std::int64_t row, std::int64_t begin, fold::LogSumExp<float>::State of_p,
    fold::LogSumExp<float>::State of_q, fold::KlRatio ratio) {
  const KlRows<float> r(p, row);
  return sum_kl_leaves(p, r, {row, begin + threadIdx.x % 32, 32, lift::kPerLane}, r.divergence(of_p, of_q, ratio));
}

template <class E, bool kPlain>
__global__ void __launch_bounds__(128, 4)
    fold_kl_tiles(const __grid_constant__ KlProblem p, std::int64_t chunks, const __grid_constant__ PlainKlRows all,
                  fold::KlState<float>* states) {
  begin_in_order();
  using Sum = fold::KlSum<float>;
  __shared__ typename KlTile<E>::Kept kept[4];
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const KlChunk<E, kPlain> chunk(p, all, PlainChunk<E>(p, item, chunks));
  const Tile<E, 32> tile(chunk.x);
  KlTile<E> rows{tile, kept[threadIdx.x / 32], chunk.factor};
  const unsigned present =
      chunk.mask == nullptr ? 0xFFFFFFFFU : tile.present(chunk.mask, p[Slot::mask].axis_stride, chunk.length);
  const auto [of_p, of_q] = rows.fold(chunk.x, chunk.q, chunk.length, present);
  auto state = Sum::without_sums(of_p.state, of_q.state);
  if (Sum::is_regular(of_p.state, of_q.state)) {
    const auto ratio = Sum::ratio_of(of_p.state, of_q.state);
    fold::KlLeaf<fold::Scalar<float>> sums;
    if (fold::KlDivergence<float>::is_exact(of_p.state, of_q.state, chunk.factor.c)) {
      const PlainKl exact(
          fold::KlDivergence<float>(of_p.state, of_q.state, chunk.scale, chunk.split, chunk.factor.c, ratio));
      sums = of_p.dense && of_q.dense ? rows.template sum<true>(exact) : rows.template sum<false>(exact);
    } else {
      sums = sum_kl_from_memory(p, chunk.row, chunk.begin, of_p.state, of_q.state, ratio);
    }
    state = Sum::with_sums(of_p.state, of_q.state, ratio, sums);
  }
  if (tile.lane == 0) states[item] = state;
}

/// What is known of a pair of rows before their gradients are written.
struct alignas(16) KlGradientRow {
  PlainKl rows;
  float divergence, factor;
  bool exact;  ///< else by the scalar definition
};

/// A thread a row: finish_kl, and what its gradients are made with.
static __global__ void __launch_bounds__(128)
    prepare_kl_gradients(const __grid_constant__ KlProblem p, fold::KlState<float>* states, KlGradientRow* rows) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const KlRows<float> r(p, index);
  auto s = states[index];
  finish_kl_row(p, r, s);
  states[index] = s;
  const auto none = fold::LogSumExp<float>::identity();
  const bool regular = fold::KlGradients<float>(s).p_regular;
  const auto of =
      regular ? r.divergence(s.p(), s.q(), fold::KlSum<float>::ratio_of(s)) : r.divergence(none, none, {0, 0});
  rows[index] = {PlainKl(of), s.divergence, incoming_of<float>(p, r), regular && of.exact};
}

static __device__ __noinline__ void write_kl_from_memory(const KlProblem& p, std::int64_t row, std::int64_t begin,
                                                         const fold::KlState<float>& s) {
  write_kl_share(p, KlRows<float>(p, row), s, {row, begin + threadIdx.x % 32, 32, lift::kPerLane});
}

/// From the end: what the fold's read has left in the L2 cache is the end.
template <class E, bool kPlain>
__global__ void __launch_bounds__(256, 2)
    write_kl_tiles(const __grid_constant__ KlProblem p, std::int64_t chunks, const __grid_constant__ PlainKlRows all,
                   const fold::KlState<float>* states, const KlGradientRow* rows) {
  begin_in_order();
  const std::int64_t item =
      p.rows * chunks - 1 - (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item < 0) return;
  const PlainChunk<E> at(p, item, chunks);
  const KlGradientRow row = rows[at.row];
  if (!row.exact) return write_kl_from_memory(p, at.row, at.begin, states[at.row]);
  const KlChunk<E, kPlain> chunk(p, all, at);
  const Tile<E, 32> tile(chunk.x);
  float a[lift::kPerLane], b[lift::kPerLane];
  tile.load(a, chunk.x, chunk.length, chunk.factor);
  tile.load(b, chunk.q, chunk.length, chunk.factor);
  const unsigned present = tile.present(chunk.mask, p[Slot::mask].axis_stride, chunk.length);
#pragma unroll
  for (int i = 0; i < lift::kPerLane; ++i) {
    const float of_p = row.rows.p(a[i], row.rows.c), of_q = row.rows.q(b[i], row.rows.c);
    const float r = row.rows.log_ratio(a[i], b[i]);
    const bool there = (present >> i & 1U) != 0;
    const auto d = fold::KlDivergence<float>::gradient_of(of_p, of_q, r, row.divergence, row.factor);
    a[i] = there ? d.p : 0.F, b[i] = there ? d.q : 0.F;
  }
  const auto to = [&](const Operand& o) {
    if constexpr (kPlain) return at.in(p, o);
    return o.data + RowPlace(p, at.row).offset(o) + at.begin * static_cast<std::int64_t>(sizeof(E));
  };
  if (p[Slot::y].given) tile.store_checked(to(p[Slot::y]), chunk.n, a);
  if (p[KlSlot::dq].given) tile.store_checked(to(p[KlSlot::dq]), chunk.n, b);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
