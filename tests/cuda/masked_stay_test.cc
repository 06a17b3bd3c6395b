// cpu == cuda, bit for bit: softmax, log_softmax and states of rows with a mask, so many that clusters stay for them
// and guess a row's frame from the row before.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaMaskedStay : public Cuda {};

/// What a row's mask shows: everything, nothing, an element, every other chunk, a part in front or behind, one in some
/// hundred, most.
bool shows(std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row * 1000003 + i)).next();
  switch (row % 12) {
    case 0: return true;
    case 1: return false;
    case 2: return i == n - 1;
    case 3: return i / 1024 % 2 == 1;
    case 4: return i < n / 3 + row;
    case 5: return i > n / 2 + row;
    case 6: return h % 300 == 0;
    default: return h % 4 != 0;
  }
}
/// In hidden places NaN and infinities; or numbers like the others, as rows in which something wild is seen are read
/// again, mask and all.
double planted(bool wild, Values v, std::int64_t row, std::int64_t i, std::int64_t n) {
  constexpr double kWild[] = {NAN, INFINITY, -INFINITY, 3e38, 0.};
  return wild ? kWild[(row + i) % 5] : value_of(v, row, i, n);
}

/// Of rows so many that clusters stay for them, unless some warps a row are faster. Whether they did, on the GPU.
bool run_masked(const softfold::View& in, const softfold::View& out, const softfold::RowOptions& o,
                Op op = Op::softmax) {
  const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
  plan.run();
  if (in.device.kind != softfold::DeviceKind::cuda || plan.kernel() == "softmax_masked_stays") return true;
  EXPECT_EQ(op, Op::softmax) << plan.kernel();
  EXPECT_EQ(plan.kernel(), "softmax_masked_chunks");
  return false;
}

/// Elements between rows, of x and of the mask, and before them; or one mask for all.
struct Layout {
  std::int64_t n, gap, mask_gap;
  std::int64_t offset = 0, mask_offset = 0;
  bool one_mask = false;
};
/// The least and the most that is taken, one and two chunks to a warp, whole last chunks and others; rows and masks on
/// 16 bytes, beginning inside them, ending there.
constexpr Layout kLayouts[] = {{3088, 0, 0},
                               {4096, 0, 0},
                               {5136, 16, 0},
                               {7184, 0, 0},
                               {8192, 0, 16},
                               {9216, 32, 0},
                               {16384, 0, 0, 0, 0, true},
                               {20000, 0, 0},
                               {33008, 16, 48},
                               {50256, 0, 0},
                               {65536, 0, 0, 0, 0, true},
                               {128256, 0, 0},
                               {151936, 0, 0},
                               {200064, 64, 0},
                               {256000, 0, 0},
                               {262128, 0, 16},
                               {262144, 0, 0},
                               {3073, 0, 0},
                               {4104, 0, 0},
                               {5001, 0, 0, 3, 1},
                               {7169, 3, 5},
                               {8191, 0, 0, 0, 7},
                               {9224, 0, 0},
                               {16385, 0, 0, 1, 3, true},
                               {20480, 0, 8},
                               {33003, 0, 0, 5, 0},
                               {50257, 0, 0},
                               {50264, 0, 0},
                               {50265, 1, 0, 2, 9},
                               {65536, 0, 0, 1, 0},
                               {100001, 0, 0},
                               {128256, 0, 0, 8, 8},
                               {151937, 0, 0},
                               {200065, 0, 0, 0, 0, true},
                               {262143, 0, 0, 1, 1}};

/// A layout's rows and masks. wild: what no mask shows is NaN, infinite or huge.
struct MaskedRows {
  std::int64_t rows;
  Tensor x, mask;
  std::string what;

  MaskedRows(const Layout& l, DType t, Values v, double scale, bool wild)
      : rows(6600 * 1024 / l.n + 1),
        x(t, {rows, l.n}, {l.n + l.gap, 1}, l.offset),
        mask(DType::boolean, {l.one_mask ? 1 : rows, l.n}, {l.n + l.mask_gap, 1}, l.mask_offset),
        what(std::to_string(rows) + "x" + std::to_string(l.n) + " " + std::string(name_of(t)) + " values " +
             std::to_string(static_cast<int>(v)) + " scale " + std::to_string(scale)) {
    const std::int64_t n = l.n;
    const auto is_shown = [&l](std::int64_t row, std::int64_t i) { return shows(l.one_mask ? 7 : row, i, l.n); };
    mask.fill_by_threads([&](std::int64_t i) { return is_shown(i / n, i % n) ? 1. : 0.; });
    x.fill_by_threads([&](std::int64_t i) {
      return is_shown(i / n, i % n) ? value_of(v, i / n, i % n, n) : planted(wild, v, i / n, i % n, n);
    });
  }
};

