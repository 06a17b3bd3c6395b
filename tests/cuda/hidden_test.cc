// cpu == cuda, bit for bit: rows of which something is hidden, by masks, lengths and causal limits, and rows along an
// outer axis, at the edges of their kernels' regimes. Rows that lengths alone cut short: lengths_test.cc.
#include "cuda/hidden.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

constexpr DType kNarrow[] = {DType::float32, DType::bfloat16, DType::float16};

enum class Hides { mask, length, both, broadcast_mask, strided_mask, causal, count };

bool has_mask(Hides h) { return h != Hides::length && h != Hides::causal; }
bool has_length(Hides h) { return h == Hides::length || h == Hides::both; }

/// Row 0 is whole, row 1 has nothing, of row 2 a single element is left, row 3 has whole chunks hidden; a NaN and
/// infinities stand in hidden places.
bool is_masked_in(std::int64_t row, std::int64_t i, std::int64_t n) {
  if (row == 0) return true;
  if (row == 1) return false;
  if (row == 2) return i == n - 1;
  if (row == 3 && i / 1024 % 2 == 0 && n > 1024) return false;
  return Random(static_cast<std::uint64_t>(row * 7 + i * 31)).next() % 4 != 0;
}
std::int64_t length_in(std::int64_t row, std::int64_t n) {
  const std::int64_t some[] = {n, 0, 1, n - 1, n / 2, n * 2 / 3};
  return some[row % 6];
}
TEST_F(CudaHidden, EveryRegimeEdge) {
  for (const DType t : kNarrow)
    for (const std::int64_t n :
         {1,    7,     31,    33,    127,   128,   129,   255,   256,   257,   511,    512,   513,
          1000, 1023,  1024,  1025,  2047,  2048,  2049,  4095,  4096,  4097,  5120,   8191,  8192,
          8193, 16383, 16384, 16385, 17408, 32767, 32768, 32769, 50257, 65537, 131072, 262144})
      for (int h = 0; h < static_cast<int>(Hides::count); ++h) {
        const auto hides = static_cast<Hides>(h);
        if (n > 40000 && h > 1) continue;
        const std::int64_t rows = n > 20000 ? 8 : 14;
        const bool one_mask = hides == Hides::broadcast_mask;
        Tensor mask(DType::boolean, one_mask ? std::vector<std::int64_t>{1, n} : std::vector<std::int64_t>{rows, n},
                    hides == Hides::strided_mask ? std::vector<std::int64_t>{2 * n, 2} : std::vector<std::int64_t>{});
        Tensor length(DType::int32, {rows}), x(t, {rows, n});
        const auto mask_row = [&](std::int64_t row) { return one_mask ? 5 : row; };
        mask.fill([&](std::int64_t i) { return is_masked_in(mask_row(i / n), i % n, n) ? 1. : 0.; });
        length.fill([&](std::int64_t row) { return static_cast<double>(length_in(row, n)); });
        x.fill([&](std::int64_t at) {
          const std::int64_t row = at / n, i = at % n;
          const bool shown = (!has_mask(hides) || is_masked_in(mask_row(row), i, n)) &&
                             (!has_length(hides) || i < length_in(row, n)) &&
                             (hides != Hides::causal || i < row + 1 + n - rows);
          return shown ? value_of(row >= 6 && row < 14 ? Values::specials : Values::normal, row, i, n)
                       : planted(row, i);
        });
        softfold::RowOptions cpu, cuda;
        if (has_mask(hides)) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        if (has_length(hides)) cpu.length = length.cpu(), cuda.length = length.cuda();
        cpu.causal = cuda.causal = hides == Hides::causal;
        cpu.scale = cuda.scale = n % 5 == 2 ? -0.5 : 1.;
        cpu.empty = cuda.empty = n % 4 < 2 ? softfold::Empty::zero : softfold::Empty::nan;
        expect_same(x, cpu, cuda, "hidden " + std::to_string(h) + " of " + std::to_string(n));
        if (HasFatalFailure()) return;
      }
}

