// cpu == cuda, bit for bit: problems of so few elements that few_elements takes them, of every kind that it knows.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;
using Sizes = std::vector<std::int64_t>;

/// The kernels for small problems leave them to it.
const int kTaken =
    setenv("SOFTFOLD_WITHOUT", "softmax_small_rows,backward_small_rows,softmax_any_few,backward_any_few", 1);

struct Kind {
  std::vector<Op> ops;
  std::vector<DType> dtypes;
  std::vector<Sizes> shapes;
  int axis;
  bool mask, length, scales;
};

const std::vector<DType> kFloat32{DType::float32}, kHalves{DType::bfloat16, DType::float16},
    kFloats{DType::float32, DType::bfloat16, DType::float16};
const std::vector<Op> kSoftmax{Op::softmax, Op::log_softmax}, kFolds{Op::logsumexp, Op::state},
    kGradients{Op::softmax_backward, Op::log_softmax_backward};

class CudaFewElements : public Cuda {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(kTaken, 0); }

  static void compare(const Kind& kind, Op op, DType t, const Sizes& shape, std::size_t at) {
    const auto axis = static_cast<std::size_t>(kind.axis);
    const std::int64_t n = shape[axis], behind = axis == 0 ? shape[1] : 1;
    const std::int64_t rows = shape[0] * shape[1] / n;
    Tensor x(t, shape, {}, 0), dy(t, shape, {}, 0), y(t, shape, {}, 0), mask(DType::boolean, shape);
    Sizes of_rows = shape;
    of_rows[axis] = 1;
    Tensor length(DType::int32, of_rows), scales(DType::float32, of_rows);
    Tensor lse(DType::float32, {rows}), state(DType::float64, {rows, 4});
    const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
    x.fill([&](std::int64_t i) { return value_of(v, i / behind / n * behind + i % behind, i / behind % n, n); });
    dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
    mask.fill(
        [&](std::int64_t i) { return Random(static_cast<std::uint64_t>(i) * 77 + at).uniform() < 0.7 ? 1. : 0.; });
    length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
    scales.fill([&](std::int64_t i) { return i % 5 == 3 ? -1.5 : 0.5 + static_cast<double>(i % 3); });
    const auto options = [&](bool gpu) {
      softfold::RowOptions o;
      o.axis = kind.axis;
      if (kind.mask) o.mask = mask.view(gpu);
      if (kind.length) o.length = length.view(gpu);
      if (kind.scales) o.scales = scales.view(gpu);
      return o;
    };
    Tensor& result = op == Op::logsumexp ? lse : op == Op::state ? state : y;
    const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward;
    const std::string kernel =
        backward ? run_on_both(op, {&x, &dy}, result, options) : run_on_both(op, {&x}, result, options);
    const std::string what = std::string(name_of(t)) + " " + std::to_string(shape[0]) + "x" + std::to_string(shape[1]) +
                             " op " + std::to_string(static_cast<int>(op));
    EXPECT_EQ(kernel, "few_elements") << what;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
    ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << what;
  }
};

