// The thread counts that bits must not depend on, and how much of a list a test runs. Races are a matter of schedules,
// not of values, and finding them costs TSan a tenfold: there two counts and a part of the list are enough.
#pragma once

#include <array>
#include <cstddef>

namespace softfold_test {

#if defined(__SANITIZE_THREAD__)
inline constexpr std::array kThreadCounts = {1, 3};
inline constexpr std::size_t kStep = 7;
#else
inline constexpr std::array kThreadCounts = {1, 2, 3, 8};
inline constexpr std::size_t kStep = 1;
#endif

}  // namespace softfold_test
