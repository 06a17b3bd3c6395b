// cpu == cuda, bit for bit: softmax, log_softmax, logsumexp and states of rows that a lane holds, of any content: of
// whole vectors, or of a few elements.
#include "cuda/both.hpp"

#include <cmath>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Empty;
using softfold::Op;

class CudaLane : public Cuda {};

/// Where rows of one kind of content meet such of another in a warp: most lie close together, one in 16 is anything.
double mixed(std::int64_t row, std::int64_t i, std::int64_t n) {
  Random of_row(static_cast<std::uint64_t>(row) * 0xA0761D6478BD642FULL + 11);
  const bool any = row / 512 % 2 == 1 && of_row.uniform() < 1. / 16;
  const auto kind = static_cast<Values>(of_row.uniform() * static_cast<double>(Values::count));
  return value_of(any ? kind : Values::normal, row, i, n);
}

bool folds(Op op) { return op == Op::logsumexp || op == Op::state; }

struct Case {
  std::int64_t n, rows, offset;
  std::int64_t beyond;  ///< elements by which results begin further from a boundary
  DType type;
  Op op;
  double scale;
  Empty empty;
  bool in_place;
};

/// The kernel that took it.
std::string compare(const Case& c) {
  const bool in_place = c.in_place && !folds(c.op);
  Tensor x(c.type, {c.rows, c.n}, {}, c.offset);
  Tensor y = c.op == Op::state       ? Tensor(DType::float64, {c.rows, 4})
             : c.op == Op::logsumexp ? Tensor(c.in_place ? c.type : DType::float32, {c.rows})
                                     : Tensor(c.type, {c.rows, c.n}, {}, c.offset + c.beyond);
  x.fill_by_threads([&](std::int64_t i) { return mixed(i / c.n, i % c.n, c.n); });
  softfold::RowOptions o;
  o.scale = c.scale, o.empty = c.empty;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = in_place ? in : y.view(gpu);
    const auto plan = softfold::plan(c.op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Tensor& result = in_place ? x : y;
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << c.rows << "x" << c.n << " " << name_of(c.type) << " by " << kernel << ", scale " << c.scale << ", offset "
      << c.offset;
  return kernel;
}

/// From one row to more than a block takes; operands that begin in either half of a sector.
TEST_F(CudaLane, EveryWidth) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (int vectors = 1; vectors <= 9; ++vectors)
      for (const std::int64_t rows : {1, 2, 31, 33, 255, 257, 1000, 2049, 5000})
        for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state}) {
          const std::int64_t width = t == DType::float32 ? 4 : 8;
          const double scale = at % 5 == 0 ? -0.75 : at % 5 == 1 ? 30. : 1.;
          const Case c{vectors * width,
                       rows,
                       at % 3 == 0 ? width : 0,
                       at % 3 == 0 ? width : 0,
                       t,
                       op,
                       scale,
                       at % 4 == 0 ? Empty::nan : Empty::zero,
                       at % 7 == 0};
          ++at;
          const std::string kernel = compare(c);
          const char* expected = folds(op) ? "fold_lane_rows" : "softmax_lane_rows";
          EXPECT_EQ(kernel == expected, rows > 1 && vectors <= 8) << kernel << " " << c.n;
          if (HasFailure()) return;
        }
}

/// As many as give each lane all the rows that a set has.
TEST_F(CudaLane, ManyRows) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const int vectors : {1, 2, 3, 4, 8})
      for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp}) {
        const std::int64_t rows = 2100037 / vectors;
        compare({vectors * (t == DType::float32 ? 4 : 8), rows, 0, 0, t, op, 1., Empty::zero, vectors == 4});
        if (HasFailure()) return;
      }
}

/// Of a few elements, from one row to more than a block takes, beginning anywhere.
TEST_F(CudaLane, EveryNarrowWidth) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (std::int64_t n = 2; n * (t == DType::float32 ? 4 : 2) < 130; ++n)
      for (const std::int64_t rows : {1, 2, 33, 255, 2049, 5000})
        for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state}) {
          const std::int64_t width = t == DType::float32 ? 4 : 8;
          if (n % width == 0) continue;
          const double scale = at % 5 == 0 ? -0.75 : at % 5 == 1 ? 30. : 1.;
          const std::int64_t offset = at % 3 == 0 ? static_cast<std::int64_t>(at) % width : 0;
          const Case c{n, rows, offset, width, t, op, scale, at % 4 == 0 ? Empty::nan : Empty::zero, at % 7 == 0};
          ++at;
          const std::string kernel = compare(c);
          const bool log = op == Op::log_softmax && n > 32 && n <= 56;
          const bool words = t == DType::float32 || n > 15 || n % 2 == 1 || offset % 2 == 0;
          EXPECT_EQ(kernel == (folds(op) ? "fold_narrow_rows" : "softmax_narrow_rows"), rows > 1 && words && !log)
              << kernel << " " << n << " " << offset;
          if (HasFailure()) return;
        }
}

