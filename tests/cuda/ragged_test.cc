// cpu == cuda, bit for bit: ragged rows.
#include "cuda/operations.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaRagged : public CudaBoth {};

/// Rows of all sizes side by side; many short ones; one that is huge; those at the edges of what a few lanes, a warp,
/// and a block hold.
std::vector<std::vector<std::int64_t>> ragged_sizes() {
  std::vector<std::vector<std::int64_t>> all{{0, 1, 5, 1000, 0, 1024, 1025, 33, 20000, 7, 3000, 2, 0, 8192, 8193},
                                             {0, 1, 5, 1000, 0, 1024, 1025, 33, 2000, 7, 300, 2, 0},
                                             {},
                                             {},
                                             {},
                                             {},
                                             {}};
  for (std::int64_t i = 0; i < 200; ++i) all[2].push_back(i == 77 ? 3000 : i % 19 == 3 ? 256 + i % 3 : i * 37 % 100);
  for (std::int64_t i = 0; i < 3000; ++i) all[3].push_back(i == 1234 ? 300001 : i * 37 % 5);
  for (const std::int64_t edge :
       {8, 16, 25, 32, 64, 121, 125, 128, 249, 253, 256, 512, 768, 1024, 2048, 3072, 4096, 8192, 24576, 65536})
    for (std::int64_t i = -1; i <= 1; ++i) all[4].insert(all[4].end(), {edge + i, (edge + i) % 4});
  // Short ones: packs of rows of all lengths up to 1024, and rows of nearly one length.
  for (std::int64_t i = 0; i < 1500; ++i) all[5].push_back(i % 5 == 4 ? i % 1024 : i * 7919 % (1 + i * 200 / 1500));
  for (const std::int64_t edge : {1, 25, 26, 29, 30, 61, 62, 509, 510, 1017, 1021})
    for (std::int64_t i = 0; i < 40; ++i) all[6].push_back(i % 9 == 8 ? edge - 1 : edge);
  return all;
}

TEST_F(CudaRagged, Rows) {
  for (const auto& sizes : ragged_sizes())
    for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
      for (const bool masked : {false, true}) {
        const auto rows = static_cast<std::int64_t>(sizes.size());
        std::int64_t total = 0;
        std::vector<std::int64_t> at{0};
        for (const auto s : sizes) at.push_back(total += s);
        Tensor offsets(DType::int32, {rows + 1}), mask(DType::boolean, {total});
        offsets.fill([&](std::int64_t i) { return static_cast<double>(at[static_cast<std::size_t>(i)]); });
        mask.fill([](std::int64_t i) { return static_cast<double>(i % 5 != 3 && i / 64 % 7 != 5); });
        Tensor x(t, {total}), y(t, {total}), lse(DType::float32, {rows}), states(DType::float64, {rows, 4});
        x.fill([&](std::int64_t i) {
          return value_of(masked ? Values::specials : Values::normal, i / 1500, i % 1500, 1500);
        });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu();
        cuda.offsets = offsets.cuda();
        if (masked) cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        const std::string what =
            "ragged " + std::to_string(rows) + (masked ? " masked " : " ") + std::string(name_of(t));
        expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, what);
        expect_same(Op::log_softmax, {&x}, {&y}, cpu, cuda, what);
        expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
        expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
        if (HasFatalFailure()) return;
      }
}

/// NaN, infinities and elements far apart in some rows, beside such as have none.
TEST_F(CudaRagged, RowsOfAnyValues) {
  for (const auto& sizes : ragged_sizes())
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
      for (const Values kind : {Values::specials, Values::wide}) {
        const auto rows = static_cast<std::int64_t>(sizes.size());
        std::vector<double> at{0};
        for (const auto s : sizes) at.push_back(at.back() + static_cast<double>(s));
        const auto total = static_cast<std::int64_t>(at.back());
        Tensor offsets(DType::int64, {rows + 1}), x(t, {total}, {}, 3), y(t, {total}, {}, 3),
            lse(DType::float32, {rows});
        offsets.fill([&](std::int64_t i) { return at[static_cast<std::size_t>(i)]; });
        x.fill([&](std::int64_t i) { return value_of(i / 3000 % 2 == 0 ? kind : Values::normal, i, i % 1500, 1500); });
        for (const double scale : {1., -2.5, 0.}) {
          softfold::RowOptions cpu, cuda;
          cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
          cpu.scale = cuda.scale = scale;
          for (const Op op : {Op::softmax, Op::log_softmax})
            expect_same(op, {&x}, {&y}, cpu, cuda, "ragged, any values");
          expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "ragged, any values");
          if (HasFatalFailure()) return;
        }
      }
}