/// Several sets of a warp's rows, which lie end to end or apart, wherever rows and masks begin, with results in the
/// place of x or not.
TEST_F(CudaHidden, ManyShortRows) {
  struct At {
    std::int64_t gap, offset, mask_gap, mask_offset;
    bool in_place;
  };
  constexpr At kAt[] = {
      {0, 0, 0, 0, false}, {0, 3, 0, 5, false}, {4, 0, 16, 0, true}, {3, 1, 0, 2, false}, {0, 2, 1, 0, true}};
  std::size_t at = 0;
  for (const std::int64_t n : {1,   11,  12,  16,  17,  31,  32,  33,  50,  64,  65,  77,  100, 127,  128, 129,
                               160, 200, 250, 256, 257, 310, 400, 511, 512, 513, 630, 777, 999, 1023, 1024})
    for (std::size_t i = 0; i < 9; ++i) {
      const DType t = kNarrow[i / 3];
      const std::size_t h = i % 3;
      const auto hides = static_cast<Hides>(h);
      const At& lies = kAt[at++ % std::size(kAt)];
      const std::int64_t rows = n <= 64 ? 420 : 90 + 4000 / n;
      Tensor mask(DType::boolean, {rows, n}, {n + lies.mask_gap, 1}, lies.mask_offset), length(DType::int32, {rows});
      Tensor x(t, {rows, n}, {n + lies.gap, 1}, lies.offset), scale(DType::float64, {rows});
      constexpr double kScales[] = {1., 0.5, 0., -2., 1e30, 3.};
      scale.fill([&](std::int64_t row) { return kScales[row % 6]; });
      mask.fill([&](std::int64_t i) { return is_masked_in(i / n % 37, i % n, n) ? 1. : 0.; });
      length.fill([&](std::int64_t row) { return static_cast<double>(length_in(row, n)); });
      x.fill([&](std::int64_t i) {
        const std::int64_t row = i / n, k = i % n;
        const bool shown =
            (!has_mask(hides) || is_masked_in(row % 37, k, n)) && (!has_length(hides) || k < length_in(row, n));
        return shown ? value_of(row % 20 == 7 ? Values::specials : Values::normal, row, k, n) : planted(row, k);
      });
      softfold::RowOptions cpu, cuda;
      if (has_mask(hides)) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      if (has_length(hides)) cpu.length = length.cpu(), cuda.length = length.cuda();
      cpu.scale = cuda.scale = at % 5 == 2 ? -0.5 : at % 7 == 3 ? 0. : 1.;
      if (at % 4 == 1) cpu.scales = scale.cpu(), cuda.scales = scale.cuda();
      cpu.empty = cuda.empty = at % 4 < 2 ? softfold::Empty::zero : softfold::Empty::nan;
      expect_same(x, cpu, cuda, "short rows, hidden " + std::to_string(h) + " of " + std::to_string(n), lies.offset);
      if (HasFatalFailure()) return;
      if (!lies.in_place) continue;
      const std::string kernel = expect_same_in_place(x, cpu, cuda, "short rows of " + std::to_string(n));
      if (has_mask(hides) && n >= 20) EXPECT_EQ(kernel, "softmax_hidden_rows");
    }
}

