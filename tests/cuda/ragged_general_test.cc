// cpu == cuda, bit for bit: ragged rows of what only the general kernels take: gradients, float64, results of another
// dtype, states that are known; many rows, and rows of many chunks.
#include "cuda/ragged.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

/// Of all kinds of rows: without elements, of one, of a chunk and one more, of up to `most`.
std::vector<std::int64_t> mixed_sizes(std::int64_t rows, std::int64_t most, std::uint64_t seed) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t h = Random(seed * 1000003 + i).next();
    constexpr std::int64_t kEdges[] = {0, 0, 1, 1023, 1024, 1025, 2048, 8192, 8193};
    sizes[i] = h % 4 == 0 ? std::min(kEdges[h / 4 % std::size(kEdges)], most)
                          : static_cast<std::int64_t>(h / 64 % static_cast<std::uint64_t>(most + 1));
  }
  return sizes;
}

class CudaRaggedGeneral : public CudaRagged {
 protected:
  /// masked: an element in three is hidden, and offsets are int32.
  static void compare_all(const std::vector<std::int64_t>& sizes, DType t, DType of_results, Values v,
                          bool masked = false);
};

void CudaRaggedGeneral::compare_all(const std::vector<std::int64_t>& sizes, DType t, DType of_results, Values v,
                                    bool masked) {
  const std::int64_t before = 5, n = before + total_of(sizes) + 7, rows = static_cast<std::int64_t>(sizes.size());
  Offsets offsets(sizes, masked ? DType::int32 : DType::int64, before);
  Tensor x(t, {n}, {}, 3), y(of_results, {n}, {}, 1), dy(t, {n}, {}, 2), states(DType::float64, {rows, 4}),
      lse(of_results, {rows}), dlse(t, {rows});
  x.fill_by_threads([&](std::int64_t i) { return value_of(v, i / 900, i % 900, 900); });
  dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / 700, i % 700); });
  dlse.fill([](std::int64_t i) { return 0.25 * static_cast<double>(i % 5) - 0.5; });
  softfold::RowOptions cpu, cuda;
  cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
  Tensor mask(DType::boolean, {n}, {}, 1);
  mask.fill_by_threads([](std::int64_t i) { return i * 7 % 3 == 0 ? 0. : 1.; });
  if (masked) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
  const std::string what = std::to_string(rows) + " rows of " + std::string(name_of(t)) + " to " +
                           std::string(name_of(of_results)) + " values " + std::to_string(static_cast<int>(v));
  expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
  expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
  for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, what);
  for (const Op op : {Op::finish_softmax, Op::finish_log_softmax})
    expect_same(op, {&x, &states}, {&y}, cpu, cuda, what);
  expect_same(Op::logsumexp_backward, {&x, &states, &dlse}, {&y}, cpu, cuda, what);
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward})
    expect_same(op, {&x, &dy}, {&y}, cpu, cuda, what);
  if (t != of_results) return;
  Tensor dq(t, {n}, {}, 1), targets(DType::int64, {rows}), one(t, {});
  targets.fill([&](std::int64_t r) {
    const std::int64_t size = sizes[static_cast<std::size_t>(r)];
    return size > 0 ? static_cast<double>(r * 31 % size) : -100.;
  });
  one.fill([](std::int64_t) { return 1.; });
  expect_same(Op::entropy_backward, {&x, &states, &dlse}, {&y}, cpu, cuda, what);
  expect_same(Op::cross_entropy_backward, {&x, &targets, &states, &one}, {&y}, cpu, cuda, what);
  expect_same(Op::kl_divergence_backward, {&x, &dy, &states, &states, &dlse}, {&y, &dq}, cpu, cuda, what);
}

TEST_F(CudaRaggedGeneral, Rows) {
  std::size_t at = 0;
  for (const auto& [rows, most] :
       {std::pair<std::int64_t, std::int64_t>{1, 3000}, {31, 70000}, {400, 9000}, {3000, 40}})
    for (const auto& [t, of_results] : {std::pair{DType::float64, DType::float64},
                                        {DType::float64, DType::float32},
                                        {DType::float32, DType::float32},
                                        {DType::float32, DType::bfloat16},
                                        {DType::bfloat16, DType::bfloat16},
                                        {DType::float16, DType::float32}}) {
      compare_all(mixed_sizes(rows, most, at), t, of_results, kAnyValues[pick(at, 1, std::size(kAnyValues))],
                  at % 3 == 1);
      ++at;
      if (HasFatalFailure()) return;
    }
}

/// One row of more chunks than a warp's lanes have at once, between short ones.
TEST_F(CudaRaggedGeneral, RowOfManyChunks) {
  for (const DType t : {DType::float64, DType::float32})
    compare_all({3, 0, 1100000, 17, 300000, 1}, t, t, Values::normal);
}

/// Many rows, which take neither time nor memory by their number times all elements.
TEST_F(CudaRaggedGeneral, WorkByElements) {
  const std::int64_t rows = 200000;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<std::int64_t>(Random(i).next() % 21);
  Offsets offsets(sizes);
  const std::int64_t n = total_of(sizes);
  Tensor y(DType::float32, {n}), dy(DType::float32, {n}), dx(DType::float32, {n});
  y.fill_by_threads([](std::int64_t i) { return value_of(Values::uniform, 0, i, 1000); });
  dy.fill_by_threads([](std::int64_t i) { return gradient_of(i / 700, i % 700); });
  softfold::RowOptions cpu, cuda;
  cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
  expect_same(Op::softmax_backward, {&y, &dy}, {&dx}, cpu, cuda, "many rows");
  const softfold::View inputs[] = {y.cuda(), dy.cuda()}, out = dx.cuda();
  EXPECT_LT(softfold::plan(Op::softmax_backward, inputs, {&out, 1}, cuda).workspace_bytes(), std::size_t{32} << 20);
}

}  // namespace
}  // namespace softfold_test
