// What a GPU finds by fewer instructions than the definition takes is the same, for every significand or number.
#include "cuda/reciprocal.cuh"
#include "softfold/fold/float16.hpp"
#include "softfold/fold/logsumexp.hpp"

#include <gtest/gtest.h>

namespace {

using namespace softfold;
using Lse = fold::LogSumExp<float>;

constexpr unsigned kSignificands = 1U << 23;

template <class Differs>
__global__ void count_differences(Differs differs, unsigned begin, unsigned* differences) {
  if (differs(begin + blockIdx.x * blockDim.x + threadIdx.x)) atomicAdd(differences, 1U);
}

/// Counts the numbers of a range for which something differs.
class CudaShortcuts : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
    ASSERT_EQ(cudaMallocManaged(&differences_, sizeof *differences_), cudaSuccess);
  }
  void TearDown() override { cudaFree(differences_); }

  template <class Differs>
  unsigned count(Differs differs, unsigned begin = 0, unsigned numbers = kSignificands) {
    *differences_ = 0;
    count_differences<<<numbers / 256, 256>>>(differs, begin, differences_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return *differences_;
  }

 private:
  unsigned* differences_ = nullptr;
};

__device__ float power_times(int exponent, unsigned significand) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23 | significand);
}
__device__ bool differ(float a, float b) { return __float_as_uint(a) != __float_as_uint(b); }

struct Reciprocal {
  int exponent;
  __device__ bool operator()(unsigned significand) const {
    const float a = power_times(exponent, significand);
    return differ(cuda::reciprocal_of_normal(a), 1.F / a);
  }
};
TEST_F(CudaShortcuts, Reciprocals) {
  for (int exponent = -126; exponent <= 125; ++exponent)
    EXPECT_EQ(count(Reciprocal{exponent}), 0U) << "of 2^" << exponent;
}

struct LogSum {
  double m;
  int exponent;
  fold::Scale<float>::Kappa kappa;
  __device__ bool operator()(unsigned significand) const {
    const Lse::State s{m, power_times(exponent, significand)};
    return differ(Lse::finish(s, kappa), static_cast<float>(Lse::log_sum(s, kappa)));
  }
};
TEST_F(CudaShortcuts, LogSums) {
  for (const double scale : {1., -0.3, 0.088388, 1e-30, 700., 1e-44}) {
    const auto kappa = fold::make_scale<float>(scale).kappas();
    for (const double m : {0., 1., -1., 2., -7., 30., -1000., 70000., 4194303., -4194048., 1e9, -0x1p60}) {
      for (const int exponent : {-1, 0, 1, 7, 17, 40})
        EXPECT_EQ(count(LogSum{m, exponent, kappa}), 0U) << "m " << m << ", d of 2^" << exponent << ", scale " << scale;
    }
  }
}

struct LogNormaliserDiffers {
  double m;
  int exponent;
  fold::Scale<float> scale;
  __device__ bool operator()(unsigned significand) const {
    const Lse::State s{m, power_times(exponent, significand)};
    const fold::LogNormaliser<float> norm(s, scale), near(s, scale, true);
    return differ(norm.half_log2_d, near.half_log2_d) || norm.exponent != near.exponent;
  }
};
TEST_F(CudaShortcuts, LogNormalisers) {
  for (const double scale : {1., 1e-44}) {
    for (const double m : {0., -7., 4194303., 1e9}) {
      for (const int exponent : {-1, 0, 1, 7, 17, 40})
        EXPECT_EQ(count(LogNormaliserDiffers{m, exponent, fold::make_scale<float>(scale)}), 0U)
            << "m " << m << ", d of 2^" << exponent << ", scale " << scale;
    }
  }
}

