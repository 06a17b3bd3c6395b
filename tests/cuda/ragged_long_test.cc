// cpu == cuda, bit for bit: ragged rows of which clusters take many.
#include "cuda/content.hpp"
#include "cuda/ragged.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

/// So many long rows that clusters stay for them, for all or for those on a queue: all lengths around a chunk and a
/// unit of two, rows without elements, such as fill the warps of two blocks and a little more, such as are longer than
/// a cluster holds and longer than a block, at any place of a vector, beside rows of any values.
TEST_F(CudaRagged, LongRowsToStayFor) {
  const std::vector<std::int64_t> edges{0,    1, 7,     1023,  1024,  1025,  2047,  2048,  2049, 3072,
                                        4096, 0, 32768, 40001, 45056, 45057, 61440, 61441, 70001};
  const auto count = static_cast<std::int64_t>(edges.size());
  for (const std::int64_t mean : {1800, 4000, 8000, 12000, 30000, 100000})
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
      for (const auto& [v, scale] : {std::pair{Values::drift, 1.}, {Values::specials, -0.5}}) {
        std::vector<std::int64_t> sizes;
        Random random(static_cast<std::uint64_t>(mean));
        for (std::int64_t total = 0; total < 7000000; total += sizes.back()) {
          const auto row = static_cast<std::int64_t>(sizes.size()) + 1;
          sizes.push_back(row % 40 < count && row < 80 ? edges[static_cast<std::size_t>(row % 40)]
                          : row % 9 == 4               ? random.below(3) - 1 + 1024 * (1 + random.below(4))
                                                       : random.below(2 * mean + mean / 4));
        }
        sizes.insert(sizes.end(), {300001, 500001});
        const std::int64_t before = 5, total = before + total_of(sizes) + 100;  // what no row is of, at both ends
        Offsets offsets(sizes, DType::int64, before);
        const auto rows = static_cast<std::int64_t>(sizes.size());
        Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3), states(DType::float64, {rows, 4});
        x.fill_by_threads([&](std::int64_t i) { return value_of(v, i / 5000, i % 5000, 5000); });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
        cpu.scale = cuda.scale = scale;
        const std::string what = "ragged, mean " + std::to_string(mean) + " " + std::string(name_of(t));
        for (const Op op : {Op::softmax, Op::log_softmax}) expect_same(op, {&x}, {&y}, cpu, cuda, what);
        expect_same(Op::state, {&x}, {&states}, cpu, cuda, what);
        expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, what + " in place");
        if (HasFatalFailure()) return;
      }
}

/// Elements far apart, such as are absent or as good as that, from the row's beginning on or anywhere: in and beside
/// the frame that a few elements of a row give.
TEST_F(CudaRagged, LongRowsOfAnyContent) {
  for (const std::int64_t mean : {12000, 40000})
    for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
      for (int of = 0; of < static_cast<int>(Content::count); ++of) {
        const auto content = static_cast<Content>(of);
        std::vector<std::int64_t> sizes;
        Random random(static_cast<std::uint64_t>(mean));
        std::vector<std::int64_t> ends;
        std::int64_t total = 0;
        while (total < 7000000) {
          sizes.push_back(random.below(2 * mean));
          ends.push_back(total += sizes.back());
        }
        Offsets offsets(sizes);
        Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3);
        x.fill_by_threads([&](std::int64_t i) {
          const auto row = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin());
          return content_of(content, t, static_cast<std::int64_t>(row), i - (ends[row] - sizes[row]), sizes[row]);
        });
        softfold::RowOptions cpu, cuda;
        cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
        cpu.scale = cuda.scale = t == DType::float16 && content == Content::no_floor ? 200. : 1.;
        const std::string what = "ragged, content " + std::to_string(of);
        expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, what);
        expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, what + " in place");
        if (HasFatalFailure()) return;
      }
}

/// Long rows at the edges of what a frame holds: sums that tie with those beside them over six levels of the tree, of
/// which a smaller one yet would show; large sums, up to and beyond those whose reciprocal is a normal number; elements
/// at and behind where they count no more; and the largest number of a dtype, alone.
double edge_of(std::int64_t kind, DType t, std::int64_t unit, std::int64_t i, std::int64_t n) {
  const bool sampled = i == 0 || i == n / 2 || i == n - 1;
  const double none = -std::numeric_limits<double>::infinity();
  const double ties[] = {-115, kind == 0 ? none : -230., -92, -69, -46, -23, 0};
  switch (kind) {
    case 0:
    case 1: return sampled ? 0. : ties[std::bit_width(static_cast<std::uint64_t>(std::min<std::int64_t>(unit, 63)))];
    case 2: return sampled ? 0. : 92.;
    case 3: return sampled ? 0. : 86.;
    case 4: return i % 7 == 0 ? -241. - static_cast<double>(i % 30) : static_cast<double>(i % 90);
    case 5: return sampled ? 0. : i % 5 == 0 ? -1.26e7 : i % 11 == 0 ? none : static_cast<double>(i % 3);
    case 6: return unit == 5 ? -120. : static_cast<double>(i % 4);
    default: return i == 0 ? (t == DType::float16 ? 65504. : 3e38) : static_cast<double>(i % 4);
  }
}
TEST_F(CudaRagged, LongRowsAtTheEdgesOfAFrame) {
  const std::vector<std::int64_t> lengths{131072, 320001, 65536, 131073, 440000, 40000};
  for (const DType t : {DType::float32, DType::float16, DType::bfloat16})
    for (const double sign : {1., -1.}) {
      std::vector<std::int64_t> sizes, ends;
      std::int64_t total = 0;
      while (total < 7000000) {
        sizes.push_back(lengths[sizes.size() % lengths.size()]);
        ends.push_back(total += sizes.back());
      }
      Offsets offsets(sizes);
      Tensor x(t, {total}, {}, 3), y(t, {total}, {}, 3);
      x.fill_by_threads([&](std::int64_t i) {
        const auto row = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin());
        const std::int64_t at = i - (ends[row] - sizes[row]);
        return sign * edge_of(static_cast<std::int64_t>(row % 8), t, at / 2048, at, sizes[row]);
      });
      softfold::RowOptions cpu, cuda;
      cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
      cpu.scale = cuda.scale = sign * std::log(2.);
      expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, "edges of a frame");
      expect_same(Op::softmax, {&x}, {&x}, cpu, cuda, "edges of a frame, in place");
      if (HasFatalFailure()) return;
    }
}

/// More rows of several chunks than blocks that begin take at a time.
TEST_F(CudaRagged, LongRowsByTurns) {
  constexpr std::int64_t mean = 9000;
  std::vector<std::int64_t> sizes;
  Random random(7);
  while (sizes.size() < 36000) sizes.push_back(random.below(2 * mean));
  Offsets offsets(sizes, DType::int64);
  const std::int64_t total = total_of(sizes);
  Tensor x(DType::bfloat16, {total}, {}, 3), y(DType::bfloat16, {total}, {}, 3);
  x.fill_by_threads([&](std::int64_t i) { return static_cast<double>(i * 7919 % 2003) / 200.; });
  softfold::RowOptions cpu, cuda;
  cpu.offsets = offsets.cpu(), cuda.offsets = offsets.cuda();
  expect_same(Op::softmax, {&x}, {&y}, cpu, cuda, "long ragged rows by turns");
}

}  // namespace
}  // namespace softfold_test