/// So many long rows that clusters stay for them: all lengths around a chunk and a unit of two, rows without elements,
/// such as are longer than a cluster holds and longer than a block, at any place of a vector, beside rows of any
/// values.
TEST_F(CudaRagged, LongRowsToStayFor) {
  const std::vector<std::int64_t> edges{0,    1,    7,    1023, 1024,  1025,  2047, 2048,
                                        2049, 3072, 4096, 0,    32768, 40001, 70001};
  for (const std::int64_t mean : {8000, 30000, 100000})
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
      for (const auto& [v, scale] : {std::pair{Values::drift, 1.}, {Values::specials, -0.5}}) {
        std::vector<double> at{0};
        Random random(static_cast<std::uint64_t>(mean));
        while (at.back() < 7e6) {
          const auto row = static_cast<std::int64_t>(at.size());
          const std::int64_t n = row % 40 < 15 && row < 80 ? edges[static_cast<std::size_t>(row % 40)]
                                 : row % 9 == 4            ? random.below(3) - 1 + 1024 * (1 + random.below(4))
                                                           : random.below(2 * mean + mean / 4);
          at.push_back(at.back() + static_cast<double>(n));
        }
        at.push_back(at.back() + 300001);
        const auto rows = static_cast<std::int64_t>(at.size()) - 1, total = static_cast<std::int64_t>(at.back());
        Tensor offsets(DType::int64, {rows + 1}), x(t, {total}, {}, 3), y(t, {total}, {}, 3);
        offsets.fill([&](std::int64_t i) { return at[static_cast<std::size_t>(i)]; });
        x.fill_by_threads([&](std::int64_t i) { return value_of(v, i / 5000, i % 5000, 5000); });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
        cpu.scale = cuda.scale = scale;
        const std::string what = "ragged, mean " + std::to_string(mean) + " " + std::string(name_of(t));
        for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, what);
        expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, what + " in place");
        if (HasFatalFailure()) return;
      }
}

/// Rows in order of length, of a mean by which blocks look for long ones among rows that are no neighbours: with marks,
/// one and more a block, beside clusters that stay, alone (logsumexp), and such as are longer than a block holds.
TEST_F(CudaRagged, RowsInOrderOfLength) {
  struct Order {
    std::int64_t rows, longest, more;  ///< more: of the last ones
  };
  for (const auto& [rows, longest, more] :
       {Order{1401, 9000, 20000}, Order{2901, 11000, 20000}, Order{36001, 4500, 20000}, Order{1000, 30000, 60000}})
    for (const DType t : {DType::bfloat16, DType::float32}) {
      if (rows > 10000 && t == DType::float32) continue;
      std::vector<double> at{0};
      for (std::int64_t i = 0; i < rows; ++i)
        at.push_back(at.back() + static_cast<double>(i * longest / rows + (i > rows - 50 ? more : 0)));
      const auto total = static_cast<std::int64_t>(at.back());
      Tensor offsets(DType::int64, {rows + 1}), x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
      offsets.fill([&](std::int64_t i) { return at[static_cast<std::size_t>(i)]; });
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::drift, i / 5000, i % 5000, 5000); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
      const std::string what = "in order, " + std::to_string(rows) + " rows";
      expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, what);
      expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
      if (HasFatalFailure()) return;
    }
}

/// What only the device can read is clamped: no memory outside x is touched, and rows that run backwards are empty.
TEST_F(CudaRagged, RowsWithOffsetsOutside) {
  const std::int64_t total = 9000, rows = 6;
  const std::int64_t said[] = {-7, 30, 2000, total + 50, 60, 60, -3},
                     meant[] = {0, 30, 2000, total, total, total, total};
  for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    Tensor lying(DType::int64, {rows + 1}), clamped(DType::int64, {rows + 1});
    lying.fill([&](std::int64_t i) { return static_cast<double>(said[i]); });
    clamped.fill([&](std::int64_t i) { return static_cast<double>(meant[i]); });
    Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
    x.fill([&](std::int64_t i) { return value_of(Values::normal, 1, i, total); });
    softfold::RowOptions cpu, cuda;
    cpu.offsets = clamped.cpu();
    cuda.offsets = lying.cuda();
    for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "offsets outside x");
    expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "offsets outside x");
    if (HasFatalFailure()) return;
  }
}

