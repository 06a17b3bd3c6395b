// The chunk operations of a fold in double, compiled for every SIMD target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_ops_double.cc"
#include <hwy/foreach_target.h>

#include "cpu/chunk_ops-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

cpu::ChunkOps<double> chunk_ops_double() { return make_chunk_ops<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace v0
}  // namespace softfold
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/target_choice.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

template <>
const ChunkOps<double>& chunk_ops<double>() {
  static const auto tables = make_tables<ChunkOps<double>>(SOFTFOLD_TARGET_FUNCTIONS(chunk_ops_double));
  return tables[chosen_target()];
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
