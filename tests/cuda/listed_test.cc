// cpu == cuda, bit for bit: logsumexp and states of rows whose lengths only the device knows, as runs on a list.
#include "cuda/hidden.hpp"
#include "cuda/operations.hpp"

#include <algorithm>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

constexpr DType kTypes[] = {DType::bfloat16, DType::float16};

class CudaListed : public CudaBoth {
 protected:
  static void expect_listed(Op op, const softfold::View& in, const softfold::View& out, const softfold::RowOptions& o) {
    const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
    ASSERT_EQ(plan.kernel(), "fold_listed_rows");
  }
  /// logsumexp and states of rows of these lengths, end to end from the third element on.
  static void expect_ragged_same(const std::vector<std::int64_t>& sizes, DType t, Values kind, double scale) {
    const auto rows = static_cast<std::int64_t>(sizes.size());
    Tensor offsets(DType::int64, {rows + 1});
    std::vector<std::int64_t> begins(sizes.size() + 1, 3);
    for (std::size_t r = 0; r < sizes.size(); ++r) begins[r + 1] = begins[r] + sizes[r];
    offsets.fill([&](std::int64_t r) { return static_cast<double>(begins[static_cast<std::size_t>(r)]); });
    Tensor x(t, {begins.back()}, {}, 1), lse(DType::float32, {rows}), states(DType::float64, {rows, 4});
    x.fill_by_threads([&](std::int64_t i) { return value_of(kind, i / 40000, i % 40000, 40000); });
    softfold::RowOptions cpu, cuda;
    cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
    cpu.scale = cuda.scale = scale;
    expect_listed(Op::logsumexp, x.cuda(), lse.cuda(), cuda);
    const std::string what = std::to_string(rows) + " rows of " + std::string(name_of(t)) + ", scale " +
                             std::to_string(scale) + ", values " + std::to_string(static_cast<int>(kind));
    expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
    expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
  }
};

/// Of no element, of one run that is full or nearly, of more than a lane merges, of more than a warp merges at a time;
/// in any order, and in order of length.
TEST_F(CudaListed, RaggedRows) {
  std::vector<std::int64_t> sizes{1025 * 1024 + 1, 1024 * 1024};
  for (std::int64_t total = 0; total < 5 << 20;)
    for (const std::int64_t n :
         {0, 1, 1023, 1024, 1025, 300, 5000, 2048, 77, 9217, 512, 3, 8192, 8193, 66000, 40, 1980})
      total += n, sizes.push_back(n + static_cast<std::int64_t>(sizes.size()) % 3);
  for (const bool in_order : {false, true}) {
    if (in_order) std::sort(sizes.begin(), sizes.end());
    for (const DType t : kTypes)
      for (const auto& [kind, scale] : {std::pair{Values::normal, 1.}, {Values::specials, 0.5}, {Values::wide, -0.5}}) {
        expect_ragged_same(sizes, t, kind, scale);
        if (HasFatalFailure()) return;
      }
  }
}

/// Rows that one block lists alone, and so many that each block lists 256.
TEST_F(CudaListed, FewRowsAndMany) {
  for (const std::int64_t n : {200, 2000000})
    for (const DType t : kTypes) {
      expect_ragged_same(std::vector<std::int64_t>(static_cast<std::size_t>((8 << 20) / n), n), t, Values::normal, 1.);
      if (HasFatalFailure()) return;
    }
}