/// Masks of a batch's keys, of its rows, or of all batches, which rows of a warp share or which lie end to end or
/// apart, up to the ends of their memory.
TEST_F(CudaHidden, MasksOfSeveralAxes) {
  std::size_t at = 0;
  for (const std::int64_t n : {1, 7, 16, 20, 33, 64, 77, 128, 197, 250, 512, 777, 1000, 1024})
    for (const DType t : kNarrow)
      for (int lie = 0; lie < 9; ++lie, ++at) {
        constexpr std::int64_t kBatches = 3, kHeads = 4, kRows = 37;
        const std::vector<std::int64_t> strides[] = {{n, 0, 0, 1},          {0, 0, n, 1},     {kRows * n, 0, n, 1},
                                                     {0, 0, 0, 1},          {0, n + 3, 0, 1}, {0, 0, n + 5, 1},
                                                     {kHeads * n, n, 0, 1}, {0, 0, -n, 1},    {0, n, 1, 1}};
        const std::vector<std::int64_t> shape{kBatches, kHeads, kRows, n};
        Tensor mask(DType::boolean, shape, strides[lie], static_cast<std::int64_t>(at % 7), 0);
        Tensor length(DType::int32, {kBatches, kHeads, kRows}, {kRows, 0, 1}),
            x(t, shape, {}, static_cast<std::int64_t>(at % 3), 0);
        // Elements of a mask's memory, whichever rows they are of, but for a row without any.
        mask.fill([&](std::int64_t i) {
          std::int64_t place = i % n;
          for (std::size_t d = 3, left = static_cast<std::size_t>(i / n); d-- > 0;
               left /= static_cast<std::size_t>(shape[d]))
            place += static_cast<std::int64_t>(left % static_cast<std::size_t>(shape[d])) * strides[lie][d];
          place += kRows * n;  // of masks that run backwards, too
          return place / n % 11 == 7 ? 0. : Random(static_cast<std::uint64_t>(place)).next() % 3 != 0 ? 1. : 0.;
        });
        length.fill([&](std::int64_t i) { return static_cast<double>(length_in(i, n)); });
        x.fill(
            [&](std::int64_t i) { return value_of(at % 5 == 4 ? Values::specials : Values::normal, i / n, i % n, n); });
        softfold::RowOptions cpu, cuda;
        cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        if (at % 4 == 3) cpu.length = length.cpu(), cuda.length = length.cuda();
        cpu.empty = cuda.empty = at % 6 == 5 ? softfold::Empty::nan : softfold::Empty::zero;
        expect_same(x, cpu, cuda, "masks " + std::to_string(lie) + " of rows of " + std::to_string(n),
                    static_cast<std::int64_t>(at % 3));
        if (HasFatalFailure()) return;
      }
  for (const Op op : {Op::softmax, Op::log_softmax}) EXPECT_GT((taken()[{op, "softmax_hidden_rows"}]), 250);
  for (const Op op : {Op::logsumexp, Op::state}) EXPECT_GT((taken()[{op, "fold_hidden_rows"}]), 150);
}

/// Rows with a scale each, of a batch or of all, and nothing hidden.
TEST_F(CudaHidden, ScalesAlone) {
  int count = 0;
  for (const std::int64_t n : {1, 3, 8, 20, 77, 197, 512, 1000, 1024})
    for (const DType t : kNarrow)
      for (const bool of_batch : {false, true}) {
        Tensor x(t, {3, 70, n}, {}, n % 3), scales(DType::float32, {3, 70}, {of_batch ? 1 : 70, of_batch ? 0 : 1});
        constexpr double kScales[] = {1., 0.5, 3., 0.25, 0., -2., 1e30};
        const std::int64_t tame = n % 2 == 0 ? 4 : 7;
        scales.fill([&](std::int64_t i) { return kScales[(of_batch ? i / 70 : i) % tame]; });
        x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
        softfold::RowOptions cpu, cuda;
        cpu.scales = scales.cpu(), cuda.scales = scales.cuda();
        expect_same(x, cpu, cuda, "scales of rows of " + std::to_string(n), n % 3);
        if (HasFatalFailure()) return;
        ++count;
      }
  for (const Op op : {Op::softmax, Op::log_softmax}) EXPECT_EQ((taken()[{op, "softmax_hidden_rows"}]), count);
}

