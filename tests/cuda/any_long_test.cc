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
void compare_gradients(DType t, std::int64_t n, std::size_t at) {
  const std::int64_t rows = 3;
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
  mask.fill([&](std::int64_t i) { return i / n == 1 ? 0. : i % 3 != 0 ? 1. : 0.; });
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
  EXPECT_EQ(kernel, plain ? "backward_long" : "backward_any_long") << at;
}

TEST_F(CudaAnyLong, Gradients) {
  std::size_t at = 0;
  for (const std::int64_t n : kLong)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int i = 0; i < 6; ++i) {
        if (HasFailure()) return;
        compare_gradients(t, n, at++);
      }
}

}  // namespace
}  // namespace softfold_test
