// What every softfold header needs: the version, the export macro, host/device qualifiers,
// and the refusal to be compiled in a way that would change bits.
#pragma once

#define SOFTFOLD_VERSION_MAJOR 0
#define SOFTFOLD_VERSION_MINOR 1
#define SOFTFOLD_VERSION_PATCH 0
#define SOFTFOLD_VERSION "0.1.0"

// Names the definition of the bits (docs/one-answer.md). It changes only when a result's bits may change;
// it is written into partial files and into the tables of known hashes.
#define SOFTFOLD_BITS_VERSION 1

#if __cplusplus < 202002L
#error "softfold needs C++20: compile this file with -std=c++20"
#endif

#if defined(__FAST_MATH__)
#error "softfold: -ffast-math changes results; compile this file without it (and with -ffp-contract=off)"
#endif

#if defined(_WIN32)
#error "softfold: Windows is not supported yet"
#endif

// Visible on both sides of the library's border, so that an exception's type is one type.
#define SOFTFOLD_API __attribute__((visibility("default")))

// Functions of fold/ and lift/ are callable from a CUDA kernel as well as from the host.
#if defined(__CUDACC__)
#define SOFTFOLD_HD __host__ __device__ __forceinline__
#else
#define SOFTFOLD_HD inline __attribute__((always_inline))
#endif
