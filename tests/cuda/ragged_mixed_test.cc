// cpu == cuda, bit for bit: ragged rows with masks, scales of their own, operands of several dtypes, strides and
// alignments.
#include "cuda/ragged.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

constexpr DType kFloats[] = {DType::float32, DType::bfloat16, DType::float16};

/// What of a call is chosen by its number.
struct Kind {
  bool masked, scaled, mixed, in_place;
  explicit Kind(std::size_t at)
      : masked(pick(at, 1, 3) != 0),
        scaled(pick(at, 2, 3) == 0),
        mixed(pick(at, 3, 2) == 0),
        in_place(!mixed && pick(at, 4, 4) == 0) {}
};

class CudaRaggedMixed : public CudaRagged {
 protected:
  /// All operations on rows of these lengths, for some kinds of calls.
  static void compare_all(const std::vector<std::int64_t>& sizes, std::size_t at);
  static void compare(const std::vector<std::int64_t>& sizes, DType t, std::size_t at);
};

void CudaRaggedMixed::compare(const std::vector<std::int64_t>& sizes, DType t, std::size_t at) {
  const Kind kind(at);
  const auto rows = static_cast<std::int64_t>(sizes.size());
  const std::int64_t before = static_cast<std::int64_t>(pick(at, 5, 9)), n = before + total_of(sizes) + 5;
  const auto other = [&](std::size_t i) { return kind.mixed ? kFloats[pick(at, i, 3)] : t; };
  const auto shift = [&](std::size_t i) { return static_cast<std::int64_t>(pick(at, i, 9)); };
  const auto stride = [&](std::size_t i) {
    return std::vector<std::int64_t>{pick(at, i, 6) != 0 ? 1 : pick(at, i + 1, 2) == 0 ? 2 : -1};
  };
  Offsets offsets(sizes, pick(at, 6, 2) == 0 ? DType::int32 : DType::int64, before);
  Tensor x(t, {n}, stride(10), shift(11)), y(other(12), {n}, stride(13), shift(14)),
      dy(t == DType::float64 ? t : other(15), {n}, stride(16), shift(17)),
      mask(DType::boolean, {n}, stride(18), shift(19)),
      scales(pick(at, 20, 3) == 0 ? DType::float64 : DType::float32, {rows}, stride(21)), lse(other(22), {rows}),
      states(DType::float64, {rows, 4});
  const Values values = kAnyValues[pick(at, 23, std::size(kAnyValues))];
  x.fill_by_threads([&](std::int64_t i) { return value_of(values, i / 300, i % 300, 300); });
  dy.fill_by_threads([&](std::int64_t i) { return gradient_of(i / 700, i % 700); });
  // Elements here and there, and runs of them longer than some rows.
  mask.fill_by_threads([&](std::int64_t i) { return i / 500 % 3 == 1 ? 0. : i * 7 % 3 == 0 ? 0. : 1.; });
  constexpr double kScales[] = {1., 0.5, -2., 0., 1e30, 0.3};
  scales.fill([&](std::int64_t i) { return kScales[static_cast<std::size_t>(i * 31 % 6)]; });
  softfold::RowOptions cpu, cuda;
  cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
  cpu.empty = cuda.empty = pick(at, 24, 2) == 0 ? softfold::Empty::zero : softfold::Empty::nan;
  cpu.scale = cuda.scale = pick(at, 25, 3) == 0 ? -0.75 : 1.;
  if (kind.masked) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
  if (kind.scaled) cpu.scales = scales.cpu(), cuda.scales = scales.cuda();
  const std::string what = "case " + std::to_string(at) + ", " + std::to_string(rows) + " rows of " +
                           std::string(name_of(t)) + (kind.masked ? " masked" : "") + (kind.scaled ? " scaled" : "") +
                           (kind.mixed ? " mixed" : "");
  y.poison(0xA5), lse.poison(0xA5), states.poison(0xA5);
  expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
  expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward, Op::softmax, Op::log_softmax}) {
    const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward;
    y.poison(0x5A);
    std::vector<Tensor*> in{&x};
    if (backward) in.push_back(&dy);
    expect_same(op, in, {&y}, cpu, cuda, what);
  }
  if (!kind.in_place) return;
  expect_same(Op::softmax_backward, {&x, &dy}, {&dy}, cpu, cuda, what + " in place");
  expect_same(Op::log_softmax_backward, {&x, &dy}, {&x}, cpu, cuda, what + " in place of y");
  expect_same(Op::log_softmax, {&x}, {&x}, cpu, cuda, what + " in place");
}

