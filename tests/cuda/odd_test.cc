// cpu == cuda, bit for bit: softmax and log_softmax of short rows of every length, wherever they begin, of any content.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaOdd : public Cuda {};

constexpr Values kValues[] = {Values::normal, Values::masked_tail, Values::specials, Values::normal,
                              Values::huge,   Values::tiny,        Values::drift,    Values::wide};

/// Rows end to end, or `gap` elements apart; the first element begins `offset` elements behind a vector's begin.
struct Layout {
  std::int64_t x_gap, y_gap, offset;
  bool in_place;
};
constexpr Layout kLayouts[] = {{0, 0, 0, false}, {0, 0, 3, false}, {0, 8, 1, false}, {3, 3, 0, false},
                               {8, 0, 8, false}, {0, 0, 5, true},  {1, 1, 2, true}};

TEST_F(CudaOdd, RowsOfEveryLength) {
  std::size_t at = 0;
  std::int64_t taken = 0;
  for (std::int64_t n = 1; n <= 1030; ++n)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
      const Layout& l = kLayouts[at % std::size(kLayouts)];
      const Values v = kValues[at % std::size(kValues)];
      const Op op = at % 5 < 3 ? Op::softmax : Op::log_softmax;
      const std::int64_t rows = 1 + static_cast<std::int64_t>(at++ * 37 % 300) * 128 / (n + 64);
      // Where x and y lie otherwise to 16 bytes, other kernels take them.
      Tensor x(t, {rows, n}, {n + l.x_gap, 1}, l.offset), y(t, {rows, n}, {n + l.y_gap, 1}, l.offset);
      x.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
      softfold::RowOptions o;
      o.scale = at % 4 == 1 ? -0.75 : 1.;
      std::string kernel;
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = l.in_place ? in : y.view(gpu);
        const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
        plan.run();
        kernel = plan.kernel();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      taken += kernel == "softmax_odd_rows" ? 1 : 0;
      Tensor& result = l.in_place ? x : y;
      ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
          << rows << "x" << n << " " << name_of(t) << " layout " << &l - kLayouts << " values " << static_cast<int>(v)
          << " by " << kernel;
    }
  EXPECT_GT(taken, 2000);
}

/// Enough rows that every warp takes more than one set of them.
TEST_F(CudaOdd, ManyRows) {
  for (const std::int64_t n : {1, 3, 10, 23, 50, 64, 65, 127, 250, 300, 513, 1000})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        const std::int64_t rows = 1000000 / (n + 8) + n;
        Tensor x(t, {rows, n}, {}, 1), y(t, {rows, n}, {}, 1);
        x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        for (const bool gpu : {false, true}) {
          const softfold::View in = x.view(gpu), out = y.view(gpu);
          softfold::plan(op, {&in, 1}, {&out, 1}, softfold::RowOptions{}).run();
        }
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n << " " << name_of(t);
      }
}

}  // namespace
}  // namespace softfold_test