TEST_F(CudaLane, ManyNarrowRows) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const int n : {2, 3, 5, 10, 15, 29})
      for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp}) {
        compare({n, 9100037 / n, 0, 0, t, op, 1., Empty::zero, n == 5});
        if (HasFailure()) return;
      }
}

void fill_gradient(Tensor& y, Tensor& dy, std::int64_t n) {
  y.fill_by_threads([&](std::int64_t i) { return -std::abs(mixed(i / n, i % n, n)) / 8; });
  dy.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n + 7, i % n, n); });
}
/// On the CPU, then the GPU; the kernel that took it there.
std::string run_gradient(Op op, Tensor& y, Tensor& dy, Tensor& result) {
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in[] = {y.view(gpu), dy.view(gpu)}, out = result.view(gpu);
    const auto plan = softfold::plan(op, in, {&out, 1}, softfold::RowOptions{});
    plan.run();
    kernel = plan.kernel();
  }
  return kernel;
}

/// Gradients, of few rows and of as many as give each lane all the rows of a set, to dx, y or dy.
TEST_F(CudaLane, Gradients) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (int vectors = 1; vectors <= 8; ++vectors)
      for (const std::int64_t rows :
           {std::int64_t{2}, std::int64_t{33}, std::int64_t{1000}, std::int64_t{1700001} / vectors})
        for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
          const std::int64_t n = vectors * (t == DType::float32 ? 4 : 8);
          Tensor y(t, {rows, n}), dy(t, {rows, n}), dx(t, {rows, n});
          fill_gradient(y, dy, n);
          Tensor& result = at % 3 == 0 ? dx : at % 3 == 1 ? y : dy;
          const std::string kernel = run_gradient(op, y, dy, result);
          ++at;
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          EXPECT_EQ(kernel, "backward_lane_rows") << rows << "x" << n << " " << name_of(t);
          ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
              << rows << "x" << n << " " << name_of(t) << " " << name_of(op);
        }
}

TEST_F(CudaLane, NarrowGradients) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (std::int64_t n = 2; n * (t == DType::float32 ? 4 : 2) < 128; ++n)
      for (const std::int64_t rows :
           {std::int64_t{2}, std::int64_t{33}, std::int64_t{5000}, n < 16 ? 3100001 / n : 40001})
        for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
          if (n % (t == DType::float32 ? 4 : 8) == 0) continue;
          const std::int64_t offset = n % 10 == 0 ? 3 : n % 2 == 0 ? 2 * (n % 3) : n % 5;
          Tensor y(t, {rows, n}, {}, offset), dy(t, {rows, n}, {}, offset + 16), dx(t, {rows, n}, {}, offset + 8);
          fill_gradient(y, dy, n);
          Tensor& result = at % 3 == 0 ? dx : at % 3 == 1 ? y : dy;
          ++at;
          const std::string kernel = run_gradient(op, y, dy, result);
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          const bool log = op == Op::log_softmax_backward && n > 32 && n <= 56;
          const bool words = t == DType::float32 || n != 10;  // those of 10 begin inside words
          EXPECT_EQ(kernel == "backward_narrow_rows", !log && words)
              << kernel << " " << rows << "x" << n << " " << name_of(t);
          ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
              << rows << "x" << n << " " << name_of(t) << " " << name_of(op);
        }
}

/// What a lane does not hold, or rows that do not lie end to end on vectors, goes to other kernels, and is right there.
TEST_F(CudaLane, Others) {
  for (const std::int64_t n : {7, 9, 12, 20, 60})
    EXPECT_NE(compare({n, 100, 1, 1, DType::bfloat16, Op::softmax, 1., Empty::zero, false}), "softmax_lane_rows");
  EXPECT_NE(compare({16, 100, 4, 4, DType::bfloat16, Op::softmax, 1., Empty::zero, false}), "softmax_lane_rows");
  EXPECT_NE(compare({16, 100, 0, 0, DType::bfloat16, Op::softmax, 0., Empty::zero, false}), "softmax_lane_rows");
}

}  // namespace
}  // namespace softfold_test
