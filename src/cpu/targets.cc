#include "cpu/targets.hpp"

#include "cpu/amx.hpp"
#include "softfold/error.hpp"
#include "softfold/lift/simd_targets.hpp"

#include "cpu/target_choice.hpp"

#include <hwy/targets.h>
#include <atomic>
#include <cstdlib>
#include <string>

#if HWY_ARCH_X86 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

constexpr std::string_view name_of_target(std::int64_t id) {
  return id == HWY_AVX3 ? "avx512" : id == HWY_AVX2 ? "avx2" : id == HWY_NEON ? "neon" : "scalar";
}
constexpr std::int64_t kIds[kTargetCount] = {HWY_AVX3, HWY_AVX3, HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_STATIC_TARGET};
constexpr std::string_view kNames[kTargetCount] = {"avx512_amx",
                                                   "avx512_bf16",
                                                   name_of_target(kIds[kAvx512]),
                                                   name_of_target(kIds[kAvx2]),
                                                   name_of_target(kIds[kNeon]),
                                                   name_of_target(kIds[kScalar])};

bool has_avx512_bf16() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

struct Runnable {
  std::array<std::string_view, kTargetCount> names;
  std::size_t count = 0;
  Runnable() {
    for (std::size_t i = 0; i < kTargetCount; ++i)
      if (target_runs(i)) names[count++] = kNames[i];
  }
};

std::size_t place_of(std::string_view name) {
  for (std::size_t i = 0; i < kTargetCount; ++i)
    if (kNames[i] == name && target_runs(i)) return i;
  return kTargetCount;
}

std::size_t first_choice() {
  const char* asked = std::getenv("SOFTFOLD_SIMD");
  if (asked != nullptr) {
    const std::size_t named = place_of(asked);
    if (named != kTargetCount) return named;
    std::string known;
    for (std::size_t i = 0; i < kTargetCount; ++i)
      if (target_runs(i)) known += (known.empty() ? "" : ", ") + std::string(kNames[i]);
    throw Error(Code::option, "SOFTFOLD_SIMD=" + std::string(asked), known + " on this machine",
                "leave it unset: the best of them");
  }
  std::size_t best = 0;
  while (!target_runs(best)) ++best;
  return best;
}

std::atomic<std::size_t> choice{kTargetCount};

}  // namespace

bool has_amx() {
#if HWY_ARCH_X86 && defined(__linux__)
  static const bool granted = [] {
    constexpr unsigned kBfloat16 = 1U << 22, kTiles = 1U << 24;  // CPUID leaf 7, EDX
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (~d & (kBfloat16 | kTiles)) != 0) return false;
    constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

bool target_runs(std::size_t target) {
  if (target == kScalar) return true;
  if (target <= kAvx512Bf16 && !has_avx512_bf16()) return false;
  if (target == kAmx && !has_amx()) return false;
  const bool built = HWY_TARGETS != HWY_STATIC_TARGET && (HWY_TARGETS & kIds[target]) != 0;
  return built && (hwy::SupportedTargets() & kIds[target]) != 0;
}

std::size_t chosen_target() {
  std::size_t c = choice.load(std::memory_order_relaxed);
  if (c == kTargetCount) choice.store(c = first_choice(), std::memory_order_relaxed);
  return c;
}

std::span<const std::string_view> targets() {
  static const Runnable runnable;
  return {runnable.names.data(), runnable.count};
}

std::string_view current_target() { return kNames[chosen_target()]; }

bool use_target(std::string_view name) {
  const std::size_t place = place_of(name);
  if (place == kTargetCount) return false;
  choice.store(place, std::memory_order_relaxed);
  return true;
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