TEST_F(CudaFewElements, EveryKind) {
  const Kind kinds[] = {{kSoftmax, kFloats, {{300, 77}, {1, 1024}, {13, 512}, {9, 5}}, 1, true, false, false},
                        {kSoftmax, kFloats, {{300, 64}, {40, 1000}}, 1, true, true, true},
                        {kSoftmax, kFloats, {{70000, 15}, {2000, 100}, {3, 1}}, 1, false, false, true},
                        {kSoftmax, kFloats, {{70, 1025}, {9, 5000}, {3, 33000}, {1, 262144}}, 1, false, true, false},
                        {kSoftmax, kHalves, {{3, 140000}, {1, 262144}, {7, 131073}}, 1, false, false, false},
                        {kSoftmax, kFloats, {{40, 1000}, {1500, 40}, {4096, 72}}, 0, false, false, false},
                        {kSoftmax, kFloats, {{5000, 40}, {9000, 13}, {20000, 7}}, 0, true, false, false},
                        {kSoftmax, kFloats, {{5000, 40}, {17000, 9}}, 0, false, true, false},
                        {kFolds, kFloats, {{512, 40}, {3000, 100}, {30000, 20}}, 0, false, false, false},
                        {kFolds, kFloats, {{512, 40}, {3000, 100}, {30000, 20}}, 0, true, true, false},
                        {kFolds, kFloats, {{100, 64}, {40, 1000}, {9, 5001}, {2, 140000}}, 1, false, true, false},
                        {kFolds, kFloats, {{300, 50}, {100, 20}, {1, 33}}, 1, true, false, false},
                        {kFolds, kFloats, {{300, 9}, {1000, 31}}, 1, false, false, false},
                        {kFolds, kFloats, {{900, 128}, {70, 256}, {5, 512}}, 1, false, false, false},
                        {kGradients, kFloats, {{90000, 12}, {700, 100}, {20, 17}, {2, 1}}, 1, true, false, false},
                        {kGradients, kFloats, {{700, 127}, {100, 64}}, 1, false, true, true},
                        {kSoftmax, {DType::float64}, {{5, 1000}, {100, 600}}, 1, true, false, false},
                        {kGradients, {DType::float64}, {{5, 1000}, {100, 600}}, 1, false, true, false},
                        {kGradients, kFloat32, {{3, 8200}, {2, 17001}, {1, 50257}}, 1, false, false, false}};
  std::size_t at = 0;
  for (const Kind& kind : kinds)
    for (const Op op : kind.ops)
      for (const DType t : kind.dtypes)
        for (const Sizes& shape : kind.shapes) {
          compare(kind, op, t, shape, ++at);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaFewElements, NoRows) {
  for (const Op op : {Op::softmax, Op::log_softmax, Op::logsumexp, Op::softmax_backward})
    for (const DType t : kFloats)
      for (const std::int64_t n : {9, 1000, 3001, 5001, 140000})
        for (const bool masked : {false, true}) {
          Tensor x(t, {0, n}), y(t, {0, n}), lse(DType::float32, {0}), mask(DType::boolean, {0, n});
          softfold::RowOptions o;
          if (masked) o.mask = mask.view(true);
          const std::vector<softfold::View> in(op == Op::softmax_backward ? 2 : 1, x.view(true));
          const softfold::View out = op == Op::logsumexp ? lse.view(true) : y.view(true);
          EXPECT_NO_THROW(softfold::plan(op, in, {&out, 1}, o).run()) << n << " op " << static_cast<int>(op);
          EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
}

/// What is no few elements, or none of these kinds, is left to the others.
TEST_F(CudaFewElements, Others) {
  const auto kernel = [](Op op, DType t, const Sizes& shape, int axis) {
    softfold::RowOptions o;
    o.axis = axis;
    Sizes of_rows = shape;
    of_rows.erase(of_rows.begin() + axis);
    Tensor x(t, shape), y(op == Op::logsumexp ? DType::float32 : t, op == Op::logsumexp ? of_rows : shape);
    const softfold::View in[] = {x.view(true)}, out[] = {y.view(true)};
    return std::string(softfold::plan(op, in, out, o).kernel());
  };
  EXPECT_NE(kernel(Op::softmax, DType::float32, {70, 1000}, 1), "few_elements");
  EXPECT_NE(kernel(Op::softmax, DType::float64, {300, 40}, 0), "few_elements");
  EXPECT_NE(kernel(Op::softmax, DType::float32, {3, 140000}, 1), "few_elements");
  EXPECT_NE(kernel(Op::softmax, DType::float32, {1024, 4100}, 0), "few_elements");
  EXPECT_NE(kernel(Op::logsumexp, DType::float32, {511, 9}, 0), "few_elements");
  EXPECT_NE(kernel(Op::logsumexp, DType::float32, {8193, 512}, 1), "few_elements");
}

}  // namespace
}  // namespace softfold_test
