// Sums and gradients of runs of elements, compiled for every SIMD target; bit for bit what fold/gradient.hpp defines.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gradient_ops.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "cpu/chunk_ops-inl.hpp"
#include "cpu/gradient-inl.hpp"
#include "cpu/gradient_ops.hpp"
#include "softfold/lift/lanes_sum.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// Asks for what a few iterations on will be read from memory. Two streams are more than the machine finds by itself.
template <class S>
HWY_INLINE void fetch(const S* p) {
  constexpr std::ptrdiff_t ahead = 1536;
  hwy::Prefetch(reinterpret_cast<const char*>(p) + ahead);
}

/// The backward pass of softmax. What its sum has read, its write finds in the cache.
template <class T>
struct ThroughSoftmax {
  using A = Lanes<T>;
  using Scalar = fold::SoftmaxGradient<T>;
  template <class S>
  static HWY_INLINE auto leaf(const S* y, const S* dy) {
    return A::mul(load(y), load(dy));
  }
  template <class S>
  static HWY_INLINE void fetch_for_sum(const S* y, const S* dy) {
    fetch(y), fetch(dy);
  }
  template <class S>
  static HWY_INLINE void fetch_for_write(const S*) {}
  template <class V>
  static HWY_INLINE V gradient(V y, V dy, V sum, V scale) {
    return softmax_gradient<A>(y, dy, sum, scale);
  }
};

/// The backward pass of log_softmax. y is read by the write alone.
template <class T>
struct ThroughLogSoftmax {
  using A = Lanes<T>;
  using Scalar = fold::LogSoftmaxGradient<T>;
  template <class S>
  static HWY_INLINE auto leaf(const S*, const S* dy) {
    return load(dy);
  }
  template <class S>
  static HWY_INLINE void fetch_for_sum(const S*, const S* dy) {
    fetch(dy);
  }
  template <class S>
  static HWY_INLINE void fetch_for_write(const S* y) {
    fetch(y);
  }
  template <class V>
  static HWY_INLINE V gradient(V y, V dy, V sum, V scale) {
    return log_softmax_gradient<A>(y, dy, sum, scale);
  }
};

template <class Pass, class S, class T>
T sum(const void* y_, const void* dy_, int n, T* room, bool far) {
  const S* y = static_cast<const S*>(y_);
  const S* dy = static_cast<const S*>(dy_);
  if (n >= Lanes<T>::kCount) {
    if (!far) return sum_leaves(n, room, [&](int i) HWY_ATTR { return Pass::leaf(y + i, dy + i); });
    return sum_leaves(n, room, [&](int i) HWY_ATTR {
      Pass::fetch_for_sum(y + i, dy + i);
      return Pass::leaf(y + i, dy + i);
    });
  }
  for (int i = 0; i < n; ++i) room[i] = Pass::Scalar::leaf(fold::widen(y[i]), fold::widen(dy[i]));
  return lift::halve<fold::Sum<T>>(room, n);
}

template <class Pass, class S, class Y, class T>
void write_gradient(const void* y_, const void* dy_, std::int64_t n, T row_sum, T row_scale, void* to, bool far) {
  using A = Lanes<T>;
  const S* y = static_cast<const S*>(y_);
  const S* dy = static_cast<const S*>(dy_);
  Y* dx = static_cast<Y*>(to);
  if (n >= A::kCount) {
    const auto s = A::set(row_sum), scale = A::set(row_scale);
    return write_values<T>(n, dx, far, [&](std::int64_t i) HWY_ATTR {
      Pass::fetch_for_write(y + i);
      return A::canonical(Pass::gradient(load(y + i), load(dy + i), s, scale));
    });
  }
  const typename Pass::Scalar gradient{row_sum, row_scale};
  for (std::int64_t i = 0; i < n; ++i) dx[i] = fold::narrow<Y>(gradient(fold::widen(y[i]), fold::widen(dy[i])));
}

template <class S, class Y, class T = fold::FoldType<S>>
void write_lse_gradient(const void* from, std::int64_t n, const fold::LogSumExpGradient<T>& row, void* to,
                        bool stream) {
  using Lse = fold::LogSumExp<T>;
  const S* x = static_cast<const S*>(from);
  Y* dx = static_cast<Y*>(to);
  if (Lse::is_fast(row.row.m) && n >= Lanes<T>::kCount)
    return write_multiples(x, n, row.c, row.row, row.dlse, row.scale, dx, stream);
  for (std::int64_t i = 0; i < n; ++i) dx[i] = fold::narrow<Y>(row(fold::widen(x[i])));
}

template <class S, class T>
void add_gradients(cpu::GradientOps<T>& ops) {
  constexpr auto i = cpu::index(cpu::dtype_of<S>());
  ops.softmax.sum[i] = sum<ThroughSoftmax<T>, S, T>;
  ops.log_softmax.sum[i] = sum<ThroughLogSoftmax<T>, S, T>;
  const auto add = [&]<class Y>(Y) {
    constexpr auto j = cpu::index(cpu::dtype_of<Y>());
    ops.softmax.write[i][j] = write_gradient<ThroughSoftmax<T>, S, Y, T>;
    ops.log_softmax.write[i][j] = write_gradient<ThroughLogSoftmax<T>, S, Y, T>;
    ops.logsumexp[i][j] = write_lse_gradient<S, Y>;
  };
  add(float{}), add(double{}), add(fold::Float16{}), add(fold::BFloat16{});
}

cpu::GradientOps<float> gradient_ops_float() {
  cpu::GradientOps<float> ops{};
  add_gradients<float>(ops), add_gradients<fold::Float16>(ops), add_gradients<fold::BFloat16>(ops);
  return ops;
}

cpu::GradientOps<double> gradient_ops_double() {
  cpu::GradientOps<double> ops{};
  add_gradients<double>(ops);
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

SOFTFOLD_TABLE_OF(GradientOps, gradient_ops, float)
SOFTFOLD_TABLE_OF(GradientOps, gradient_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
