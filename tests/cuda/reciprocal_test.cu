// reciprocal_of_normal is a division's, for every significand.
#include "cuda/reciprocal.cuh"

#include <gtest/gtest.h>

namespace {

__global__ void count_differences(int exponent, unsigned* differences) {
  const unsigned significand = blockIdx.x * blockDim.x + threadIdx.x;
  const float a = __uint_as_float(static_cast<unsigned>(exponent + 127) << 23 | significand);
  const float own = softfold::cuda::reciprocal_of_normal(a);
  if (__float_as_uint(own) != __float_as_uint(1.F / a)) atomicAdd(differences, 1U);
}

TEST(CudaReciprocal, EverySignificand) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  unsigned* differences = nullptr;
  ASSERT_EQ(cudaMallocManaged(&differences, sizeof *differences), cudaSuccess);
  for (int exponent = -126; exponent <= 125; ++exponent) {
    *differences = 0;
    count_differences<<<(1U << 23) / 256, 256>>>(exponent, differences);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(*differences, 0U) << "of 2^" << exponent;
  }
  cudaFree(differences);
}

}  // namespace
