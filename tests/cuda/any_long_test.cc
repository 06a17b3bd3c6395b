// cpu == cuda, bit for bit: rows that no cluster holds and that no kernel takes by vectors, and gradients of all such
// rows.
#include "cuda/row_case.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaAnyLong : public Cuda {};

constexpr std::int64_t kLong[] = {262145, 300000, 524289};

TEST_F(CudaAnyLong, Softmax) {
  std::size_t at = 0;
  for (const std::int64_t n : kLong)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const Op op : {Op::softmax, Op::log_softmax})
        for (int i = 0; i < 3; ++i, ++at) {
          CudaCase c;
          c.op = op, c.dtype = t, c.n = n, c.rows = i == 2 ? 7 : 3;
          c.values = kAnyValues[pick(at, 0, std::size(kAnyValues))];
          c.mask = i != 1, c.length = i == 1 || pick(at, 1, 3) == 0, c.scales = pick(at, 2, 2) == 0;
          c.out = pick(at, 3, 2) == 0 ? t : t == DType::float32 ? DType::bfloat16 : DType::float32;
          c.x_offset = static_cast<std::int64_t>(pick(at, 4, 3)),
          c.y_offset = static_cast<std::int64_t>(pick(at, 5, 3));
          c.in_place = c.out == t && pick(at, 6, 3) == 0;
          c.scale = pick(at, 7, 4) == 0 ? -0.75 : 1.;
          c.empty = pick(at, 8, 3) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
          std::string kernel;
          expect_same(c, &kernel);
          if (HasFatalFailure()) return;
          EXPECT_EQ(kernel, "softmax_any_long") << describe(c);
        }
}

/// Plain ones end to end, others apart, with a mask, lengths, scales or operands that are not alike.
void compare_gradients(DType t, std::int64_t n, std::size_t at, std::int64_t rows = 3) {
  const bool plain = at % 2 == 0, log = pick(at, 0, 2) == 0, mixed = !plain && pick(at, 1, 3) == 0;
  const bool has_mask = !plain && pick(at, 2, 2) == 0, has_length = !plain && pick(at, 3, 2) == 0,
             has_scales = !plain && !has_mask && !has_length && !mixed;
  const std::int64_t offset = static_cast<std::int64_t>(pick(at, 4, 4)), gap = plain ? 0 : 5;
  const std::size_t to = mixed ? 2 : pick(at, 5, 3);
  Tensor y(t, {rows, n}, {n + gap, 1}, offset), dy(t, {rows, n}, {n + gap, 1}, offset);
  Tensor dx(!mixed                ? t
            : t == DType::float32 ? DType::bfloat16
                                  : DType::float32,
            {rows, n}, {n, 1}, plain ? offset : offset + 1);
  Tensor mask(DType::boolean, {rows, n}), length(DType::int64, {rows, 1}), scales(DType::float32, {rows, 1});
  mask.fill([&](std::int64_t i) { return i / n % 9 == 1 ? 0. : i % 3 != 0 ? 1. : 0.; });
  length.fill([&](std::int64_t i) { return i == 0 ? 0. : i == 1 ? double(n) : double(n - 2000); });
  scales.fill([](std::int64_t i) { return i == 1 ? 0. : -1.25; });
  const auto options = [&](bool gpu) {
    softfold::RowOptions o;
    if (has_mask) o.mask = mask.view(gpu);
    if (has_length) o.length = length.view(gpu);
    if (has_scales) o.scales = scales.view(gpu);
    o.scale = pick(at, 6, 3) == 0 ? -0.75 : 1.;
    return o;
  };
  y.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
  const softfold::View forward = y.view(false);
  softfold::plan(log ? Op::log_softmax : Op::softmax, {&forward, 1}, {&forward, 1}, options(false)).run();
  y.upload();
  dy.fill([&](std::int64_t i) { return i / n == 2 && i % 9999 == 77 ? double(INFINITY) : gradient_of(i / n, i % n); });
  Tensor& result = to == 0 ? dy : to == 1 ? y : dx;
  const std::string kernel =
      run_on_both(log ? Op::log_softmax_backward : Op::softmax_backward, {&y, &dy}, result, options);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
      << n << " " << name_of(t) << " at " << at << " by " << kernel;
  EXPECT_EQ(kernel, t == DType::float64 ? "backward_double_long" : plain ? "backward_long" : "backward_any_long") << at;
}

