// Sums and gradients of cross-entropy, compiled for every SIMD target; bit for bit what fold/cross_entropy.hpp defines.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/loss_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/gradient-inl.hpp"
#include "cpu/loss_ops.hpp"
#include "cpu/write-inl.hpp"
#include "softfold/lift/lanes_sum.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

template <class S, class T = fold::FoldType<S>>
T sum_log(const void* from, int n, const fold::LogNormaliser<T>& row, const T* weight, T* room) {
  using A = Lanes<T>;
  const S* x = static_cast<const S*>(from);
  if (row.fast && n >= A::kCount) {
    const LogRowValues<S, false, false> lp(x, row);
    return sum_leaves(n, room, [&](int i) HWY_ATTR { return A::mul(hn::LoadU(typename A::D(), weight + i), lp(i)); });
  }
  for (int i = 0; i < n; ++i) room[i] = fold::Scalar<T>::mul(weight[i], row.log_probability(fold::widen(x[i])));
  return lift::halve<fold::Sum<T>>(room, n);
}

template <class S, class Y, class T = fold::FoldType<S>>
HWY_NOINLINE void write_loss_gradient(const void* from, int n, const fold::CrossEntropyGradient<T>& row,
                                      const T* weight, void* to, bool stream) {
  using A = Lanes<T>;
  using Lse = fold::LogSumExp<T>;
  const S* x = static_cast<const S*>(from);
  Y* dx = static_cast<Y*>(to);
  if (Lse::is_fast(row.row.m) && n >= A::kCount) {
    if (weight == nullptr)  // then there is no smoothing
      return write_multiples(x, n, row.c, row.row, row.pull, row.factor, dx, stream);
    const auto c = A::set(row.c), m = A::set(Lse::narrow(row.row.m));
    const auto multiplier = A::set(row.row.multiplier(row.row.m)), pull = A::set(row.pull), factor = A::set(row.factor);
    const auto spread = A::set(row.spread);
    return write_values<T>(n, dx, stream, [&](std::int64_t i) HWY_ATTR {
      const auto w = hn::LoadU(typename A::D(), weight + i);
      return A::canonical(
          cross_entropy_gradient<A>(row_probability<A>(load(x + i), c, m, multiplier), w, pull, spread, factor));
    });
  }
  for (int i = 0; i < n; ++i) dx[i] = fold::narrow<Y>(row(fold::widen(x[i]), weight != nullptr ? weight[i] : T(1)));
}

template <class S, class Y, class T = fold::FoldType<S>>
void loss_gradient(const void* x, int n, const fold::CrossEntropyGradient<T>& row, const T* weight, void* dx,
                   bool stream) {
  if constexpr (std::is_same_v<Y, S> || std::is_same_v<Y, T>) {
    write_loss_gradient<S, Y>(x, n, row, weight, dx, stream);
  } else {
    write_rounded<Y, T>(n, dx, [&](T* exact) { write_loss_gradient<S, T>(x, n, row, weight, exact, false); });
  }
}

template <class S, class T>
void add_losses(cpu::LossOps<T>& ops) {
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.sum_log[i] = sum_log<S>;
  const auto add = [&]<class Y>(Y) { ops.gradient[i][cpu::index(cpu::dtype_of<Y>())] = loss_gradient<S, Y>; };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

cpu::LossOps<float> loss_ops_float() {
  cpu::LossOps<float> ops{};
  add_losses<float>(ops), add_losses<fold::Float16>(ops), add_losses<fold::BFloat16>(ops);
  return ops;
}

cpu::LossOps<double> loss_ops_double() {
  cpu::LossOps<double> ops{};
  add_losses<double>(ops);
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

SOFTFOLD_TABLE_OF(LossOps, loss_ops, float)
SOFTFOLD_TABLE_OF(LossOps, loss_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
