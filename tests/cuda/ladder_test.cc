// The ladder's first rungs on the GPU: near the automatic choice where they can be, NaN where naive overflows.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Rung;

class CudaLadder : public Cuda {
 protected:
  static std::vector<float> softmax(Tensor& x, Tensor& y, Rung rung) {
    softfold::RowOptions options;
    options.rung = rung;
    const softfold::View in = x.cuda(), out = y.cuda();
    const auto plan = softfold::plan(softfold::Op::softmax, {&in, 1}, {&out, 1}, options);
    y.poison(0xA5);
    plan.run();
    cuda_check(cudaDeviceSynchronize());
    const auto bytes = y.download();
    std::vector<float> result(static_cast<std::size_t>(y.count()));
    std::memcpy(result.data(), bytes.data(), result.size() * 4);
    return result;
  }
};

TEST_F(CudaLadder, RungsAreNearTheAutomaticChoice) {
  for (const std::int64_t n : {1, 31, 256, 1000, 1025, 50257, 300000})
    for (const bool specials : {false, true}) {
      const std::int64_t rows = 7;
      Tensor x(DType::float32, {rows, n}), y(DType::float32, {rows, n});
      x.fill([&](std::int64_t i) { return value_of(specials ? Values::specials : Values::normal, i / n, i % n, n); });
      const auto want = softmax(x, y, Rung::automatic);
      for (const Rung rung : {Rung::naive, Rung::safe, Rung::online}) {
        if (specials && rung == Rung::naive) continue;
        const auto got = softmax(x, y, rung);
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << n << " rung " << static_cast<int>(rung) << " at " << i;
          if (!std::isnan(want[i])) {
            ASSERT_NEAR(got[i], want[i], 1e-5 * want[i]) << n << " rung " << static_cast<int>(rung) << " at " << i;
          }
        }
      }
    }
}

TEST_F(CudaLadder, NaiveOverflowsAndTheOthersDoNot) {
  const std::int64_t n = 3000;
  Tensor x(DType::float32, {1, n}), y(DType::float32, {1, n});
  x.fill([](std::int64_t i) { return i % 2 == 0 ? 100. : 90.; });
  EXPECT_TRUE(std::isnan(softmax(x, y, Rung::naive)[0]));
  for (const Rung rung : {Rung::safe, Rung::online}) EXPECT_NEAR(softmax(x, y, rung)[0], 2. / 3000, 1e-6);
}

}  // namespace
}  // namespace softfold_test
