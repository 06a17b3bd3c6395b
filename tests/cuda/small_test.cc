// cpu == cuda, bit for bit: rows that are so few that small_rows.cuh takes them, along any of three axes, of any
// dtypes, strides and alignments, with masks, lengths and a causal limit.
#include "cuda/both.hpp"

#include <map>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;
using Sizes = std::vector<std::int64_t>;

/// Most other tests do without these kernels (small_kernels.hpp).
const int kTaken = setenv("SOFTFOLD_WITHOUT", "", 1);

constexpr DType kFloats[] = {DType::float32, DType::bfloat16, DType::float16};
constexpr Op kOps[] = {Op::softmax, Op::log_softmax, Op::softmax_backward, Op::log_softmax_backward};

bool is_backward(Op op) { return op == Op::softmax_backward || op == Op::log_softmax_backward; }

class CudaSmall : public Cuda {
 protected:
  static void SetUpTestSuite() { ASSERT_EQ(kTaken, 0); }

  /// Of any layout, chosen by `at` and `what`. tight: elements end to end, between ends of memory.
  static Tensor tensor(DType t, const Sizes& shape, std::size_t at, std::size_t what, bool tight = false) {
    if (tight) return Tensor(t, shape, {}, 0, 0);
    constexpr std::int64_t kSteps[] = {1, 1, 1, 2, -1};
    const std::int64_t step = kSteps[pick(at, what, std::size(kSteps))];
    const std::int64_t row = shape[2] * std::abs(step) + static_cast<std::int64_t>(pick(at, what + 1, 3));
    Sizes strides{shape[1] * row, row, step};
    if (pick(at, what + 2, 4) == 0) strides = {row, shape[0] * row, step};
    return Tensor(t, shape, strides, static_cast<std::int64_t>(pick(at, what + 3, 9)));
  }
  /// The kernel that brought the CPU's bits. dy: of gradients.
  template <class Options>
  static std::string expect_same(Op op, Tensor& x, Tensor& dy, Tensor& result, const Options& options,
                                 const std::string& what) {
    const std::string kernel =
        is_backward(op) ? run_on_both(op, {&x, &dy}, result, options) : run_on_both(op, {&x}, result, options);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(difference(result.host(), result.download(), result.size()), "")
        << what << " " << name_of(x.dtype()) << " to " << name_of(result.dtype()) << " op " << static_cast<int>(op)
        << " by " << kernel;
    return kernel;
  }
  /// The kernel that took rows along an axis of three.
  static std::string compare(Op op, const Sizes& shape, std::size_t axis, std::size_t at, bool tight = false) {
    const bool backward = is_backward(op);
    const Values v = kAnyValues[pick(at, 0, std::size(kAnyValues))];
    const auto dtype = [&](std::size_t i) { return kFloats[pick(at, i, 3)]; };
    Sizes of_rows = shape, of_mask = shape;
    of_rows[axis] = 1;
    if (pick(at, 40, 6) == 0) of_mask[axis] = 1;
    Tensor x = tensor(dtype(1), shape, at, 10, tight), y = tensor(dtype(2), shape, at, 14, tight),
           dy = tensor(dtype(3), shape, at, 18, tight), mask = tensor(DType::boolean, of_mask, at, 22, tight);
    Tensor length(pick(at, 41, 2) == 0 ? DType::int32 : DType::int64, of_rows);
    const std::int64_t n = shape[axis], behind = axis == 2 ? 1 : axis == 1 ? shape[2] : shape[1] * shape[2];
    // An element's place in its row, and some number of the row.
    const auto place = [&](std::int64_t i) { return i / behind % n; };
    const auto row = [&](std::int64_t i) { return i / behind / n * behind + i % behind; };
    x.fill([&](std::int64_t i) { return value_of(v, row(i), place(i), n); });
    dy.fill([&](std::int64_t i) { return gradient_of(row(i), place(i)); });
    mask.fill(
        [&](std::int64_t i) { return Random(static_cast<std::uint64_t>(i) * 77 + at).uniform() < 0.7 ? 1. : 0.; });
    length.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % (n + 1)); });
    softfold::RowOptions o;
    o.axis = static_cast<int>(axis) - (pick(at, 42, 2) == 0 ? 3 : 0);
    constexpr double kScales[] = {1., -0.75, 0.125, 0., 3e7};
    o.scale = pick(at, 43, 2) == 0 ? kScales[pick(at, 44, std::size(kScales))] : 1.;
    if (!backward) o.empty = pick(at, 45, 4) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
    o.causal = axis == 2 && pick(at, 46, 6) == 0;
    Tensor& result = pick(at, 47, 4) != 0 ? y : backward && pick(at, 48, 2) == 0 ? dy : x;
    const auto options = [&](bool gpu) {
      softfold::RowOptions own = o;
      if (pick(at, 49, 3) == 0) own.mask = mask.view(gpu);
      if (pick(at, 50, 4) == 0) own.length = length.view(gpu);
      return own;
    };
    return expect_same(op, x, dy, result, options,
                       std::to_string(shape[0]) + "x" + std::to_string(shape[1]) + "x" + std::to_string(shape[2]) +
                           " axis " + std::to_string(axis) + " at " + std::to_string(at));
  }
};

TEST_F(CudaSmall, Rows) {
  std::size_t at = 0;
  std::map<std::string, int> taken;
  for (std::int64_t n = 1; n <= 512; n += n < 35 || (n + 1) % 32 < 3 ? 1 : 6)
    for (const Op op : kOps)
      for (std::size_t axis = 0; axis < 3 && !HasFailure(); ++axis, ++at) {
        const std::int64_t most = std::max<std::int64_t>(1, 20000 / n);
        const auto some = [&](std::size_t i, std::int64_t up_to) {
          return 1 + static_cast<std::int64_t>(pick(at, i, static_cast<std::size_t>(up_to)));
        };
        Sizes shape{some(60, std::min<std::int64_t>(most, 9)), some(61, std::min<std::int64_t>(most, 50)), some(62, 9)};
        shape[axis] = n;
        ++taken[compare(op, shape, axis, at)];
      }
  EXPECT_GT(taken["softmax_small_rows"], 550);
  EXPECT_GT(taken["backward_small_rows"], 550);
}

