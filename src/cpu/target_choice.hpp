// How one of several functions, compiled once per SIMD target, is picked. Include it after a file's foreach_target
// part.
#pragma once

#include "cpu/targets.hpp"

#include <array>
#include <cstddef>

#include <hwy/highway.h>

namespace softfold {
inline namespace v0 {
namespace cpu {

/// The places of the targets in every table, best first. kAvx512Bf16 is AVX-512 with the instruction that rounds to
/// bfloat16, kAmx has the tiles that multiply it beside it; they are no targets of Highway's own.
enum : std::size_t { kAmx, kAvx512Bf16, kAvx512, kAvx2, kNeon, kScalar, kTargetCount };

std::size_t chosen_target();
bool target_runs(std::size_t target);

/// One function per target, in the order above; null where this build does not have the target. `f` stands in
/// softfold::HWY_NAMESPACE. What has a function of its own for AVX512-BF16 or AMX names it.
#define SOFTFOLD_TARGET_FUNCTIONS(f) SOFTFOLD_TARGET_FUNCTIONS_OF(f, f, f)
#define SOFTFOLD_TARGET_FUNCTIONS_WITH_BF16(f, bf16) SOFTFOLD_TARGET_FUNCTIONS_OF(f, bf16, bf16)
#define SOFTFOLD_TARGET_FUNCTIONS_WITH_AMX(f, amx) SOFTFOLD_TARGET_FUNCTIONS_OF(f, f, amx)
#if HWY_TARGETS & (HWY_TARGETS - 1)
#define SOFTFOLD_TARGET_FUNCTIONS_OF(f, bf16, amx)                                                           \
  {                                                                                                          \
    HWY_CHOOSE_AVX3(amx), HWY_CHOOSE_AVX3(bf16), HWY_CHOOSE_AVX3(f), HWY_CHOOSE_AVX2(f), HWY_CHOOSE_NEON(f), \
        HWY_CHOOSE_FALLBACK(f)                                                                               \
  }
#else
// One target, fixed by the compiler's flags: whatever its name, it takes the fallback's place.
#define SOFTFOLD_TARGET_FUNCTIONS_OF(f, bf16, amx) \
  { nullptr, nullptr, nullptr, nullptr, nullptr, &HWY_STATIC_DISPATCH(f) }
#endif

/// What each runnable target's function returns. Functions of other targets are not called: merely returning a value
/// may take instructions that the machine lacks.
template <class Table>
std::array<Table, kTargetCount> make_tables(const std::array<Table (*)(), kTargetCount>& functions) {
  std::array<Table, kTargetCount> tables{};
  for (std::size_t i = 0; i < kTargetCount; ++i)
    if (functions[i] != nullptr && target_runs(i)) tables[i] = functions[i]();
  return tables;
}

/// Defines function<T>(): the chosen target's Ops<T>, which function_T() of each makes.
// NOLINTBEGIN(bugprone-macro-parentheses): a template's name and its argument cannot stand in parentheses.
#define SOFTFOLD_TABLE_OF(Ops, function, T)                                                    \
  template <>                                                                                  \
  const Ops<T>& function<T>() {                                                                \
    static const auto tables = make_tables<Ops<T>>(SOFTFOLD_TARGET_FUNCTIONS(function##_##T)); \
    return tables[chosen_target()];                                                            \
  }
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
