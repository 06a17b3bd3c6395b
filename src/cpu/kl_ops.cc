// The divergence of chunks, and its gradients, compiled for every SIMD target; bit for bit what fold/kl_divergence.hpp
// defines.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kl_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/kl_ops.hpp"
#include "cpu/write-inl.hpp"
#include "softfold/lift/lanes_chunk.hpp"
#include "softfold/lift/lanes_sum.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

#include "softfold/fold/kl_divergence-inl.hpp"

/// p, q and ln p - ln q of a vector of elements, where these come from the difference of the logits. `Far`: they are
/// asked for ahead of time.
template <class S, bool Far, class T = fold::FoldType<S>>
struct ElementPairs {
  using A = Lanes<T>;
  using V = typename A::V;
  const S *a, *b;
  RowValues<S, Far, false> p, q;
  V scale, scale_low, shift, shift_low;

  HWY_INLINE ElementPairs(const S* a_, const S* b_, const fold::KlDivergence<T>& rows)
      : a(a_),
        b(b_),
        p(a_, rows.p.c, rows.p.row),
        q(b_, rows.q.c, rows.q.row),
        scale(A::set(rows.scale)),
        scale_low(A::set(rows.scale_low)),
        shift(A::set(rows.shift)),
        shift_low(A::set(rows.shift_low)) {}
  HWY_INLINE V log_ratio(std::int64_t i) const {
    return kl_log_ratio<A>(load(a + i), load(b + i), scale, scale_low, shift, shift_low);
  }
};

/// The leaves of two regular chunks, each kind summed.
template <class S, class T = fold::FoldType<S>>
fold::KlLeaf<fold::Scalar<T>> sum_kl_leaves(const S* a, const S* b, int n, const fold::KlDivergence<T>& rows, T* room) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  T* const ratios = room + lift::kChunk;
  if (!rows.exact || n < w) {
    for (int i = 0; i < n; ++i) {
      const auto leaf = rows.leaf(fold::widen(a[i]), fold::widen(b[i]));
      room[i] = leaf.divergence, ratios[i] = leaf.ratio;
    }
    return {lift::halve<fold::Sum<T>>(room, n), lift::halve<fold::Sum<T>>(ratios, n)};
  }
  const ElementPairs<S, true> pairs(a, b, rows);
  const int whole = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
  for (int i = n / w * w; i < whole; i += w) {
    hn::Store(A::set(-T(0)), D(), room + i);
    hn::Store(A::set(-T(0)), D(), ratios + i);
  }
  // The last vector overlaps its neighbour, and stores the same there.
  for (int begin = 0; begin < n; begin += w) {
    const int i = std::min(begin, n - w);
    const auto leaf = kl_leaf<A>(pairs.p(i), pairs.q(i), pairs.log_ratio(i));
    hn::StoreU(leaf.divergence, D(), room + i);
    hn::StoreU(leaf.ratio, D(), ratios + i);
  }
  return {halve_in_place(room, whole), halve_in_place(ratios, whole)};
}

template <class S, class T = fold::FoldType<S>>
fold::KlState<T> fold_kl(const void* from_a, const void* from_b, int n, const fold::Scale<T>& by,
                         const fold::KlScale<T>& split, T c, typename cpu::KlOps<T>::Room& room, bool far) {
  using Sum = fold::KlSum<T>;
  const S *a = static_cast<const S*>(from_a), *b = static_cast<const S*>(from_b);
  const auto p = reduce_chunk<false>(a, n, c, room.terms, room.p, far).state;
  const auto q = reduce_chunk<false>(b, n, c, room.terms, room.q, far).state;
  if (!Sum::is_regular(p, q)) return Sum::without_sums(p, q);
  const auto ratio = Sum::ratio_of(p, q);
  return Sum::with_sums(p, q, ratio, sum_kl_leaves(a, b, n, {p, q, by, split, c, ratio}, room.pairs));
}

template <class T>
fold::KlState<T> merge_kl(const fold::KlState<T>& a, const fold::KlState<T>& b) {
  return fold::KlSum<T>::merge(a, b);
}

template <class S, class T = fold::FoldType<S>>
void kl_gradient(const void* from_a, const void* from_b, int n, const fold::KlDivergence<T>& rows, T divergence,
                 T factor, T* da, T* db) {
  using A = Lanes<T>;
  using D = typename A::D;
  constexpr int w = A::kCount;
  const S *a = static_cast<const S*>(from_a), *b = static_cast<const S*>(from_b);
  if (!rows.exact || n < w) {
    for (int i = 0; i < n; ++i) {
      const auto dx = rows.gradient(fold::widen(a[i]), fold::widen(b[i]), divergence, factor);
      da[i] = dx.p, db[i] = dx.q;
    }
    return;
  }
  const ElementPairs<S, false> pairs(a, b, rows);
  const auto k = A::set(divergence), by = A::set(factor);
  for (int begin = 0; begin < n; begin += w) {
    const int i = std::min(begin, n - w);
    const auto p = pairs.p(i), r = pairs.log_ratio(i);
    hn::StoreU(A::canonical(A::mul(kl_slope_of_p<A>(p, r, k), by)), D(), da + i);
    hn::StoreU(A::canonical(A::mul(kl_slope_of_q<A>(p, pairs.q(i), r), by)), D(), db + i);
  }
}

template <class Y, class T>
void kl_store(const T* from, int n, void* to) {
  Y* y = static_cast<Y*>(to);
  if (n >= Lanes<T>::kCount)
    return write_values<T>(n, y, false,
                           [from](std::int64_t i) HWY_ATTR { return hn::LoadU(typename Lanes<T>::D(), from + i); });
  for (int i = 0; i < n; ++i) y[i] = fold::narrow<Y>(from[i]);
}

template <class S, class T>
void add_kl(cpu::KlOps<T>& ops) {
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.fold[i] = fold_kl<S>;
  ops.gradient[i] = kl_gradient<S>;
}
template <class T>
void add_kl_stores(cpu::KlOps<T>& ops) {
  const auto add = [&]<class Y>(Y) { ops.store[cpu::index(cpu::dtype_of<Y>())] = kl_store<Y, T>; };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

cpu::KlOps<float> kl_ops_float() {
  cpu::KlOps<float> ops{};
  ops.merge = merge_kl<float>;
  add_kl<float>(ops), add_kl<fold::Float16>(ops), add_kl<fold::BFloat16>(ops);
  add_kl_stores(ops);
  return ops;
}

cpu::KlOps<double> kl_ops_double() {
  cpu::KlOps<double> ops{};
  ops.merge = merge_kl<double>;
  add_kl<double>(ops);
  add_kl_stores(ops);
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/target_choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

SOFTFOLD_TABLE_OF(KlOps, kl_ops, float)
SOFTFOLD_TABLE_OF(KlOps, kl_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
