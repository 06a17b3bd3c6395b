// cpu == cuda, bit for bit: softmax and log_softmax of plain rows of a few chunks that do not fill them, wherever they
// begin, of any content.
#include "cuda/content.hpp"

#include <array>
#include <set>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaChunkPairs : public Cuda {};

/// Both backends' results of one case; adds to `taken` where the kernel is the one.
void compare(Op op, DType t, std::int64_t rows, std::int64_t n, const Layout& l, double scale, std::int64_t& taken,
             const std::function<double(std::int64_t, std::int64_t)>& value, const std::string& what) {
  Tensor x(t, {rows, n}, {n + l.gap, 1}, l.offset), y(t, {rows, n}, {n + l.gap, 1}, l.offset);
  std::vector<double> values(static_cast<std::size_t>(kRows * n));
  for (std::int64_t i = 0; i < kRows * n; ++i) values[static_cast<std::size_t>(i)] = value(i / n, i % n);
  x.fill_by_threads([&](std::int64_t i) { return values[static_cast<std::size_t>(i % (kRows * n))]; });
  softfold::RowOptions o;
  o.scale = scale;
  std::string kernel;
  for (const bool gpu : {false, true}) {
    const softfold::View in = x.view(gpu), out = l.in_place ? in : y.view(gpu);
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  taken += kernel == "softmax_chunk_pairs" ? 1 : 0;
  Tensor& result = l.in_place ? x : y;
  ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
      << name_of(op) << " " << rows << "x" << n << " " << name_of(t) << " layout " << &l - kLayouts << " " << what
      << " by " << kernel;
}

TEST_F(CudaChunkPairs, RowsOfAnyContent) {
  std::size_t at = 0;
  std::int64_t taken = 0, all = 0;
  std::set<std::array<int, 3>> seen;
  for (const std::int64_t n : {1025, 1032, 1280, 1281, 1500, 1536, 1792, 2047,  2049,  2056,  2303,  2560, 3001,
                               3071, 3072, 3073, 3080, 3584, 4095, 4097, 4104,  4864,  5001,  5121,  5600, 6001,
                               6143, 6501, 8200, 8960, 9001, 7000, 7168, 10000, 11001, 12000, 13001, 15359})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int repeat = 0; repeat < 2; ++repeat) {
        const auto kind = static_cast<Content>((at + at / 5) % static_cast<std::size_t>(Content::count));
        const Layout& l = kLayouts[(at / 7 + at) % std::size(kLayouts)];
        const Op op = at / 7 % 2 == 0 && n <= 9001 ? Op::softmax : Op::log_softmax;
        seen.insert({static_cast<int>(t), static_cast<int>(kind), static_cast<int>(op)});
        const double scale = at % 13 == 3 ? 0.0625 : t == DType::float16 && kind == Content::no_floor ? 200. : 1.;
        const std::int64_t rows = 4096 / (n / 1024 + 1) + 7;
        compare(
            op, t, rows, n, l, scale, taken,
            [&](std::int64_t row, std::int64_t i) { return content_of(kind, t, row, i, n); },
            "content " + std::to_string(static_cast<int>(kind)));
        if (HasFatalFailure()) return;
        ++all;
        ++at;
      }
  EXPECT_GT(taken, all / 2);
  EXPECT_EQ(seen.size(), 42U);
}

TEST_F(CudaChunkPairs, RowsOfAnyValues) {
  std::size_t at = 0;
  std::int64_t taken = 0;
  for (const std::int64_t n : {1027, 1400, 1536, 2000, 2200, 3000, 3700, 4616, 5900, 8999})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int v = 0; v < static_cast<int>(Values::count); ++v, ++at) {
        const double scale = at % 4 == 1 ? -0.75 : at % 4 == 3 ? 1e-30 : 1.;
        compare(
            at % 3 == 0 ? Op::log_softmax : Op::softmax, t, 4096 / (n / 1024 + 1) + 3, n,
            kLayouts[at / 3 % std::size(kLayouts)], scale, taken,
            [&](std::int64_t row, std::int64_t i) { return value_of(static_cast<Values>(v), row, i, n); },
            "values " + std::to_string(v));
        if (HasFatalFailure()) return;
      }
  EXPECT_GT(taken, 120);
}

/// Terms so far below a chunk's largest that the definition leaves them out, where they would break ties of the tree's
/// sums one after another up to the last place of the row's.
TEST_F(CudaChunkPairs, TermsThatBreakTies) {
  const std::pair<std::int64_t, double> elements[] = {{0, -126}, {64, -126}, {32, -102}, {16, -78}, {8, -54},
                                                      {4, -30},  {2, -6},    {6, -24},   {1, 0}};
  std::int64_t taken = 0;
  for (const Op op : {Op::softmax, Op::log_softmax})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const double others : {-200., -std::numeric_limits<double>::infinity()}) {
        const auto value = [&](std::int64_t, std::int64_t i) {
          for (const auto& [place, power] : elements)
            if (i == 1024 + place) return power;
          return i < 1024 ? -92. : others;
        };
        compare(op, t, 2100, 1152, kLayouts[0], 0.69314718055994531, taken, value, std::to_string(others));
        if (HasFatalFailure()) return;
      }
  EXPECT_EQ(taken, 8);
}

/// Two and four rows a block, and a number of rows that is not a multiple.
TEST_F(CudaChunkPairs, ManyRows) {
  std::int64_t taken = 0;
  for (const std::int64_t n : {1025, 1500, 1536, 2560, 3001, 5003})
    for (const std::int64_t rows : {2048, 9003})
      for (const DType t : {DType::float32, DType::bfloat16})
        for (const Op op : {Op::softmax, Op::log_softmax})
          for (const Content kind : {Content::near, Content::very_far}) {
            compare(
                op, t, rows, n, kLayouts[0], 1., taken,
                [&](std::int64_t row, std::int64_t i) {
                  return content_of(row % 5 == 1 ? kind : Content::near, t, row, i, n);
                },
                "many");
            if (HasFatalFailure()) return;
          }
  EXPECT_GE(taken, 40);
}

}  // namespace
}  // namespace softfold_test
