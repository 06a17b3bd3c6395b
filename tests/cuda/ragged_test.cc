// cpu == cuda, bit for bit: ragged rows.
#include "cuda/ragged.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

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
        const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
        Offsets offsets(sizes, DType::int32);
        Tensor mask(DType::boolean, {total});
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
        const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
        Offsets offsets(sizes);
        Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
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
/// States of so many short rows that they are folded with their neighbours: ordinary ones, and some of any values.
TEST_F(CudaRagged, StatesOfManyShortRows) {
  for (const std::size_t of : {std::size_t{0}, std::size_t{5}, std::size_t{6}})
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
      for (const Values kind : {Values::specials, Values::wide}) {
        std::vector<std::int64_t> sizes;
        const std::vector<std::int64_t> some = ragged_sizes()[of];
        for (std::int64_t total = 0; total < 4500000;)
          for (const std::int64_t n : some)
            if (n <= 1100) total += n, sizes.push_back(n);
        const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
        Offsets offsets(sizes);
        Tensor x(t, {total}, {}, 3), lse(DType::float32, {rows}), states(DType::float64, {rows, 4});
        x.fill_by_threads(
            [&](std::int64_t i) { return value_of(i / 3000 % 4 == 0 ? kind : Values::normal, i, i % 1500, 1500); });
        for (const double scale : {1., -0.5}) {
          softfold::RowOptions cpu, cuda;
          cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
          cpu.scale = cuda.scale = scale;
          expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "many short rows");
          expect_same(Op::state, {&x}, {&states}, cpu, cuda, "many short rows");
          if (HasFatalFailure()) return;
        }
      }
}

/// Rows in order of length: short ones, whose blocks have equal shares of elements; of a mean by which blocks look for
/// long ones among rows that are no neighbours; with long ones on a queue, few and many, beside clusters that stay,
/// alone (logsumexp), and such as are longer than a block holds.
TEST_F(CudaRagged, RowsInOrderOfLength) {
  struct Order {
    std::int64_t rows, longest, more;  ///< more: of the last ones
  };
  for (const auto& [rows, longest, more] :
       {Order{60001, 300, 0}, Order{9001, 2500, 9000}, Order{3001, 9100, 60000}, Order{1401, 9000, 20000},
        Order{2901, 11000, 20000}, Order{36001, 4500, 20000}, Order{1000, 30000, 60000}})
    for (const DType t : {DType::bfloat16, DType::float32}) {
      if (rows > 10000 && t == DType::float32) continue;
      std::vector<std::int64_t> sizes;
      for (std::int64_t i = 0; i < rows; ++i) sizes.push_back(i * longest / rows + (i > rows - 50 ? more : 0));
      const std::int64_t total = total_of(sizes);
      Offsets offsets(sizes);
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::drift, i / 5000, i % 5000, 5000); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
      const std::string what = "in order, " + std::to_string(rows) + " rows";
      expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, what);
      expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
      expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, what + " in place");
      if (HasFatalFailure()) return;
    }
}

/// Hardly any row has elements; x's memory ends inside a vector, at every place in turn.
TEST_F(CudaRagged, RowsMostlyEmpty) {
  for (const DType t : {DType::bfloat16, DType::float32})
    for (std::int64_t more = 0; more < 8; ++more)
      for (const std::int64_t longer : {0, 3000}) {
        std::vector<std::int64_t> sizes(more % 4 == 0 ? 200000 : 2000);
        for (std::size_t i = 0; i < 200; ++i) sizes[7 + 9 * i] = 400 + longer;
        sizes.back() = 33 + more + longer;
        const std::int64_t total = total_of(sizes);
        Offsets offsets(sizes);
        Tensor x(t, {total}), y(t, {total});
        x.fill([&](std::int64_t i) { return value_of(Values::normal, i / 500, i % 500, 500); });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
        for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "mostly empty rows");
        expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, "mostly empty rows, in place");
        if (HasFatalFailure()) return;
      }
}