/// Rows enough for clusters to stay.
TEST_F(CudaHidden, ManyLongRows) {
  struct Some {
    std::int64_t n;
    Hides hides;
  };
  for (const DType t : kNarrow)
    for (const Some& some : {Some{17409, Hides::mask},
                             {17409, Hides::length},
                             {33001, Hides::both},
                             {50257, Hides::both},
                             {50257, Hides::length},
                             {33001, Hides::causal},
                             {50264, Hides::broadcast_mask},
                             {131072, Hides::length},
                             {131072, Hides::mask},
                             {2056, Hides::length},
                             {9000, Hides::causal},
                             {40960, Hides::length},
                             {262144, Hides::length}}) {
      const std::int64_t n = some.n;
      const Hides hides = some.hides;
      const std::int64_t rows = 6600 * 1024 / n;
      const bool one_mask = hides == Hides::broadcast_mask;
      Tensor mask(DType::boolean, {one_mask ? 1 : rows, n}), length(DType::int64, {rows}), x(t, {rows, n});
      mask.fill([&](std::int64_t i) { return is_masked_in(one_mask ? 5 : i / n, i % n, n) ? 1. : 0.; });
      length.fill([&](std::int64_t row) { return static_cast<double>(length_in(row, n)); });
      x.fill([&](std::int64_t at) {
        const std::int64_t row = at / n, i = at % n;
        const bool shown = (!has_mask(hides) || is_masked_in(one_mask ? 5 : row, i, n)) &&
                           (!has_length(hides) || i < length_in(row, n)) &&
                           (hides != Hides::causal || i < row + 1 + n - rows);
        return shown ? value_of(row >= 6 && row < 14 ? Values::specials : Values::normal, row, i, n) : planted(row, i);
      });
      softfold::RowOptions cpu, cuda;
      if (has_mask(hides)) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      if (has_length(hides)) cpu.length = length.cpu(), cuda.length = length.cuda();
      cpu.causal = cuda.causal = hides == Hides::causal;
      expect_same(x, cpu, cuda, "hidden " + std::to_string(static_cast<int>(hides)) + " of " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
}

/// Bytes of a mask other than 0 and 1, a mask that does not lie as the elements do, a scale of 0.
TEST_F(CudaHidden, MasksOfAnyByteAnywhere) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {100, 1024, 5000, 20000})
      for (const std::int64_t offset : {0, 1, 3})
        for (const double scale : {1., 0.}) {
          Tensor mask(DType::boolean, {9, n}, {n + 3, 1}, offset), x(t, {9, n});
          mask.poison(0x80);  // no byte is 0: all is shown
          softfold::RowOptions cpu, cuda;
          cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
          cpu.scale = cuda.scale = scale;
          x.fill([&](std::int64_t i) { return value_of(Values::specials, i / n, i % n, n); });
          const std::string what = std::to_string(n) + " mask offset " + std::to_string(offset);
          expect_same(x, cpu, cuda, "bytes " + what);
          mask.fill([&](std::int64_t i) { return is_masked_in(i / n, i % n, n) ? 1. : 0.; });
          expect_same(x, cpu, cuda, what);
          if (HasFatalFailure()) return;
        }
}

TEST_F(CudaHidden, EveryOuterAxisEdge) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {2,    7,    16,   17,   21,   24,   25,   32,   33,   48,    49,    64,    65,
                                 100,  255,  256,  257,  258,  511,  512,  513,  602,  768,   769,   1023,  1024,
                                 1025, 2047, 2048, 2049, 3000, 3074, 4096, 5120, 8193, 15361, 16384, 16385, 33000})
      for (const std::int64_t inner : {2, 35, 64, 130, 264, 517}) {
        if (n * inner > 2000000 && inner != 35 && inner != 64) continue;
        Tensor x(t, {2, n, inner});
        // Of the first run, only the right half has rows of any values: the others are alike, but lie elsewhere each.
        x.fill([&](std::int64_t at) {
          const std::int64_t column = at % inner, i = at / inner % n, run = at / inner / n;
          if (run == 0 && 2 * column < inner)
            return value_of(Values::normal, column, i, n) + static_cast<double>(16 * (column % 40) - 320);
          const Values kind = column % 9 == 7 ? Values::specials : column % 9 == 4 ? Values::wide : Values::normal;
          return value_of(kind, column / 9 + run, i, n);
        });
        softfold::RowOptions o;
        o.axis = 1;
        o.scale = n % 3 == 2 ? -0.5 : 1;
        expect_same(x, o, o, "axis of " + std::to_string(n) + " inner " + std::to_string(inner));
        if (HasFatalFailure()) return;
      }
}

/// More tiles than clusters and groups begin with: the rest are drawn.
TEST_F(CudaHidden, ManyTilesOfAnOuterAxis) {
  struct Shape {
    DType t;
    std::int64_t n, inner;
  };
  for (const auto& [t, n, inner] : {Shape{DType::bfloat16, 512, 40000},
                                    {DType::float16, 1024, 40000},
                                    {DType::float32, 3000, 8200},
                                    {DType::float32, 64, 200004}}) {
    Tensor x(t, {1, n, inner});
    x.fill_by_threads([&, inner = inner](std::int64_t at) {
      const std::int64_t column = at % inner;
      return value_of(Values::normal, column, at / inner, 0) + 60. * static_cast<double>(column / 64 % 3 - 1);
    });
    softfold::RowOptions o;
    o.axis = 1;
    expect_same(x, o, o, "many tiles of an axis of " + std::to_string(n));
    if (HasFatalFailure()) return;
  }
}