/// Rows of one dtype end to end or with gaps, nothing hidden, as most are, in every shape of groups and blocks; of few
/// rows and of many.
TEST_F(CudaSmall, PlainRows) {
  std::size_t at = 3000;
  for (const std::int64_t n :
       {1,   2,   3,   4,   5,   7,   8,   9,   16,  17,   31,   32,   33,   64,   65,   100, 128,
        130, 200, 256, 257, 300, 500, 512, 513, 777, 1000, 1024, 1025, 1500, 2048, 3000, 4096})
    for (const DType t : kFloats)
      for (const std::int64_t rows : {3, 300, 1000})
        for (const Op op : kOps) {
          if (rows > (n > 1024 ? 3 : n > 512 ? 500 : 1000) || HasFailure()) continue;
          const bool backward = is_backward(op);
          const auto offset = static_cast<std::int64_t>(pick(++at, 0, 9));
          const std::vector<std::int64_t> strides{n + (pick(at, 1, 2) == 0 ? 0 : 3), 1};
          const Values v = pick(at, 2, 3) == 0 ? kAnyValues[pick(at, 3, std::size(kAnyValues))] : Values::normal;
          Tensor x(t, {rows, n}, strides, offset), dy(t, {rows, n}, strides, offset), y(t, {rows, n});
          x.fill([&](std::int64_t i) { return value_of(v, i / n, i % n, n); });
          dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
          softfold::RowOptions o;
          o.scale = pick(at, 4, 4) == 0 ? -0.75 : 1.;
          if (!backward) o.empty = pick(at, 5, 3) == 0 ? softfold::Empty::nan : softfold::Empty::zero;
          Tensor& result = pick(at, 6, 2) == 0 ? x : y;
          const auto options = [&](bool) { return o; };
          const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " at " + std::to_string(at);
          EXPECT_EQ(expect_same(op, x, dy, result, options, what),
                    backward ? "backward_small_rows" : "softmax_small_rows")
              << what;
        }
}

/// Rows that are a block's.
TEST_F(CudaSmall, Chunks) {
  std::size_t at = 5000;
  std::map<std::string, int> taken;
  for (const std::int64_t n :
       {513, 600, 767, 1000, 1023, 1024, 1025, 1300, 1700, 2047, 2048, 2049, 3000, 3073, 4095, 4096})
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 6 && !HasFailure(); ++repeat, ++at) {
        Sizes shape{1 + static_cast<std::int64_t>(pick(at, 60, 3)), 4, 1 + static_cast<std::int64_t>(pick(at, 61, 2))};
        const std::size_t axis = repeat < 3 ? 2 : pick(at, 62, 3);
        shape[axis] = n;
        ++taken[compare(op, shape, axis, at)];
      }
  EXPECT_GT(taken["softmax_small_rows"], 90);
  EXPECT_GT(taken["backward_small_rows"], 80);
}

/// Longer rows side by side.
TEST_F(CudaSmall, RowsSideBySide) {
  std::size_t at = 7000;
  std::map<std::string, int> taken;
  for (const std::int64_t n : {4097, 5001, 9000, 20000, 60000})
    for (const Op op : kOps)
      for (int repeat = 0; repeat < 4 && !HasFailure(); ++repeat, ++at) {
        const std::size_t axis = pick(at, 62, 2);
        Sizes shape{1, 1, 2};
        shape[axis] = n;
        ++taken[compare(op, shape, axis, at)];
      }
  EXPECT_GT(taken["softmax_any_few"], 20);
  EXPECT_GT(taken["backward_any_few"], 20);
}

/// Rows that lie few together, of all elements that there are.
TEST_F(CudaSmall, RowsFewTogether) {
  std::size_t at = 8000;
  std::map<std::string, int> taken;
  for (const std::int64_t n : {17, 33, 64, 100, 128, 256, 300, 512, 700, 1024, 1025, 1500, 2048, 3000, 5001, 20000})
    for (const Op op : kOps)
      for (const std::int64_t together : {2, 3, 4, 8, 16})
        for (const std::int64_t all : {70000, 300000}) {
          const std::int64_t blocks = std::max<std::int64_t>(1, all / n / together);
          if (HasFailure() || blocks * n * together > 2 * all) continue;
          ++taken[compare(op, {blocks, n, together}, 1, at++)];
        }
  EXPECT_GT(taken["softmax_any_few"], 100);
  EXPECT_GT(taken["backward_any_few"], 60);
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaSmall, EdgesOfMemory) {
  std::size_t at = 9000;
  for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 9, 16, 31, 64, 65, 127, 200, 256, 300, 512, 1000, 1500, 2047, 4095})
    for (const Op op : kOps)
      for (std::size_t axis = 0; axis < 3 && !HasFailure(); ++axis, ++at) {
        Sizes shape{2, 3, 5};
        shape[axis] = n;
        const std::string kernel = compare(op, shape, axis, at, true);
        const bool side_by_side = axis != 2 && n > 1024;  // of which these take fewer
        const bool by_others = kernel == "few_elements" || kernel == "softmax_any_few";
        EXPECT_TRUE(kernel.find("_small_rows") != std::string::npos || (side_by_side && by_others))
            << kernel << " of " << n << " along " << axis;
      }
}

}  // namespace
}  // namespace softfold_test
