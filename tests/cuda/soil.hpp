// Workspaces that do not begin as zeros: a call that reads of one what it has not written finds numbers there.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace softfold_test {

/// What lies in them: floats of 3, doubles of 32.5, which change a sum but leave it a number.
inline constexpr unsigned char kSoil = 0x40;

/// Memory in stream order, which calls take their workspaces from where none is lent.
inline void soil_workspaces() {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::uint64_t kept = kBytes;
  cudaMemPool_t pool = nullptr;
  void* memory = nullptr;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&memory, kBytes, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory, kSoil, kBytes, nullptr), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

/// What a workspace to lend holds, with a guard of other bytes behind it.
inline std::vector<unsigned char> soiled(std::size_t bytes, std::size_t guard, unsigned char of_guard) {
  std::vector<unsigned char> held(bytes + guard, of_guard);
  std::fill_n(held.begin(), bytes, kSoil);
  return held;
}

}  // namespace softfold_test