TEST_F(CudaAnyLong, Gradients) {
  std::size_t at = 0;
  for (const std::int64_t n : kLong)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
      for (int i = 0; i < 6; ++i) {
        if (HasFailure()) return;
        compare_gradients(t, n, at++);
      }
}

/// Blocks have several groups of chunks, of several rows.
TEST_F(CudaAnyLong, ManyRows) {
  CudaCase c;
  c.dtype = c.out = DType::bfloat16;
  c.rows = 40, c.n = 524289, c.mask = c.length = true;
  std::string kernel;
  expect_same(c, &kernel);
  EXPECT_EQ(kernel, "softmax_any_long");
  for (const std::size_t at : {0, 1, 7}) compare_gradients(DType::bfloat16, 524289, at, 40);
}

/// How three by two rows lie: elements and where the axes' neighbours are, from the outer axis on.
struct Lies {
  std::vector<std::int64_t> strides;
  bool causal;
};
constexpr std::int64_t kN = 262150;
const Lies kLies[] = {{{6 * kN, 2 * kN, 2}, false},    {{0, kN, 1}, false},
                      {{kN, 3 * kN, 1}, false},        {{2 * kN, kN, -1}, false},
                      {{3 * kN + 9, kN + 3, 1}, true}, {{2 * kN + 6, kN + 3, 1}, false}};

/// Elements that lie apart or backwards, one row for all of an axis, axes in another order, rows with gaps, a causal
/// limit; y and dy of another dtype than each other.
TEST_F(CudaAnyLong, Layouts) {
  const std::vector<std::int64_t> shape{3, 2, kN};
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const Lies& lies : kLies) {
      const bool rows_with_gaps = &lies == &kLies[5];
      const auto options = [&](bool) {
        softfold::RowOptions o;
        o.causal = lies.causal;
        return o;
      };
      Tensor x(t, shape, lies.strides), y(t, shape), dy(t == DType::float32 ? DType::bfloat16 : t, shape, {}, 1);
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i / kN, i % kN, kN); });
      dy.fill([&](std::int64_t i) { return gradient_of(i / kN, i % kN); });
      for (const Op op : {Op::softmax, Op::log_softmax}) {
        const std::string kernel = run_on_both(op, {&x}, y, options);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << &lies - kLies << " by " << kernel;
        if (!rows_with_gaps) EXPECT_EQ(kernel, "softmax_any_long") << &lies - kLies;
      }
      const std::string kernel = run_on_both(Op::softmax_backward, {&x, &dy}, y, options);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << &lies - kLies << " by " << kernel;
      EXPECT_EQ(kernel, "backward_any_long") << &lies - kLies;
    }
}

/// Which kernel takes plain gradients, and rows for which a rung is asked.
TEST_F(CudaAnyLong, Kernels) {
  const auto gradient = [](std::int64_t rows, std::int64_t stride) {
    Tensor y(DType::float32, {rows, kN}, {stride, 1});
    const softfold::View in[] = {y.cuda(), y.cuda()}, out = y.cuda();
    return std::string(softfold::plan(Op::softmax_backward, in, {&out, 1}, softfold::RowOptions{}).kernel());
  };
  EXPECT_EQ(gradient(2, kN), "backward_long");
  EXPECT_EQ(gradient(2, kN + 4), "backward_any_long");
  EXPECT_EQ(gradient(1, kN + 4), "backward_long");
  Tensor x(DType::float32, {2, kN}), mask(DType::boolean, {2, kN});
  for (const auto& [rung, kernel] :
       {std::pair{softfold::Rung::tiled, "softmax_any_long"}, {softfold::Rung::automatic, "softmax_any_long"}}) {
    softfold::RowOptions o;
    o.mask = mask.cuda(), o.rung = rung;
    const softfold::View all = x.cuda();
    EXPECT_EQ(softfold::plan(Op::softmax, {&all, 1}, {&all, 1}, o).kernel(), kernel);
  }
}

}  // namespace
}  // namespace softfold_test
