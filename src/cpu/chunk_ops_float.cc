// The chunk operations of a fold in float, compiled for every SIMD target.
#include "softfold/lift/simd_targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunk_ops_float.cc"
#include <hwy/foreach_target.h>

#include "cpu/chunk_ops-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace softfold {
inline namespace v0 {
namespace HWY_NAMESPACE {

cpu::ChunkOps<float> chunk_ops_float() { return make_chunk_ops<float>(); }
#if HWY_TARGET == HWY_AVX3
cpu::ChunkOps<float> chunk_ops_float_bf16() { return make_chunk_ops<float, true>(); }
#endif

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
const ChunkOps<float>& chunk_ops<float>() {
  static const auto tables =
      make_tables<ChunkOps<float>>(SOFTFOLD_TARGET_FUNCTIONS_WITH_BF16(chunk_ops_float, chunk_ops_float_bf16));
  return tables[chosen_target()];
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
#endif  // HWY_ONCE
