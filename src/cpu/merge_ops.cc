// Sums of parts and rescaled blocks, compiled for every SIMD target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/merge_ops.cc"
#include <hwy/foreach_target.h>

#include "cpu/chunk_ops-inl.hpp"
#include "cpu/merge_ops.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

/// share_0 x_0, then an FMA for each further part. Parts = 0: as many as there are.
template <int Parts, class S, class Y, class T>
HWY_INLINE void combine_parts(const cpu::LiveParts& live, std::int64_t n, Y* y, bool stream) {
  using A = Lanes<T>;
  constexpr int most = Parts != 0 ? Parts : MergeProblem::kMaxParts;
  const int count = Parts != 0 ? Parts : live.count;
  const S* x[most];
  T share[most];
  typename A::V shares[most];
  int part = 0;
  do {  // there is at least one
    const auto at = static_cast<std::size_t>(part);
    x[part] = static_cast<const S*>(live.x[at]);
    share[part] = static_cast<T>(live.share[at]);
    shares[part] = A::set(share[part]);
  } while (++part < count);
  if (n >= A::kCount) {
    return write_values<T>(n, y, stream, [&](std::int64_t i) HWY_ATTR {
      auto sum = A::mul(load(x[0] + i), shares[0]);
      for (int p = 1; p < count; ++p) sum = A::fma(load(x[p] + i), shares[p], sum);
      return A::canonical(sum);
    });
  }
  for (std::int64_t i = 0; i < n; ++i) {
    T sum = fold::Scalar<T>::mul(fold::widen(x[0][i]), share[0]);
    for (int p = 1; p < count; ++p) sum = fold::Scalar<T>::fma(fold::widen(x[p][i]), share[p], sum);
    y[i] = fold::narrow<Y>(sum);
  }
}

template <class S, class Y, class T = fold::FoldType<S>>
void combine(const cpu::LiveParts& live, std::int64_t n, void* to, bool stream) {
  Y* y = static_cast<Y*>(to);
  if constexpr (std::is_same_v<S, Y>)  // the common case has a loop of its own
    if (live.count == 2) return combine_parts<2, S, Y, T>(live, n, y, stream);
  combine_parts<0, S, Y, T>(live, n, y, stream);
}

template <class S, class Y, class T = fold::FoldType<S>>
void rescale(const void* from, double share, std::int64_t n, void* to, bool stream) {
  using A = Lanes<T>;
  const S* x = static_cast<const S*>(from);
  Y* y = static_cast<Y*>(to);
  const T factor = static_cast<T>(share);
  if (n >= A::kCount) {
    const auto factors = A::set(factor), least = A::set(fold::Normaliser<T>::least_term(factor));
    return write_values<T>(n, y, stream, [&](std::int64_t i) HWY_ATTR {
      const auto p = load(x + i);
      const auto kept =
          A::if_at_most(least, p, p, A::if_at_most(p, least, A::zero(), A::set(fold::canonical_nan<T>())));
      return A::mul(kept, factors);
    });
  }
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = fold::narrow<Y>(fold::Normaliser<T>::probability(fold::widen(x[i]), factor));
}

// Here for their fma: one instruction only where the target has it.
fold::PartSum join_parts(const fold::PartSum* parts, int count, bool base_two, double* share) {
  return fold::join_parts(parts, count, base_two, share);
}
double log_of(const fold::PartSum& p, bool base_two) { return fold::log_of(p, base_two); }

cpu::MergeOps make_merge_ops() {
  cpu::MergeOps ops{join_parts, log_of, {}, {}};
  const auto add = [&]<class S, class Y>(S, Y) {
    constexpr auto i = cpu::index(cpu::dtype_of<S>()), j = cpu::index(cpu::dtype_of<Y>());
    ops.combine[i][j] = combine<S, Y>;
    ops.rescale[i][j] = rescale<S, Y>;
  };
  const auto add_source = [&]<class S>(S s) {
    add(s, float{}), add(s, double{}), add(s, fold::Float16{}), add(s, fold::BFloat16{});
  };
  add_source(float{}), add_source(double{}), add_source(fold::Float16{}), add_source(fold::BFloat16{});
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

const MergeOps& merge_ops() {
  static const auto tables = make_tables<MergeOps>(SOFTFOLD_TARGET_FUNCTIONS(make_merge_ops));
  return tables[chosen_target()];
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