/// Nine of ten rows are empty, most others are so long that they stand on the queue: of many parts nothing else is
/// left.
TEST_F(CudaRagged, RowsEmptyOrLong) {
  for (const std::int64_t longest : {30000, 21000})
    for (const DType t : {DType::bfloat16, DType::float32}) {
      std::vector<std::int64_t> sizes(3001);
      for (std::size_t i = 0; i < sizes.size(); i += 10) sizes[i] = i % 70 == 0 ? 5000 : longest;
      const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
      Offsets offsets(sizes);
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), lse(DType::float32, {rows});
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::drift, i / 5000, i % 5000, 5000); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
      for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "empty or long rows");
      expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, "empty or long rows");
      expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, "empty or long rows, in place");
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
      clamped.fill([&](std::int64_t i) { return i < rows ? regular(i) : static_cast<double>(total); });
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3);
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, 1, i, total); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = clamped.cpu();
      cuda.offsets = lying.cuda();
      for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, "offsets outside x");
      if (HasFatalFailure()) return;
    }
}

/// Offsets that run back and forth in the middle of many rows: those before and behind are each done once, in place.
TEST_F(CudaRagged, OffsetsThatJump) {
  for (const auto& [n, rows] : {std::pair<std::int64_t, std::int64_t>{100, 9000}, {16000, 540}})
    for (const DType t : {DType::float32, DType::bfloat16}) {
      const std::int64_t total = rows * n, from = rows * 4 / 9, to = from + rows / 90, far = rows * 8 / 9;
      Tensor jumping(DType::int64, {rows + 1}), straight(DType::int64, {rows + 1}), x(t, {total}), y(t, {total});
      jumping.fill([&, n = n](std::int64_t i) {
        return static_cast<double>(n * (i < from || i >= to ? i : i % 2 == 0 ? far : from));
      });
      straight.fill([n = n](std::int64_t i) { return static_cast<double>(n * i); });
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / 5000, i % 5000, 5000); });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = straight.cpu(), cuda.offsets = jumping.cuda();
      softfold::plan(Op::softmax, std::vector{x.cpu()}, std::vector{y.cpu()}, cpu).run();
      softfold::plan(Op::softmax, std::vector{x.cuda()}, std::vector{x.cuda()}, cuda).run();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto got = x.download();
      const auto part = [&, n = n](const std::vector<unsigned char>& of, std::int64_t first, std::int64_t last) {
        const auto at = [&](std::int64_t row) { return of.begin() + row * n * static_cast<std::int64_t>(x.size()); };
        return std::vector<unsigned char>(at(first), at(last));
      };
      ASSERT_EQ(part(y.host(), 0, from - 1), part(got, 0, from - 1));
      ASSERT_EQ(part(y.host(), far, rows), part(got, far, rows));
    }
}

/// The first offset lies behind the last: the rows between are as they should be.
TEST_F(CudaRagged, OffsetsThatEndBeforeTheyBegin) {
  const std::int64_t n = 16000, rows = 500, total = rows * n;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    Tensor back(DType::int64, {rows + 2}), straight(DType::int64, {rows + 1}), x(t, {total}), y(t, {total});
    back.fill([&](std::int64_t i) { return static_cast<double>(i == 0 ? total : i == rows + 1 ? 5 : n * (i - 1)); });
    straight.fill([&](std::int64_t i) { return static_cast<double>(n * i); });
    x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / 5000, i % 5000, 5000); });
    softfold::RowOptions cpu, cuda;
    cpu.offsets = straight.cpu(), cuda.offsets = back.cuda();
    softfold::plan(Op::softmax, std::vector{x.cuda()}, std::vector{y.cuda()}, cuda).run();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto got = y.download();
    softfold::plan(Op::softmax, std::vector{x.cpu()}, std::vector{y.cpu()}, cpu).run();
    const auto last = static_cast<std::ptrdiff_t>((rows - 1) * n) * static_cast<std::ptrdiff_t>(x.size());
    const auto& wanted = y.host();
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.begin() + last, got.begin()));
  }
}

