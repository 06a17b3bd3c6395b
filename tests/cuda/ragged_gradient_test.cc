// cpu == cuda, bit for bit: gradients of ragged rows.
#include "cuda/ragged.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaRaggedGradient : public CudaRagged {
 protected:
  /// scales: of the rows, which another kernel takes.
  static void compare(const std::vector<std::int64_t>& sizes, DType t, Values v, std::int64_t before = 3,
                      bool scales = false);
};

void CudaRaggedGradient::compare(const std::vector<std::int64_t>& sizes, DType t, Values v, std::int64_t before,
                                 bool scales) {
  const std::int64_t n = before + total_of(sizes) + 7, rows = static_cast<std::int64_t>(sizes.size());
  Offsets offsets(sizes, before % 2 == 0 ? DType::int32 : DType::int64, before);
  Tensor y(t, {n}, {}, before % 5), dy(t, {n}, {}, before % 5), dx(t, {n}, {}, before % 5),
      scale(DType::float32, {rows});
  y.fill_by_threads([&](std::int64_t i) { return value_of(v, i / 900, i % 900, 900); });
  dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / 700, i % 700); });
  scale.fill([](std::int64_t i) { return 0.5 + static_cast<double>(i % 7); });
  softfold::RowOptions cpu, cuda;
  cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
  if (scales) cpu.scales = scale.cpu(), cuda.scales = scale.cuda();
  const std::string what =
      std::to_string(rows) + " rows of " + std::string(name_of(t)) + " values " + std::to_string(static_cast<int>(v));
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
    expect_same(op, {&y, &dy}, {&dx}, cpu, cuda, what);
    const softfold::View inputs[] = {y.cuda(), dy.cuda()}, out = dx.cuda();
    EXPECT_EQ(softfold::plan(op, inputs, {&out, 1}, cuda).kernel(),
              scales ? "backward_ragged_mixed" : "backward_ragged");
  }
}

/// Lengths from all ways that rows go: without elements, several to a lane, to a few lanes, to a warp, a chunk, several
/// to a block, one to a block, all blocks.
std::vector<std::int64_t> mixed(std::int64_t rows, std::int64_t most, std::uint64_t seed) {
  constexpr std::int64_t kEdges[] = {0,   1,   24,  32,   57,   64,   65,   121,   128,   249,   256,  257,
                                     505, 512, 513, 1023, 1024, 1025, 2048, 16384, 16385, 20480, 20481};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t h = Random(seed * 1000003 + i).next();
    sizes[i] = h % 3 == 0 ? std::min(kEdges[h / 4 % std::size(kEdges)], most)
                          : static_cast<std::int64_t>(h / 64 % static_cast<std::uint64_t>(most + 1));
  }
  return sizes;
}

TEST_F(CudaRaggedGradient, Rows) {
  std::uint64_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const auto& [rows, most] : {std::pair<std::int64_t, std::int64_t>{1, 0},
                                     {1, 5},
                                     {7, 20000},
                                     {40000, 9},
                                     {9000, 40},
                                     {5000, 130},
                                     {3000, 300},
                                     {1500, 1100},
                                     {400, 4000},
                                     {60, 60000}}) {
      compare(mixed(rows, most, at), t, kAnyValues[pick(at, 1, std::size(kAnyValues))],
              static_cast<std::int64_t>(at % 9), at % 4 == 1);
      ++at;
      if (HasFatalFailure()) return;
    }
}

/// Rows with nothing in them, and with nothing at first; dx in place of y, and of dy.
TEST_F(CudaRaggedGradient, RowsWithNothingInPlace) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t most : {12, 90, 700, 5000, 40000}) {
      const std::vector<std::int64_t> sizes = mixed(200000 / most, most, static_cast<std::uint64_t>(most));
      const std::int64_t n = total_of(sizes);
      Offsets offsets(sizes);
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
      for (const Op op : {Op::softmax_backward, Op::log_softmax_backward})
        for (const bool over_y : {true, false}) {
          Tensor y(t, {n}), dy(t, {n});
          const double nothing = op == Op::softmax_backward ? 0. : -std::numeric_limits<double>::infinity();
          // Runs of it as long as rows are.
          y.fill_by_threads([&](std::int64_t i) {
            return i / (most / 2 + 1) % 3 == 0 ? nothing : value_of(Values::uniform, 0, i, 1000);
          });
          dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / 700, i % 700); });
          expect_same(op, {&y, &dy}, {over_y ? &y : &dy}, cpu, cuda, "with nothing, in place");
          if (HasFatalFailure()) return;
        }
    }
}