/// Lengths of 64 bits, also outside their rows, behind which stand numbers that are never to be seen; on vectors and
/// not, apart from each other and end to end; and rows that a causal limit cuts short.
TEST_F(CudaListed, RowsWithLengths) {
  struct Rows {
    std::int64_t n, gap, offset, megas;
  };
  for (const Rows& of :
       {Rows{1283, 0, 0, 13}, {1023, 4, 3, 13}, {5001, 0, 1, 13}, {50257, 7, 0, 13}, {16384, 8, 8, 33}})
    for (const DType t : kTypes)
      for (const bool causal : {false, true}) {
        const std::int64_t n = of.n, rows = (of.megas << 20) / n;
        Tensor x(t, {rows, n}, {n + of.gap, 1}, of.offset), lse(DType::float32, {rows}),
            states(DType::float64, {rows, 4}), length(DType::int64, {rows}), cpu_length(DType::int64, {rows});
        const auto any_length = [n](std::int64_t r) {
          const std::int64_t some[] = {n, 0, n + 5, 1, -3, n - 1, n / 2, 1024, (std::int64_t{1} << 40) + 3};
          return r % 3 == 0 ? some[r / 3 % 9] : r * 7919 % (n + 1);
        };
        const auto clamped = [&](std::int64_t r) { return std::clamp(any_length(r), std::int64_t{0}, n); };
        length.fill([&](std::int64_t r) { return static_cast<double>(any_length(r)); });
        cpu_length.fill([&](std::int64_t r) { return static_cast<double>(clamped(r)); });
        x.fill_by_threads([&](std::int64_t i) {
          const std::int64_t r = i / n;
          if (!causal && i % n >= clamped(r)) return planted(r, i % n);
          return value_of(r % 5 == 3 ? Values::specials : Values::normal, r, i % n, n);
        });
        softfold::RowOptions cpu, cuda;
        if (causal) {
          cpu.causal = cuda.causal = true;
        } else {
          cpu.length = cpu_length.cpu(), cuda.length = length.cuda();
        }
        const std::string what = std::to_string(rows) + "x" + std::to_string(n) + (causal ? " causal" : " lengths");
        expect_listed(Op::logsumexp, x.cuda(), lse.cuda(), cuda);
        expect_same(Op::logsumexp, {&x}, {&lse}, cpu, cuda, what);
        expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
        if (HasFatalFailure()) return;
      }
}

/// Offsets that lie: outside x, and such that rows lie over each other, of which the list has no room for all runs.
/// What it has no room for, and where it ends with room left, is right as well. By blocks that list a row each, and
/// many.
TEST_F(CudaListed, RowsOverEachOther) {
  const std::int64_t total = 7 << 20, half = total / 2, quarter = total / 4 + 77;
  std::vector<std::int64_t> few{0, half, 0, total, quarter, half, quarter, half, 0, 5000}, many(3001);
  for (std::int64_t r = 0; r <= 3000; ++r) {
    const bool begins = r % 500 == 250, ends = r % 500 == 251;
    many[static_cast<std::size_t>(r)] = begins ? 0 : ends ? quarter : r * 2000;
  }
  many[2900] = -5, many[2901] = total + 9;
  for (const auto& at : {few, many})
    for (const DType t : kTypes)
      for (const Op op : {Op::logsumexp, Op::state}) {
        const auto rows = static_cast<std::int64_t>(at.size()) - 1;
        const std::vector<std::int64_t> shape =
            op == Op::state ? std::vector{rows, std::int64_t{4}} : std::vector{rows};
        Tensor offsets(DType::int64, {rows + 1}), x(t, {total}),
            result(op == Op::state ? DType::float64 : DType::float32, shape);
        const auto offset = [&](std::int64_t r) { return at[static_cast<std::size_t>(r)]; };
        offsets.fill([&](std::int64_t r) { return static_cast<double>(offset(r)); });
        x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / 40000, i % 40000, 40000); });
        softfold::RowOptions o;
        o.offsets = offsets.cuda();
        expect_listed(op, x.cuda(), result.cuda(), o);
        const softfold::View in = x.cuda(), out = result.cuda();
        softfold::plan(op, {&in, 1}, {&out, 1}, o).run();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const std::int64_t bytes = op == Op::state ? 32 : 4;
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t begin = std::clamp(offset(r), std::int64_t{0}, total),
                             end = std::clamp(offset(r + 1), std::int64_t{0}, total);
          const std::vector<std::int64_t> of_row{1, std::max(end - begin, std::int64_t{0})},
              one = op == Op::state ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{1};
          const softfold::View row(static_cast<char*>(x.cpu().data) + begin * static_cast<std::int64_t>(x.size()), t,
                                   of_row);
          const softfold::View expected(static_cast<char*>(result.cpu().data) + bytes * r, result.dtype(), one);
          softfold::plan(op, {&row, 1}, {&expected, 1}).run();
        }
        ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << rows << " rows";
      }
}

}  // namespace
}  // namespace softfold_test
