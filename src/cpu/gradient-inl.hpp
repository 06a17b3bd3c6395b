// fold/gradient-inl.hpp over Lanes. Read once per target.
#include "softfold/lift/lanes.hpp"

#if defined(SOFTFOLD_CPU_GRADIENT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTFOLD_CPU_GRADIENT_INL_HPP
#undef SOFTFOLD_CPU_GRADIENT_INL_HPP
#else
#define SOFTFOLD_CPU_GRADIENT_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

#include "softfold/fold/gradient-inl.hpp"

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