/// The same behind many rows that are as they should be.
TEST_F(CudaRagged, RowsAndOffsetsOutside) {
  const std::int64_t regular_ones = 600, rows = regular_ones + 6;
  for (const std::int64_t n : {150, 12000})
    for (const DType t : {DType::float32, DType::bfloat16}) {
      const std::int64_t total = regular_ones * n;
      const double said[] = {static_cast<double>(total + 50), 60, 60, -3, -9, -11};
      Tensor lying(DType::int64, {rows + 1}), clamped(DType::int64, {rows + 1});
      const auto regular = [&](std::int64_t i) { return static_cast<double>(std::min(i * n, total)); };
      lying.fill([&](std::int64_t i) { return i <= regular_ones ? regular(i) : said[i - regular_ones - 1]; });
      clamped.fill([&](std::int64_t i) { return i < rows ? regular(i) : total; });
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3);
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, 1, i, total); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = clamped.cpu();
      cuda.offsets = lying.cuda();
      for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "offsets outside x");
      if (HasFatalFailure()) return;
    }
}

/// Long rows that lie over each other are more than the list of such rows has room for.
TEST_F(CudaRagged, RowsOverEachOther) {
  const std::int64_t total = 200000, rows = 6;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    Tensor over(DType::int64, {rows + 1}), once(DType::int64, {rows + 1}), x(t, {total}), y(t, {total});
    over.fill([&](std::int64_t i) { return i % 2 == 0 ? 0. : static_cast<double>(total); });
    once.fill([&](std::int64_t i) { return i == 0 ? 0. : static_cast<double>(total); });
    x.fill([&](std::int64_t i) { return value_of(Values::normal, 1, i, total); });
    softfold::RowOptions cpu, cuda;
    cpu.offsets = once.cpu();
    cuda.offsets = over.cuda();
    for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "rows over each other");
    if (HasFatalFailure()) return;
  }
}

/// Rows of more groups of chunks than are merged at a time, with something far from all else, and beside them.
TEST_F(CudaRagged, RowsOfMillions) {
  const std::int64_t sizes[] = {70000, 0, 9000000, 100, 65536, 65537}, rows = 6;
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const Values kind : {Values::normal, Values::wide, Values::specials}) {
      Tensor offsets(DType::int64, {rows + 1});
      std::vector<double> at{0};
      for (const auto s : sizes) at.push_back(at.back() + static_cast<double>(s));
      offsets.fill([&](std::int64_t i) { return at[static_cast<std::size_t>(i)]; });
      const auto total = static_cast<std::int64_t>(at.back());
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
      x.fill([&](std::int64_t i) { return value_of(kind, i / 5000000, i % 5000000, 5000000); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu();
      cuda.offsets = offsets.cuda();
      for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "rows of millions");
      expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "rows of millions");
      if (HasFatalFailure()) return;
    }
}

/// Scales of their own, of either sign and 0, and values that lie far apart.
TEST_F(CudaRagged, RowsWithScales) {
  for (const auto& sizes : ragged_sizes())
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const Values kind : {Values::wide, Values::huge, Values::masked_tail, Values::tiny}) {
        const auto rows = static_cast<std::int64_t>(sizes.size());
        std::int64_t total = 0;
        std::vector<std::int64_t> at{0};
        for (const auto s : sizes) at.push_back(total += s);
        Tensor offsets(DType::int64, {rows + 1}), scales(DType::float32, {rows});
        offsets.fill([&](std::int64_t i) { return static_cast<double>(at[static_cast<std::size_t>(i)]); });
        scales.fill([](std::int64_t i) { return i % 11 == 3 ? 0. : i % 5 == 2 ? -0.75 : 1.5; });
        Tensor x(t, {total}, {}, 5), y(t, {total}, {}, 5), lse(DType::float32, {rows});
        x.fill([&](std::int64_t i) { return value_of(kind, i / 1500, i % 1500, 1500); });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cpu.scales = scales.cpu();
        cuda.offsets = offsets.cuda(), cuda.scales = scales.cuda();
        for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "ragged, scales");
        expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "ragged, scales");
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace softfold_test
