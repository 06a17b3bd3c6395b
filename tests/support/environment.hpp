// The floating-point environment of a caller, which no result may depend on.
#pragma once

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softfold_test {

/// The caller's floating-point environment, set for a scope.
class CallersEnvironment {
 public:
  CallersEnvironment(int rounding, [[maybe_unused]] bool flush) {
    std::fegetenv(&saved_);
    std::fesetround(rounding);
#if defined(__x86_64__)
    if (flush) _mm_setcsr(_mm_getcsr() | 0x8040U);
#elif defined(__aarch64__)
    std::uint64_t fpcr;
    asm volatile("mrs %0, fpcr" : "=r"(fpcr));
    if (flush) asm volatile("msr fpcr, %0" ::"r"(fpcr | (std::uint64_t{1} << 24)));
#endif
  }
  ~CallersEnvironment() { std::fesetenv(&saved_); }
  static std::uint64_t control() {
#if defined(__x86_64__)
    return _mm_getcsr() & 0xFFC0U;
#elif defined(__aarch64__)
    std::uint64_t fpcr;
    asm volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#endif
  }

 private:
  std::fenv_t saved_;
};

}  // namespace softfold_test
