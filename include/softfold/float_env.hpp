// The floating-point environment that bits are defined in: round to nearest, no flush to zero, no exception traps.
#pragma once

#include "softfold/config.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softfold {
inline namespace v0 {

/// For its lifetime, the calling thread computes in that environment; then the caller's comes back. Costs one read of
/// a control register when the caller's is already right. Stands at every entry and at the start of every task, since
/// a thread's environment is its own and an Executor may be the caller's.
///
/// The compiler may keep a value computed from registers alone on either side of the switch, so what is computed
/// inside must come from memory or stand behind a call.
class FloatEnv {
 public:
  FloatEnv() : saved_(read()), changed_((saved_ & kControl) != kPortable) {
    if (changed_) write((saved_ & ~kControl) | kPortable);
  }
  ~FloatEnv() {
    if (changed_) write(saved_);
  }
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kControl = 0xFFC0;   // of MXCSR: FTZ, rounding, exception masks, DAZ; not the sticky flags
  static constexpr Register kPortable = 0x1F80;  // every exception masked, all else off
  static Register read() { return _mm_getcsr(); }
  static void write(Register r) {
    asm volatile("" ::: "memory");
    _mm_setcsr(r);
    asm volatile("" ::: "memory");
  }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  // Of FPCR: AHP, DN, FZ, rounding, FZ16, trap enables, NEP, AH, FIZ; not the strides of AArch32 vectors.
  static constexpr Register kControl = 0x07C89F07;
  static constexpr Register kPortable = 0;
  static Register read() {
    Register r;
    asm volatile("mrs %0, fpcr" : "=r"(r));
    return r;
  }
  static void write(Register r) { asm volatile("msr fpcr, %0" ::"r"(r) : "memory"); }
#else
#error "softfold: this processor's floating-point control register is not known (x86-64 and AArch64 are)"
#endif

  Register saved_;
  bool changed_;
};

}  // namespace v0
}  // namespace softfold
