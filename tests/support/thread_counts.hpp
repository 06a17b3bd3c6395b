// The thread counts that bits must not depend on, how much of a list a test runs (one in kStep), and what the sizes of
// rows that threads share are divided by (kShrink). Under a sanitizer, where each run costs a tenfold, a list is shared
// out: races are a matter of schedules, not of values, and a stray access of a case's shape shows in any of its runs.
#pragma once

#include "support/sanitized.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace softfold_test {

#if SOFTFOLD_TEST_ASAN || SOFTFOLD_TEST_TSAN
inline constexpr std::array kThreadCounts = {1, 3};
#else
inline constexpr std::array kThreadCounts = {1, 2, 3, 8};
#endif
inline constexpr std::size_t kStep = kSanitizedThreads ? 29 : kSanitizedAddresses ? 11 : 1;
inline constexpr std::int64_t kShrink = kSanitizedThreads ? 8 : 1;

}  // namespace softfold_test
