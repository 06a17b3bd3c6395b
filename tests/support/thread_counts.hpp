// The thread counts that bits must not depend on, how much of a list a test runs (one in kStep), and what the sizes of
// rows that threads share are divided by (kShrink). Under a sanitizer, where each run costs a tenfold, a list is shared
// out: races are a matter of schedules, not of values, and a stray access of a case's shape shows in any of its runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace softfold_test {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SOFTFOLD_TEST_ASAN
#endif
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr std::array kThreadCounts = {1, 3};
inline constexpr std::size_t kStep = 29;
inline constexpr std::int64_t kShrink = 8;
#elif defined(SOFTFOLD_TEST_ASAN)
inline constexpr std::array kThreadCounts = {1, 3};
inline constexpr std::size_t kStep = 5;
inline constexpr std::int64_t kShrink = 1;
#else
inline constexpr std::array kThreadCounts = {1, 2, 3, 8};
inline constexpr std::size_t kStep = 1;
inline constexpr std::int64_t kShrink = 1;
#endif

}  // namespace softfold_test
