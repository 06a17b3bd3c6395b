// Which of Highway's targets softfold is compiled for. Include it before any Highway header.
// Left out: targets whose MulAdd is a product and a sum (SSE2, SSSE3, SSE4, EMU128), ones that give the same code as
// another (AVX3_DL, AVX3_ZEN4, AVX3_SPR), and ones whose vector length is unknown when compiling (SVE). The
// plain-scalar target stays as the fallback, with libm's fma.
#pragma once

// SSE2, ZEN4 and SPR as bits: Highway 1.0.3 has no names for them, and later versions would take SSE2 for the fallback.
#define HWY_DISABLED_TARGETS                                                                                       \
  ((1LL << 14) | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | (1LL << 6) | (1LL << 4) | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128)
#define HWY_BROKEN_EMU128 1