void CudaRaggedMixed::compare_all(const std::vector<std::int64_t>& sizes, std::size_t at) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
    for (std::size_t kind = 0; kind < (total_of(sizes) < 60000 ? 12 : 4); ++kind) {
      compare(sizes, t, at++ * 101 + kind);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

/// Of uniform lengths up to `most`.
std::vector<std::int64_t> uniform(std::int64_t rows, std::int64_t most) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    sizes[i] = static_cast<std::int64_t>(Random(i * 77 + 5).next() % static_cast<std::uint64_t>(most + 1));
  return sizes;
}

TEST_F(CudaRaggedMixed, Uniform) {
  std::size_t at = 1;
  for (const auto& [rows, most] : {std::pair<std::int64_t, std::int64_t>{1, 0},
                                   {1, 40},
                                   {40, 3},
                                   {3000, 9},
                                   {3000, 70},
                                   {1000, 130},
                                   {500, 300},
                                   {200, 1100},
                                   {100, 4000},
                                   {30, 17000},
                                   {5, 100000},
                                   {100000, 12},
                                   {20000, 130},
                                   {2000, 4000}})
    compare_all(uniform(rows, most), at += 1000);
}

TEST_F(CudaRaggedMixed, OneLength) {
  std::size_t at = 100001;
  for (const std::int64_t n : {0, 1, 5, 32, 33, 64, 100, 128, 129, 256, 500, 512, 1000, 1024, 1025, 4096, 5000})
    compare_all(std::vector<std::int64_t>(static_cast<std::size_t>(200000 / (n + 1) % 1000 + 3), n), at += 1000);
}

/// At the edges of what a group of lanes, a warp, a block's warps at once, and a block hold.
TEST_F(CudaRaggedMixed, Edges) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t edge : {1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384, 65536})
    for (std::int64_t i = -1; i <= 1; ++i) sizes.insert(sizes.end(), {edge + i, 0, (edge + i) % 7, edge + i});
  compare_all(sizes, 200001);
  compare_all({3, 0, 100000, 17, 65537, 1, 131072, 5000, 5001, 12}, 201001);
}

/// A row of more groups of chunks than are merged at a time, and rows that are nearly all empty.
TEST_F(CudaRaggedMixed, Few) {
  std::vector<std::int64_t> empty(200000);
  for (std::size_t i = 0; i < 300; ++i) empty[5 + 600 * i] = static_cast<std::int64_t>(i * i % 3001);
  compare_all(empty, 300001);
  compare({65000}, DType::float32, 301000);
  compare({70000, 9000000, 65000, 65537}, DType::bfloat16, 301001);
  compare({70000, 3000000, 65000, 65537}, DType::float64, 301003);
  compare({70000, 14000000, 70001, 70002, 69999, 70000}, DType::float32, 301002);
}

