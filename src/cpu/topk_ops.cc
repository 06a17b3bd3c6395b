// The filter of top-k, compiled for every SIMD target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/topk_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/topk_ops.hpp"
#include "softfold/lift/lanes.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

template <class S, class T = fold::FoldType<S>>
int filter(const void* from, int n, T threshold, int* at) {
  using A = Lanes<T>;
  constexpr int w = A::kCount;
  const typename A::D d;
  const S* x = static_cast<const S*>(from);
  const auto limit = A::set(threshold);
  int count = 0, i = 0;
  const auto one_by_one = [&](int end) {
    for (; i < end; ++i) {
      at[count] = i;
      count += fold::widen(x[i]) <= threshold ? 0 : 1;
    }
  };
  // Four vectors at a time; most hold nothing, and are left without a look at their lanes.
  for (; i + 4 * w <= n;) {
    const auto below = [&](int k) HWY_ATTR { return hn::Le(load(x + i + k * w), limit); };
    const auto all = hn::And(hn::And(below(0), below(1)), hn::And(below(2), below(3)));
    if (HWY_LIKELY(hn::AllTrue(d, all))) {
      i += 4 * w;
    } else {
      one_by_one(i + 4 * w);
    }
  }
  one_by_one(n);
  return count;
}

template <class S, class T>
void add_filter(cpu::TopkOps<T>& ops) {
  ops.filter[cpu::index(cpu::dtype_of<S>())] = filter<S>;
}

cpu::TopkOps<float> topk_ops_float() {
  cpu::TopkOps<float> ops{};
  add_filter<float>(ops), add_filter<fold::Float16>(ops), add_filter<fold::BFloat16>(ops);
  return ops;
}

cpu::TopkOps<double> topk_ops_double() {
  cpu::TopkOps<double> ops{};
  add_filter<double>(ops);
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

SOFTFOLD_TABLE_OF(TopkOps, topk_ops, float)
SOFTFOLD_TABLE_OF(TopkOps, topk_ops, double)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