struct IsFarFromTheLogarithm {
  __device__ bool operator()(unsigned significand) const {
    const fold::NearLog near(power_times(0, significand));
    const double ln = fold::ln(fold::binade_of(static_cast<double>(power_times(0, significand))).g);
    return fabs(near.ln - ln) > 0x1.6ap-41 * fabs(ln);
  }
};
struct TakesTheLongWay {
  double m;
  __device__ bool operator()(unsigned significand) const {
    const Lse::State s{m, power_times(3, significand)};
    return !Lse::is_plain(s) || !fold::NearLog::tells(Lse::near_log_sum(s, fold::kLn2));
  }
};
TEST_F(CudaShortcuts, NearLogarithms) {
  EXPECT_EQ(count(IsFarFromTheLogarithm{}), 0U);
  for (const double m : {0., -7., 70000.}) {
    const unsigned far = count(TakesTheLongWay{m});
    EXPECT_GT(far, 0U) << "m " << m;
    EXPECT_LT(far, kSignificands >> 13) << "m " << m;
  }
  EXPECT_EQ(count(TakesTheLongWay{1e9}), kSignificands);
}

/// ln()'s division: of a float, and of doubles near it.
struct Quotient {
  __device__ bool operator()(unsigned significand) const {
    const auto g = __float_as_uint(power_times(0, 0)) - 0x4AFB0CU + significand;  // from sqrt(1/2) to sqrt(2)
    bool differs = false;
    for (unsigned low = 0, i = 0; i < 16; ++i, low = low * 1664525U + significand * 2654435761U + 1013904223U) {
      const double of = static_cast<double>(__uint_as_float(g));
      const double a = __longlong_as_double(__double_as_longlong(of) + (low >> 3)), f = a - 1.;
      differs =
          differs || __double_as_longlong(fold::quotient_near_one(f, a + 1.)) != __double_as_longlong(f / (a + 1.));
    }
    return differs;
  }
};
/// Of the doubles next to 1.
struct QuotientNextToOne {
  __device__ bool differs(long long bits) const {
    const double f = __longlong_as_double(bits) - 1., b = f + 2.;
    return __double_as_longlong(fold::quotient_near_one(f, b)) != __double_as_longlong(f / b);
  }
  __device__ bool operator()(unsigned ulps) const {
    const long long one = __double_as_longlong(1.);
    return differs(one + ulps) || differs(one - ulps);
  }
};
struct LnDiffers {
  double g, wanted;
  __device__ bool operator()(unsigned) const { return fold::ln(g) != wanted; }
};
TEST_F(CudaShortcuts, QuotientsOfLogarithms) {
  EXPECT_EQ(count(Quotient{}), 0U);
  EXPECT_EQ(count(QuotientNextToOne{}), 0U);
  for (const double ulps : {0., 1., 2., 3.})
    EXPECT_EQ(count(LnDiffers{1. - ulps * 0x1p-53, fold::ln(1. - ulps * 0x1p-53)}, 0, 256), 0U) << ulps;
}

template <class E>
struct Narrowed {
  __device__ bool operator()(unsigned bits) const {
    const float a = __uint_as_float(bits);
    return fold::narrow<E>(a).bits != fold::round_to_half<E>(a).bits;
  }
};
TEST_F(CudaShortcuts, EveryFloatNarrowed) {
  for (unsigned high = 0; high < 512; ++high) {
    EXPECT_EQ(count(Narrowed<fold::Float16>{}, high << 23), 0U) << "float16, from " << high << " << 23";
    EXPECT_EQ(count(Narrowed<fold::BFloat16>{}, high << 23), 0U) << "bfloat16, from " << high << " << 23";
  }
}

struct Widened {
  const float* wanted;
  __device__ bool operator()(unsigned bits) const {
    const float a = fold::widen(fold::Float16{static_cast<std::uint16_t>(bits)});
    return fold::is_nan(wanted[bits]) ? !fold::is_nan(a) : differ(a, wanted[bits]);
  }
};
TEST_F(CudaShortcuts, EveryFloat16Widened) {
  constexpr unsigned numbers = 1U << 16;
  float* wanted = nullptr;
  ASSERT_EQ(cudaMallocManaged(&wanted, numbers * sizeof *wanted), cudaSuccess);
  for (unsigned bits = 0; bits < numbers; ++bits)
    wanted[bits] = fold::widen(fold::Float16{static_cast<std::uint16_t>(bits)});
  EXPECT_EQ(count(Widened{wanted}, 0, numbers), 0U);
  cudaFree(wanted);
}

}  // namespace
