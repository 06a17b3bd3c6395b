// The SIMD targets of this build that run on this machine, and which of them is used. No bit depends on it, but for
// bfloat16 attention on AMX (docs/attention.md).
#pragma once

#include "softfold/config.hpp"

#include <span>
#include <string_view>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// "avx512_amx", "avx512_bf16", "avx512", "avx2", "neon", "scalar": those that run here, best first. The first one is
/// used, unless the environment variable SOFTFOLD_SIMD names another.
SOFTFOLD_API std::span<const std::string_view> targets();
SOFTFOLD_API std::string_view current_target();
/// Takes another one, for tests and measurements. False if it does not run here. Not while operations run.
SOFTFOLD_API bool use_target(std::string_view name);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