/// op of every layout, in the types by turns.
void expect_same_with_masks(Op op, const std::vector<DType>& types) {
  std::size_t at = 0, others = 0;
  for (const Layout& l : kLayouts)
    for (const auto& [v, scale] :
         {std::pair{Values::normal, 1.}, {Values::drift, 1.}, {Values::drift, -0.3}, {Values::specials, 0.5}}) {
      const DType t = types[at % types.size()];
      MaskedRows of(l, t, v, scale, at % 7 < 3);
      const bool in_place = at++ % 5 == 2;
      Tensor y(t, {of.rows, l.n}, {l.n + l.gap, 1}, l.offset);
      for (const bool gpu : {false, true}) {
        softfold::RowOptions o;
        o.scale = scale, o.mask = of.mask.view(gpu);
        o.empty = at % 3 == 0 ? softfold::Empty::zero : softfold::Empty::nan;
        const softfold::View in = of.x.view(gpu), out = in_place ? in : y.view(gpu);
        others += run_masked(in, out, o, op) ? 0 : 1;
        ASSERT_FALSE(::testing::Test::HasNonfatalFailure()) << of.what;
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << of.what;
      Tensor& result = in_place ? of.x : y;
      ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << of.what;
    }
  EXPECT_LT(others, at / 4);
}

TEST_F(CudaMaskedStay, Masks) {
  expect_same_with_masks(Op::softmax, {DType::bfloat16, DType::float32, DType::float16});
}

TEST_F(CudaMaskedStay, MasksOfLogSoftmax) {
  expect_same_with_masks(Op::log_softmax, {DType::bfloat16, DType::float32, DType::float16});
}

/// logsumexp and states of all layouts, by clusters float32 of more than three chunks, 16 bit of more than ten.
TEST_F(CudaMaskedStay, MasksOfStates) {
  std::size_t at = 0;
  for (const Layout& l : kLayouts)
    for (const auto& [v, scale] : {std::pair{Values::normal, 1.}, {Values::drift, -0.3}, {Values::specials, 0.5}}) {
      constexpr DType kTypes[] = {DType::bfloat16, DType::float32, DType::float16, DType::float32};
      const DType t = kTypes[at % 4];
      MaskedRows of(l, t, v, scale, at++ % 7 < 3);
      Tensor lse(DType::float32, {of.rows}), states(DType::float64, {of.rows, 4});
      for (const bool gpu : {false, true}) {
        softfold::RowOptions o;
        o.scale = scale, o.mask = of.mask.view(gpu);
        const softfold::View in = of.x.view(gpu), results[] = {lse.view(gpu), states.view(gpu)};
        for (const bool is_state : {false, true}) {
          const auto plan = softfold::plan(is_state ? Op::state : Op::logsumexp, {&in, 1}, {&results[is_state], 1}, o);
          plan.run();
          if (gpu && l.n > (t == DType::float32 ? 3 : 10) * 1024) {
            ASSERT_EQ(plan.kernel(), "fold_masked_stays") << of.what;
          }
        }
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << of.what;
      ASSERT_EQ(difference(lse.host(), lse.download(), lse.size()), "") << of.what;
      ASSERT_EQ(difference(states.host(), states.download(), states.size()), "") << of.what;
    }
}

/// Operands that end where their memory does, and masks that begin there or a little behind: what lies around is not
/// read (which compute-sanitizer sees), and what no vector of 16 bytes inside holds is not missed.
TEST_F(CudaMaskedStay, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {3073, 7169, 7172, 11265, 11268, 33003, 50264})
      for (const std::int64_t offset : {0, 1, 3, 8})
        for (const bool one_mask : {false, true}) {
          const std::int64_t rows = 6400 * 1024 / n + 2 + offset % 4;
          Tensor x(t, {rows, n}, {}, 0, 0), y(t, {rows, n}, {}, 0, 0), lse(DType::float32, {rows});
          Tensor mask(DType::boolean, {one_mask ? 1 : rows, n}, {}, offset, 0);
          x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
          mask.fill_by_threads([&](std::int64_t i) { return shows(one_mask ? 7 : i / n, i % n, n) ? 1. : 0.; });
          for (const bool gpu : {false, true}) {
            const softfold::View in = x.view(gpu), out = y.view(gpu);
            softfold::RowOptions o;
            o.mask = mask.view(gpu);
            run_masked(in, out, o);
            const softfold::View of_rows = lse.view(gpu);
            softfold::plan(Op::logsumexp, {&in, 1}, {&of_rows, 1}, o).run();
          }
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          ASSERT_EQ(difference(lse.host(), lse.download(), lse.size()), "") << rows << "x" << n << " offset " << offset;
          ASSERT_EQ(difference(y.host(), y.download(), y.size()), "")
              << rows << "x" << n << " " << name_of(t) << " offset " << offset << (one_mask ? " one mask" : "");
        }
}

/// A window that slides over one run of bytes: masks of neighbouring rows overlap.
TEST_F(CudaMaskedStay, OverlappingMasks) {
  constexpr std::int64_t kN = 20001, kRows = 340;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    Tensor x(t, {kRows, kN}), y(t, {kRows, kN}), mask(DType::boolean, {kRows, kN}, {1, 1});
    x.fill_by_threads([](std::int64_t i) { return value_of(Values::normal, i / kN, i % kN, kN); });
    mask.fill([](std::int64_t i) { return shows(7, i / kN + i % kN, kN) ? 1. : 0.; });
    for (const bool gpu : {false, true}) {
      const softfold::View in = x.view(gpu), out = y.view(gpu);
      softfold::RowOptions o;
      o.mask = mask.view(gpu);
      run_masked(in, out, o);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << name_of(t);
  }
}

/// Any byte but 0 shows an element.
TEST_F(CudaMaskedStay, BytesOfMasks) {
  constexpr std::int64_t kN = 33008, kRows = 300;
  Tensor x(DType::bfloat16, {kRows, kN}), y(DType::bfloat16, {kRows, kN}), mask(DType::boolean, {kRows, kN});
  x.fill_by_threads([](std::int64_t i) { return value_of(Values::normal, i / kN, i % kN, kN); });
  for (const int byte : {0x80, 0x7F, 0x02}) {
    mask.poison(static_cast<unsigned char>(byte));
    for (const bool gpu : {false, true}) {
      const softfold::View in = x.view(gpu), out = y.view(gpu);
      softfold::RowOptions o;
      if (gpu) o.mask = mask.cuda();
      run_masked(in, out, o);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << byte;
  }
}

/// A batch's rows are the rows alone, which another kernel takes.
TEST_F(CudaMaskedStay, MaskedRowsAreTheRowsAlone) {
  constexpr std::int64_t kN = 33008, kRows = 300;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16}) {
    Tensor x(t, {kRows, kN}), all(t, {kRows, kN}), each(t, {kRows, kN}), mask(DType::boolean, {kRows, kN});
    mask.fill_by_threads([](std::int64_t i) { return shows(i / kN, i % kN, kN) ? 1. : 0.; });
    x.fill_by_threads([](std::int64_t i) { return value_of(Values::drift, i / kN, i % kN, kN); });
    const auto run = [](const softfold::View& in, const softfold::View& out, const softfold::View& shown) {
      softfold::RowOptions o;
      o.mask = shown;
      softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o).run();
    };
    run(x.cuda(), all.cuda(), mask.cuda());
    const std::vector<std::int64_t> one{1, kN}, strides{kN, 1};
    const auto row = [&](const softfold::View& v, std::int64_t r) {
      char* first = static_cast<char*>(v.data) + r * kN * static_cast<std::int64_t>(softfold::size_of(v.dtype));
      return softfold::View(first, v.dtype, one, strides, v.device);
    };
    for (std::int64_t r = 0; r < kRows; ++r) run(row(x.cuda(), r), row(each.cuda(), r), row(mask.cuda(), r));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(difference(all.download(), each.download(), all.size()), "") << name_of(t);
  }
}

}  // namespace
}  // namespace softfold_test
