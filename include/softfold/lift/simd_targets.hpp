// Which of Highway's targets softfold is compiled for. Include it before any Highway header.
// Left out: targets whose MulAdd is a product and a sum (SSSE3, SSE4, EMU128), ones that give the same code as another
// (AVX3_DL), and ones whose vector length is unknown when compiling (SVE). The plain-scalar target stays as the
// fallback, with libm's fma.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_BROKEN_EMU128 1