/// Offsets that lie: outside x, back and forth, long rows over each other of which the queue and the list have no room
/// for all. Rows before that are as they should be.
TEST_F(CudaRaggedGradient, OffsetsThatLie) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t longest : {900, 9000, 90000, 700000}) {
      const std::int64_t n = 800000, regular = 100, rows = 3000;
      Tensor offsets(DType::int64, {rows + 1}), y(t, {n}), dy(t, {n}), dx(t, {n});
      offsets.fill([&](std::int64_t i) {
        if (i <= regular) return static_cast<double>(1000 * i);
        const std::int64_t far = 1000 * regular + longest;
        return static_cast<double>(i % 7 == 0 ? n + i : i % 2 == 0 ? far : 1000 * regular + 1);
      });
      y.fill_by_threads([](std::int64_t i) { return value_of(Values::uniform, 0, i, 1000); });
      dy.fill_by_threads([](std::int64_t i) { return gradient_of(i / 700, i % 700); });
      softfold::RowOptions cuda;
      cuda.offsets = offsets.cuda();
      softfold::plan(Op::softmax_backward, std::vector{y.cuda(), dy.cuda()}, std::vector{dx.cuda()}, cuda).run();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << longest;
      const std::vector<unsigned char> got = dx.download();
      offsets.fill([&](std::int64_t i) { return static_cast<double>(i <= regular ? 1000 * i : n); });
      softfold::RowOptions straight;
      straight.offsets = offsets.cpu();
      softfold::plan(Op::softmax_backward, std::vector{y.cpu(), dy.cpu()}, std::vector{dx.cpu()}, straight).run();
      const auto end = static_cast<std::ptrdiff_t>(1000 * regular * static_cast<std::int64_t>(dx.size()));
      const std::vector<unsigned char> expected = dx.host();
      ASSERT_TRUE(std::equal(expected.begin(), expected.begin() + end, got.begin())) << longest;
    }
}

/// Rows over each other of which there are many for each block, and that take each other's places on the queue.
TEST_F(CudaRaggedGradient, ManyRowsOverEachOther) {
  const std::int64_t n = 20000000, rows = 80000;
  Tensor offsets(DType::int64, {rows + 1}), y(DType::bfloat16, {n}), dy(DType::bfloat16, {n}), dx(DType::bfloat16, {n});
  offsets.fill([](std::int64_t i) { return i % 2 == 0 ? 0. : i % 4 == 1 ? 2000. : 20000.; });
  y.fill_by_threads([](std::int64_t i) { return value_of(Values::uniform, 0, i, 1000); });
  dy.fill_by_threads([](std::int64_t i) { return gradient_of(i / 700, i % 700); });
  softfold::RowOptions cuda;
  cuda.offsets = offsets.cuda();
  softfold::plan(Op::softmax_backward, std::vector{y.cuda(), dy.cuda()}, std::vector{dx.cuda()}, cuda).run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

/// More chunks than a block has warps, and than a row has a block to itself, among short ones.
TEST_F(CudaRaggedGradient, LongRows) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    compare({3, 0, 1100003, 17, 262144, 262145, 1, 100000, 5000, 5001, 9000000, 12}, t, Values::uniform, 1);
}

/// Where rows follow each other by the same warps alone for long.
TEST_F(CudaRaggedGradient, ManyRowsOfTwoChunks) {
  compare(std::vector<std::int64_t>(40000, 1100), DType::bfloat16, Values::uniform);
  compare(std::vector<std::int64_t>(20000, 2047), DType::float32, Values::normal);
}

}  // namespace
}  // namespace softfold_test