/// Rows that lie over each other are more than the queue and the list have room for.
TEST_F(CudaRaggedMixed, OffsetsThatLie) {
  for (const std::int64_t longest : {900, 9000, 90000, 700000})
    for (int at = 0; at < 6; ++at) {
      const Op op = at % 3 == 0 ? Op::softmax : at % 3 == 1 ? Op::softmax_backward : Op::logsumexp;
      const DType t = at < 3 ? DType::float32 : DType::float64;
      const std::int64_t n = 800000, regular = 100, rows = 3000;
      Tensor offsets(DType::int64, {rows + 1}), x(t, {n}), dy(t, {n});
      Tensor y(DType::bfloat16, {op == Op::logsumexp ? rows : n});
      offsets.fill([&](std::int64_t i) {
        if (i <= regular) return static_cast<double>(1000 * i);
        const std::int64_t far = 1000 * regular + longest;
        return static_cast<double>(i % 7 == 0 ? n + i : i % 2 == 0 ? far : 1000 * regular + 1);
      });
      x.fill_by_threads([](std::int64_t i) { return value_of(Values::normal, 0, i, 1000); });
      dy.fill_by_threads([](std::int64_t i) { return gradient_of(i / 1000, i % 1000); });
      const auto run = [&](bool gpu) {
        softfold::RowOptions o;
        o.offsets = offsets.view(gpu);
        std::vector<softfold::View> in{x.view(gpu)};
        if (op == Op::softmax_backward) in.push_back(dy.view(gpu));
        const softfold::View out = y.view(gpu);
        softfold::plan(op, in, {&out, 1}, o).run();
      };
      run(true);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << longest;
      const std::vector<unsigned char> got = y.download();
      offsets.fill([&](std::int64_t i) { return static_cast<double>(i <= regular ? 1000 * i : n); });
      run(false);
      const std::int64_t results = op == Op::logsumexp ? regular : 1000 * regular;
      const auto end = static_cast<std::ptrdiff_t>(results * static_cast<std::int64_t>(y.size()));
      const std::vector<unsigned char> expected = y.host();
      ASSERT_TRUE(std::equal(expected.begin(), expected.begin() + end, got.begin())) << longest;
    }
}

/// Which kernel takes them.
TEST_F(CudaRaggedMixed, Kernels) {
  Offsets offsets({5, 2000, 7});
  Tensor x(DType::float32, {2012}), half(DType::bfloat16, {2012}), y(DType::float32, {2012}),
      mask(DType::boolean, {2012}), scales(DType::float32, {3});
  const auto of = [&](Op op, const std::vector<Tensor*>& in, Tensor& out, Tensor* masks, Tensor* scale) {
    softfold::RowOptions o;
    o.offsets = offsets.cuda();
    if (masks != nullptr) o.mask = masks->cuda();
    if (scale != nullptr) o.scales = scale->cuda();
    std::vector<softfold::View> inputs;
    for (Tensor* t : in) inputs.push_back(t->cuda());
    const softfold::View output = out.cuda();
    return std::string(softfold::plan(op, inputs, {&output, 1}, o).kernel());
  };
  EXPECT_EQ(of(Op::softmax, {&x}, y, nullptr, nullptr), "softmax_ragged_rows");
  EXPECT_EQ(of(Op::softmax, {&x}, y, &mask, nullptr), "softmax_ragged_mixed");
  EXPECT_EQ(of(Op::log_softmax, {&x}, y, nullptr, &scales), "softmax_ragged_mixed");
  EXPECT_EQ(of(Op::softmax, {&x}, half, nullptr, nullptr), "softmax_ragged_mixed");
  EXPECT_EQ(of(Op::softmax_backward, {&x, &y}, y, nullptr, nullptr), "backward_ragged");
  EXPECT_EQ(of(Op::softmax_backward, {&x, &y}, y, &mask, nullptr), "backward_ragged_mixed");
  EXPECT_EQ(of(Op::softmax_backward, {&x, &half}, y, nullptr, nullptr), "backward_ragged_mixed");
  Tensor apart(DType::float32, {2012}, {2}), lse(DType::float32, {3}), states(DType::float64, {3, 4}),
      wide(DType::float64, {2012});
  EXPECT_EQ(of(Op::softmax, {&apart}, y, nullptr, nullptr), "softmax_ragged_mixed");
  EXPECT_EQ(of(Op::logsumexp, {&x}, lse, nullptr, nullptr), "fold_ragged_rows");
  EXPECT_EQ(of(Op::logsumexp, {&x}, lse, &mask, nullptr), "fold_ragged_mixed");
  EXPECT_EQ(of(Op::state, {&apart}, states, nullptr, nullptr), "fold_ragged_mixed");
  EXPECT_EQ(of(Op::softmax, {&wide}, wide, &mask, nullptr), "softmax_double_ragged");
  EXPECT_EQ(of(Op::logsumexp, {&wide}, lse, nullptr, &scales), "fold_double_ragged");
  EXPECT_EQ(of(Op::log_softmax_backward, {&wide, &wide}, wide, nullptr, nullptr), "backward_double_ragged");
}

}  // namespace
}  // namespace softfold_test
