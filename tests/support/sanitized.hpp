// Whether what is tested was compiled for a sanitizer (tests/CMakeLists.txt says it: under ASan and UBSan the tests
// themselves are not).
#pragma once

namespace softfold_test {

inline constexpr bool kSanitizedAddresses = SOFTFOLD_TEST_ASAN, kSanitizedThreads = SOFTFOLD_TEST_TSAN;
inline constexpr bool kSanitized = kSanitizedAddresses || kSanitizedThreads;

}  // namespace softfold_test
