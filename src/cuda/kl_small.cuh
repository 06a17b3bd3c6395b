// kl_divergence of plain rows of a few elements, and its gradients, in one launch: lanes have as few of them as in
// small_rows.cuh, and what all rows have in common comes with the launch.
#pragma once

#include "cuda/kl_tiles.cuh"
#include "cuda/small_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// KlRows, but for what all rows have in common.
struct SmallKlRow {
  const KlProblem& p;
  PlainPlace place;
  __device__ __forceinline__ double scale() const { return p.scale; }
};

/// The leaves of a lane's elements of both rows, added up by its group.
template <bool kDense, int kLanes, int kCount>
__device__ __forceinline__ fold::KlLeaf<fold::Scalar<float>> sum_small_kl(const PlainKl& rows, const float (&a)[kCount],
                                                                          const float (&b)[kCount],
                                                                          const float (&terms)[2][kCount]) {
  float divergence[kCount], ratio[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const auto leaf = plain_kl_leaf<kDense>(rows, a[j], b[j], terms[0][j], terms[1][j]);
    divergence[j] = leaf.divergence, ratio[j] = leaf.ratio;
  }
  return {lift::add_tree<1, kLanes, float, kCount>([&](int j, int) { return divergence[j]; }),
          lift::add_tree<1, kLanes, float, kCount>([&](int j, int) { return ratio[j]; })};
}

/// rows: p's and dp's, and where dy is said, q's. dq: its gradient's.
template <class E, int kLanes, int kCount>
__global__ void __launch_bounds__(kSmallThreads, 8)
    kl_small_rows(const __grid_constant__ KlProblem p, const __grid_constant__ SmallRows rows,
                  const __grid_constant__ PlainKlRows all, const __grid_constant__ SmallOperand dq) {
  begin_in_order();
  using Sum = fold::KlSum<float>;
  using State = fold::KlState<float>;
  using Access = PlainAccess<E>;
  using Fold = lift::WarpFold<1, kLanes, kCount>;
  const SmallRow<Access, kLanes, kCount> row(rows);
  const ScaledElements<Access, kLanes, kCount> a(row, rows.x, rows.mask, all.factor),
      b(row, rows.dy, rows.mask, all.factor);
  float terms[2][kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) terms[0][j] = a.v[j], terms[1][j] = b.v[j];
  const auto of_p = Fold::terms(terms[0], all.factor.c), of_q = Fold::terms(terms[1], all.factor.c);
  bool done = Sum::is_regular(of_p.state, of_q.state) &&
              fold::KlDivergence<float>::is_exact(of_p.state, of_q.state, all.factor.c);
  if (__any_sync(lift::kWholeWarp, done)) {
    const State other = State::of({0., 1.F}, {0., 1.F}, {0., 0.}, 0.F);
    State s = other;
    if (done) s = State::of(of_p.state, of_q.state, Sum::ratio_of(of_p.state, of_q.state), 0.F);
    const PlainKl exact = exact_kl(all, s, of_p.unit, of_q.unit);
    s = Sum::with_sums(s.p(), s.q(), s.ratio,
                       of_p.dense && of_q.dense ? sum_small_kl<true, kLanes>(exact, a.v, b.v, terms)
                                                : sum_small_kl<false, kLanes>(exact, a.v, b.v, terms));
    const SmallKlRow r{p, PlainPlace(p, row.inner)};
    if (done && row.writes && row.lane == 0) finish_kl_row(p, r, s);
    if (rows.y.data != nullptr || dq.data != nullptr) {
      done = done && fold::KlGradients<float>(s).p_regular;
      if (!done) s = other;
      const PlainKl gradients = exact_kl(all, s, of_p.unit, of_q.unit);
      const float incoming = incoming_of<float>(p, r);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        to_kl_gradients(gradients, a.v[j], b.v[j], terms[0][j], terms[1][j], (a.shown >> j & 1U) != 0, s.divergence,
                        incoming);
      if (done && rows.y.data != nullptr) row.template store<true>(rows.y, terms[0]);
      if (done && dq.data != nullptr) row.template store<true>(dq, terms[1]);
    }
  }
  do_kl_rows_left(p, row.inner, row.writes && !done && row.lane == 0);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
