// kl_divergence of rows of up to 512 elements that lie on vectors, and its gradients, with one read and one launch: a
// group of lanes a pair of rows, several to a warp.
#pragma once

#include "cuda/kl_tiles.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E, int kLanes>
__global__ void __launch_bounds__(128, 4) kl_short_rows(const __grid_constant__ KlProblem p) {
  begin_in_order();
  using Sum = fold::KlSum<float>;
  using State = fold::KlState<float>;
  __shared__ typename KlTile<E, kLanes>::Kept kept[4];
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (group - threadIdx.x % 32 / kLanes >= p.rows) return;
  // Groups beyond the last row do it again and write nothing.
  const bool writes = group < p.rows;
  const std::int64_t index = writes ? group : p.rows - 1;
  const KlRows<float> r(p, index);
  const Tile<E, kLanes> tile(r.row.x);
  const lift::Factor factor = r.factor.of_tiles();
  KlTile<E, kLanes> rows{tile, kept[threadIdx.x / 32], factor};
  const unsigned present = tile.present(r.row.mask, p[Slot::mask].axis_stride, static_cast<int>(r.row.length));
  const auto [of_p, of_q] =
      rows.fold(r.row.x, r.q, static_cast<int>(r.row.length), r.row.mask == nullptr ? 0xFFFFFFFFU : present);
  bool done =
      Sum::is_regular(of_p.state, of_q.state) && fold::KlDivergence<float>::is_exact(of_p.state, of_q.state, factor.c);
  if (__any_sync(lift::kWholeWarp, done)) {
    const PlainKlRows all{factor, r.factor.scale, fold::KlScale<float>(r.factor.scale)};
    const State other = State::of({0., 1.F}, {0., 1.F}, {0., 0.}, 0.F);
    State s = other;
    if (done) s = State::of(of_p.state, of_q.state, Sum::ratio_of(of_p.state, of_q.state), 0.F);
    const PlainKl leaves = exact_kl(all, s, of_p.unit, of_q.unit);
    s = Sum::with_sums(s.p(), s.q(), s.ratio,
                       of_p.dense && of_q.dense ? rows.template sum<true>(leaves) : rows.template sum<false>(leaves));
    if (done && (p.op == Op::kl_divergence_backward || (writes && tile.lane == 0))) finish_kl_row(p, r, s);
    if (p[Slot::y].given || p[KlSlot::dq].given) {
      done = done && fold::KlGradients<float>(s).p_regular;
      if (!done) s = other;
      rows.to_gradients(exact_kl(all, s, of_p.unit, of_q.unit), s.divergence, incoming_of<float>(p, r), present);
      const int n = static_cast<int>(r.row.n);
      if (done && writes && p[Slot::y].given) tile.store_checked(r.row.y, n, rows.terms[0]);
      if (done && writes && p[KlSlot::dq].given) tile.store_checked(r.dq(p), n, rows.terms[1]);
    }
  }
  do_kl_rows_left(p, index, writes && !done && tile.lane == 0);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