/// Long rows that lie over each other are more than the list of such rows has room for, or the queue.
TEST_F(CudaRagged, RowsOverEachOther) {
  const std::int64_t total = 200000;
  for (const std::int64_t rows : {6, 300})
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
  const std::vector<std::int64_t> sizes{70000, 9000000, 65536, 65537};  // on average too long for a list of runs
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const Values kind : {Values::normal, Values::wide, Values::specials}) {
      const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
      Offsets offsets(sizes);
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
        const auto rows = static_cast<std::int64_t>(sizes.size()), total = total_of(sizes);
        Offsets offsets(sizes);
        Tensor scales(DType::float32, {rows});
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

/// Rows that do not cover x: what is before the first and behind the last, little or much of it, at any place of a
/// vector, of no row at all, and with gaps between elements.
TEST_F(CudaRagged, RowsThatDoNotCoverX) {
  struct Kind {
    std::int64_t before;
    std::vector<std::int64_t> sizes;
    std::int64_t behind, stride;
  };
  const Kind kinds[] = {{3, {5, 0, 1000, 7}, 9, 1},
                        {0, {700, 30}, 1, 1},
                        {0, {3, 40}, 0, 1},
                        {70001, {5, 3000}, 300007, 1},
                        {11, {}, 100, 1},
                        {5, {0, 0}, 6, 1},
                        {13, {5, 70, 1500}, 4099, 2},
                        {1, std::vector<std::int64_t>(3000, 40), 77, 1},
                        {2, {30000, 40000, 1}, 50000, 1},
                        {1, {1, 1, 2000}, 2, -1}};
  for (const Kind& kind : kinds)
    for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
      for (const std::int64_t at : {0, 5}) {
        const auto rows = static_cast<std::int64_t>(kind.sizes.size());
        const std::int64_t n = kind.before + total_of(kind.sizes) + kind.behind;
        Offsets offsets(kind.sizes, at == 0 ? DType::int64 : DType::int32, kind.before);
        Tensor x(t, {n}, {kind.stride}, at), dy(t, {n}, {kind.stride}, at), y(t, {n}, {kind.stride}, at),
            dq(t, {n}, {kind.stride}, at + 1), states(DType::float64, {rows, 4}), row(t, {rows}),
            targets(DType::int64, {rows}), one(t, {});
        x.fill([](std::int64_t i) { return value_of(Values::normal, i / 1500, i % 1500, 1500); });
        dy.fill([](std::int64_t i) { return value_of(Values::normal, 1 + i / 1500, i % 1500, 1500); });
        row.fill([](std::int64_t i) { return 0.5 * static_cast<double>(i % 3); });
        targets.fill([&](std::int64_t r) { return kind.sizes[static_cast<std::size_t>(r)] > 0 ? 0. : -100.; });
        one.fill([](std::int64_t) { return 1.; });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
        const std::string what = "outside " + std::to_string(n) + " " + std::string(name_of(t));
        expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
        for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, what);
        for (const Op op : {Op::softmax_backward, Op::log_softmax_backward})
          expect_same(op, {&x, &dy}, {&y}, cpu, cuda, what);
        for (const Op op : {Op::finish_softmax, Op::finish_log_softmax})
          expect_same(op, {&x, &states}, {&y}, cpu, cuda, what);
        for (const Op op : {Op::logsumexp_backward, Op::entropy_backward})
          expect_same(op, {&x, &states, &row}, {&y}, cpu, cuda, what);
        expect_same(Op::cross_entropy_backward, {&x, &targets, &states, &one}, {&y}, cpu, cuda, what);
        expect_same(Op::kl_divergence_backward, {&x, &x, &states, &states, &row}, {&y, &dq}, cpu, cuda, what);
        expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, what + " in place");
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace softfold_test
