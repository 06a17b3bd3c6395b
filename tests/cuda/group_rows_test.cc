// cpu == cuda, bit for bit: softmax of rows that are longer than clusters hold well, by groups of a grid's blocks.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaGroupRows : public Cuda {};

/// At the edges of chunks, of runs of eight or four of them, of spans of words, of what the kernel has places for,
/// and of what a device with 132 processors holds; frames move, and rows are read again, the last one too.
TEST_F(CudaGroupRows, EdgesOfWhatGroupsTake) {
  struct Long {
    DType dtype;
    std::int64_t n;
  };
  constexpr std::int64_t kRun = 8 * 1024;
  std::size_t at = 0;
  for (const Long& l : {Long{DType::bfloat16, 257 * 1024}, {DType::float16, 300000},
                        {DType::bfloat16, 340 * 1024},     {DType::bfloat16, 64 * kRun + 8},
                        {DType::float16, 65 * kRun},       {DType::float32, 600004},
                        {DType::float32, 150 * 4096 + 4},  {DType::float16, 65 * kRun + 8},
                        {DType::bfloat16, 800000},         {DType::float32, 100 * kRun - 4},
                        {DType::bfloat16, 128 * kRun},     {DType::bfloat16, 128 * kRun + 2048},
                        {DType::float32, 128 * kRun},      {DType::float32, 129 * kRun - 1024},
                        {DType::bfloat16, 366 * 4096 + 8}, {DType::float16, 511 * 4096 + 1024},
                        {DType::float32, 256 * kRun},      {DType::float32, 256 * kRun + 4},
                        {DType::float16, 256 * kRun},      {DType::bfloat16, 256 * kRun + 8},
                        {DType::float32, 396 * kRun},      {DType::float32, 396 * kRun + 4},
                        {DType::float32, 3500000},         {DType::float32, 896 * 4096},
                        {DType::float32, 896 * 4096 + 4},  {DType::float32, 132 * 28 * 1024},
                        {DType::bfloat16, 3500000},        {DType::float16, 512 * kRun}})
    for (const auto& [v, scale] : {std::pair{Values::drift, 1.},
                                   {Values::specials, -0.5},
                                   {Values::wide, 1.},
                                   {Values::ramp, 1.},
                                   {Values::normal, 1.}}) {
      const std::int64_t apart = at % 3 == 1 ? 24 : 0, rows = l.n == 3500000 ? 21 : 17500 * 1024 / l.n + 1;
      const bool in_place = at++ % 4 == 2;
      Tensor x(l.dtype, {rows, l.n}, {l.n + apart, 1}), y(l.dtype, {rows, l.n}, {l.n + apart, 1});
      // Of normal rows a part lies beyond what a frame's exponent says, as where a mask is a low number.
      x.fill_by_threads([&l, pitch = l.n + apart, v = v](std::int64_t i) {
        const std::int64_t row = i / pitch, element = i % pitch;
        if (v == Values::normal && row % 3 != 2 && element > l.n * 2 / 3) return row % 3 == 0 ? -1e9 : -3e38;
        return value_of(v, row, element, l.n);
      });
      softfold::RowOptions o;
      o.scale = scale;
      const std::string what = std::to_string(rows) + "x" + std::to_string(l.n) + " " + std::string(name_of(l.dtype)) +
                               " values " + std::to_string(static_cast<int>(v));
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = in_place ? in : y.view(gpu);
        const auto plan = softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o);
        if (gpu) {
          ASSERT_EQ(plan.kernel(), "softmax_grid_guesses") << what;
        }
        plan.run();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what;
      Tensor& result = in_place ? x : y;
      ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << what;
    }
}

}  // namespace
}  // namespace softfold_test
