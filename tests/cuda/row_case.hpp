// An operation of rows on both backends, of any layout and options.
#pragma once

#include "cuda/both.hpp"

namespace softfold_test {

/// One operation of rows: what they are like, how they lie, and its options.
struct CudaCase {
  softfold::Op op = softfold::Op::softmax;
  softfold::DType dtype = softfold::DType::float32, out = softfold::DType::float32;
  std::int64_t rows = 3, n = 1000;
  Values values = Values::normal;
  double scale = 1;
  std::int64_t row_stride = 0;  ///< elements between rows; 0: contiguous
  std::int64_t x_offset = 0, y_offset = 0;
  bool mask = false, length = false, scales = false, transposed = false, in_place = false;
  softfold::Empty empty = softfold::Empty::zero;
};

inline std::string describe(const CudaCase& c) {
  return std::string(name_of(c.op)) + " " + std::string(name_of(c.dtype)) + "->" + std::string(name_of(c.out)) + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.n) + " values " + std::to_string(static_cast<int>(c.values)) +
         " scale " + std::to_string(c.scale) + " stride " + std::to_string(c.row_stride) + " offsets " +
         std::to_string(c.x_offset) + "," + std::to_string(c.y_offset) + (c.mask ? " mask" : "") +
         (c.length ? " length" : "") + (c.scales ? " scales" : "") + (c.transposed ? " transposed" : "") +
         (c.in_place ? " in place" : "") + (c.empty == softfold::Empty::nan ? " Empty::nan" : "");
}

/// Runs it on both backends and compares every byte. by: which kernel it was.
inline void expect_same(const CudaCase& c, std::string* by = nullptr) {
  const std::int64_t stride = c.row_stride != 0 ? c.row_stride : c.n;
  std::vector<std::int64_t> strides{stride, 1};
  if (c.transposed) strides = {1, c.rows};
  Tensor x(c.dtype, {c.rows, c.n}, strides, c.x_offset);
  x.fill_by_threads([&](std::int64_t i) { return value_of(c.values, i / c.n, i % c.n, c.n); });
  const bool per_row = c.op == softfold::Op::logsumexp, states = c.op == softfold::Op::state;
  Tensor y = states    ? Tensor(softfold::DType::float64, {c.rows, 4})
             : per_row ? Tensor(c.out, {c.rows})
                       : Tensor(c.out, {c.rows, c.n}, strides, c.y_offset);
  Tensor mask(softfold::DType::boolean, {c.mask ? c.rows : 1, c.mask ? c.n : 1});
  mask.fill([&](std::int64_t i) {
    return i / c.n % 5 == 3 ? 0. : static_cast<double>(Random(static_cast<std::uint64_t>(i)).next() % 4 != 0);
  });
  Tensor length(softfold::DType::int32, {c.rows});
  length.fill([&](std::int64_t i) { return static_cast<double>((i * 7919 + c.n / 2) % (c.n + 1)); });
  Tensor scales(softfold::DType::float32, {c.rows});
  scales.fill([](std::int64_t i) { return i % 6 == 5 ? 0. : (i % 2 != 0 ? -0.75 : 1.5) * static_cast<double>(i % 4); });
  std::string kernel;
  for (const bool gpu : {false, true}) {
    softfold::RowOptions o;
    o.scale = c.scale;
    o.empty = c.empty;
    if (c.mask) o.mask = mask.view(gpu);
    if (c.length) o.length = length.view(gpu);
    if (c.scales) o.scales = scales.view(gpu);
    const softfold::View in = x.view(gpu), out = c.in_place ? in : y.view(gpu);
    const auto plan = softfold::plan(c.op, {&in, 1}, {&out, 1}, o);
    plan.run();
    if (gpu) kernel = plan.kernel();
  }
  if (by != nullptr) *by = kernel;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << describe(c) << " by " << kernel;
  Tensor& result = c.in_place ? x : y;
  ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << describe(c) << " by " << kernel;
}

}  // namespace softfold_test