/// Results over the elements, also of tiles that are folded a second time.
TEST_F(CudaHidden, OuterAxesInPlace) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {21, 64, 301, 512, 1000, 3000, 4096})
      for (const Values kind : {Values::normal, Values::specials}) {
        const std::int64_t inner = 264;
        Tensor x(t, {2, n, inner});
        x.fill([&](std::int64_t i) {
          return value_of(i % inner < 64 ? Values::normal : kind, i % inner, i / inner % n, n);
        });
        softfold::RowOptions o;
        o.axis = 1;
        for (const bool gpu : {false, true}) {
          const softfold::View view = x.view(gpu);
          softfold::plan(Op::softmax, {&view, 1}, {&view, 1}, o).run();
        }
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << n;
        ASSERT_EQ(difference(x.host(), x.download(), x.size()), "") << name_of(t) << " axis of " << n << " in place";
      }
}

/// Small enough for the sanitizers: rows by a thread, tiles by blocks that stay, and clusters.
TEST_F(CudaHidden, AFewOuterAxes) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {21, 40, 600, 1000, 1025, 3000}) {
      Tensor x(t, {n == 40 ? 3 : 1, n, 72});
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i % 72, i / 72 % n, n); });
      softfold::RowOptions o;
      o.axis = 1;
      expect_same(x, o, o, "a few axes of " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
}

/// Last chunks with fewer elements than threads share them, of rows that are alike and lie away from 0; rows whose
/// stride is no multiple of 16 bytes.
TEST_F(CudaHidden, OuterAxesThatEndSoon) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {1025, 1055, 1056, 2049})
      for (const std::int64_t inner : {66, 72})
        for (const double shift : {-20., 50.}) {
          Tensor x(t, {2, n, inner});
          x.fill([&](std::int64_t i) { return value_of(Values::normal, i % inner, i / inner % n, n) + shift; });
          softfold::RowOptions o;
          o.axis = 1;
          expect_same(x, o, o, "an axis of " + std::to_string(n) + " near " + std::to_string(shift));
          if (HasFatalFailure()) return;
        }
}

/// Small enough for the sanitizers: masks and lengths.
TEST_F(CudaHidden, AFewHiddenRows) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {100, 1000, 5001, 20000}) {
      const std::int64_t rows = n == 20000 ? 3 : 5;
      Tensor mask(DType::boolean, {rows, n}), length(DType::int32, {rows}), x(t, {rows, n});
      mask.fill([&](std::int64_t i) { return is_masked_in(i / n, i % n, n) ? 1. : 0.; });
      length.fill([&](std::int64_t row) { return static_cast<double>(length_in(row, n)); });
      x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      softfold::RowOptions cpu, cuda;
      cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      expect_same(x, cpu, cuda, "a few masked rows of " + std::to_string(n));
      cpu.mask = cuda.mask = {}, cpu.length = length.cpu(), cuda.length = length.cuda();
      expect_same(x, cpu, cuda, "a few short rows of " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
}

/// A scale of 0, and an outer axis that something is hidden of.
TEST_F(CudaHidden, OuterAxesThatAreNotPlain) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {7, 100, 1025, 5000}) {
      const std::int64_t inner = 36;
      Tensor mask(DType::boolean, {2, n, inner}), x(t, {2, n, inner});
      x.fill([&](std::int64_t i) { return value_of(Values::specials, i % inner, i / inner % n, n); });
      mask.fill([&](std::int64_t i) { return is_masked_in(i % inner, i / inner % n, n) ? 1. : 0.; });
      for (const bool masked : {false, true}) {
        softfold::RowOptions cpu, cuda;
        cpu.axis = cuda.axis = 1;
        if (masked) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        if (!masked) cpu.scale = cuda.scale = 0;
        expect_same(x, cpu, cuda, "outer axis " + std::to_string(n) + (masked ? " masked" : " scale 0"));
        if (HasFatalFailure()) return;
      }
    }
}

}  // namespace
}  // namespace softfold_test
