// The entropy of chunks, and its gradients, compiled for every SIMD target; bit for bit what fold/entropy.hpp defines.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/entropy_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/entropy_ops.hpp"
#include "cpu/write-inl.hpp"
#include "softfold/lift/lanes_chunk.hpp"
#include "softfold/lift/lanes_sum.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// f(p, lp) of a vector of elements of a fast row, and 0 where p is. `Far`: x is asked for ahead of time.
template <class S, bool Far, class F, class T = fold::FoldType<S>>
struct WithLogs {
  using A = Lanes<T>;
  RowValues<S, Far, false> p;
  LogRowValues<S, false, false> lp;
  F f;

  HWY_INLINE typename A::V operator()(std::int64_t i) const {
    const auto probability = p(i);
    return hn::IfThenElseZero(hn::Gt(probability, A::zero()), f(probability, lp(i)));
  }
};
template <bool Far, class S, class F, class T = fold::FoldType<S>>
HWY_INLINE WithLogs<S, Far, F> with_logs(const S* x, const fold::Entropy<T>& row, const F& f) {
  return {RowValues<S, Far, false>(x, row.c, row.row), LogRowValues<S, false, false>(x, row.log_row), f};
}

/// The leaves of a chunk whose terms lie in memory, in the frame that `reduced` names, summed in the chunk's own.
template <class S, class T>
HWY_INLINE T sum_depths(const S* x, int n, T c, const lift::Reduced<T>& reduced, const T* terms, T* room) {
  using A = Lanes<T>;
  using Lse = fold::LogSumExp<T>;
  const auto down = A::set(-c), above = A::set(fold::EntropySum<T>::above(reduced.state.m)),
             deepest = A::set(fold::EntropySum<T>::kDeepest);
  const T sum = sum_leaves(n, room, [&](std::int64_t i) HWY_ATTR {
    const auto term = hn::LoadU(typename A::D(), terms + i);
    // Of -inf there is a term, 0; max and min give no NaN, as none comes in.
    return A::mul(term, hn::Min(A::fma(load(x + i), down, above), deepest));
  });
  return fold::Scalar<T>::times_power_of_two(sum, reduced.frame - Lse::narrow(reduced.state.m));
}

template <class S, class T = fold::FoldType<S>>
fold::EntropyState<T> entropy_chunk(const void* from, int n, T c, T* terms, T* room, lift::Guess<T>& guess, bool far) {
  using Sum = fold::EntropySum<T>;
  const S* x = static_cast<const S*>(from);
  const lift::Reduced<T> reduced = reduce_chunk<true>(x, n, c, terms, guess, far);
  const auto& s = reduced.state;
  if (!Sum::Lse::is_regular(s)) return Sum::with_sum(s, T(0));
  if (!fold::is_nan(reduced.frame) && n >= Lanes<T>::kCount)
    return Sum::with_sum(s, sum_depths(x, n, c, reduced, terms, room));
  for (int i = 0; i < n; ++i) room[i] = Sum::leaf_of(fold::widen(x[i]), c, s.m);
  return Sum::with_sum(s, lift::halve<fold::Sum<T>>(room, n));
}

template <class S, class Y, class T = fold::FoldType<S>>
HWY_NOINLINE void write_entropy_gradient(const void* from, int n, const fold::Entropy<T>& row, T entropy, T factor,
                                         void* to, bool stream) {
  using A = Lanes<T>;
  const S* x = static_cast<const S*>(from);
  Y* dx = static_cast<Y*>(to);
  if (row.log_row.fast && n >= A::kCount) {
    const auto h = A::set(entropy), by = A::set(factor);
    const auto value = with_logs<false>(
        x, row, [&](auto p, auto lp) HWY_ATTR { return A::canonical(A::mul(A::mul(p, A::add(lp, h)), by)); });
    return write_values<T>(n, dx, stream, value);
  }
  for (int i = 0; i < n; ++i)
    dx[i] = fold::narrow<Y>(fold::canonical(row.gradient(fold::widen(x[i]), entropy, factor)));
}

template <class S, class Y, class T = fold::FoldType<S>>
void entropy_gradient(const void* x, int n, const fold::Entropy<T>& row, T entropy, T factor, void* dx, bool stream) {
  if constexpr (std::is_same_v<Y, S> || std::is_same_v<Y, T>) {
    write_entropy_gradient<S, Y>(x, n, row, entropy, factor, dx, stream);
  } else {
    write_rounded<Y, T>(n, dx,
                        [&](T* exact) { write_entropy_gradient<S, T>(x, n, row, entropy, factor, exact, false); });
  }
}

template <class S, class T>
void add_entropy(cpu::EntropyOps<T>& ops) {
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.fold[i] = entropy_chunk<S>;
  const auto add = [&]<class Y>(Y) { ops.gradient[i][cpu::index(cpu::dtype_of<Y>())] = entropy_gradient<S, Y>; };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

template <class T>
T finish_entropy(const fold::EntropyState<T>& s) {
  return fold::EntropySum<T>::finish(s);
}

cpu::EntropyOps<float> entropy_ops_float() {
  cpu::EntropyOps<float> ops{};
  ops.finish = finish_entropy<float>;
  add_entropy<float>(ops), add_entropy<fold::Float16>(ops), add_entropy<fold::BFloat16>(ops);
  return ops;
}

cpu::EntropyOps<double> entropy_ops_double() {
  cpu::EntropyOps<double> ops{};
  ops.finish = finish_entropy<double>;
  add_entropy<double>(ops);
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

SOFTFOLD_TABLE_OF(EntropyOps, entropy_ops, float)
SOFTFOLD_TABLE_OF(EntropyOps, entropy_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
