// cpu == cuda, bit for bit: rows that lengths or a causal limit cut short, by groups of lanes and by tiles.
#include "cuda/hidden.hpp"

#include <algorithm>

namespace softfold_test {
namespace {

using softfold::DType;

constexpr DType kNarrow[] = {DType::float32, DType::bfloat16, DType::float16};

/// Any number where a length is wanted: of none, one, a step more or less than a quarter, outside the row; of 64 bits
/// also those whose lower half is a length.
double any_length(std::int64_t row, std::int64_t n, DType t) {
  const std::int64_t far = t == DType::int64 ? (std::int64_t{1} << 40) + 3 : 1 << 30;
  const std::int64_t some[] = {n, 0, 1, n - 1, n / 4, n / 4 + 1, n / 2 - 1, n / 2, n * 3 / 4, -3, n + 5, far, -far};
  if (row % 2 == 0) return static_cast<double>(some[row / 2 % 13]);
  return static_cast<double>(Random(static_cast<std::uint64_t>(row) + 99).next() % static_cast<std::uint64_t>(n + 1));
}
/// Most rows lie near their first element, wherever that is, as far as a frame guessed from it reaches and further;
/// behind a row's length stands anything.
double any_value(std::int64_t row, std::int64_t i, std::int64_t n, double length) {
  if (static_cast<double>(i) >= length) return planted(row, i);
  switch (row % 16) {
    case 3: return value_of(Values::specials, row / 16, i, n);
    case 7: return value_of(Values::wide, row, i, n);
    case 11: return i == n / 3 ? 38.8 * (row % 32 < 16 ? 1 : -1) : 0.;
    case 12: return i == 0 ? 0. : i == n / 3 ? -38.8 : 38.8;
    case 13: return i == n / 3 ? 38.9 : 0.;
    case 14: return value_of(Values::huge, row / 16, i, n);
    default: return value_of(Values::normal, row, i, n) + (row % 4 == 1 ? 500. * static_cast<double>(row % 9 - 4) : 0.);
  }
}

/// What the rows of a tensor are like: of all kinds, all near their first element, all so far from 0 that a frame is
/// just not guessed any more.
enum class Rows { any, near, far };
double value_in(Rows rows, std::int64_t row, std::int64_t i, std::int64_t n, double length) {
  if (rows == Rows::any || static_cast<double>(i) >= length) return any_value(row, i, n, length);
  const double level = rows == Rows::far ? 1453635. : 100. * static_cast<double>(row % 3);
  return value_of(Values::normal, row, i, n) + (row % 2 == 0 ? level : -level);
}

/// Rows of a matrix, `stride` elements apart, the first one `offset` from a boundary.
struct CutRows {
  std::int64_t rows, n, stride, offset = 0;
};

class CudaLengths : public CudaHidden {
 protected:
  /// Rows cut short to any lengths, those of 64 bits where the scale is negative; softmax also in place, by `kernel`.
  static void expect_cut_same(DType t, const CutRows& r, double scale, Rows like, const char* kernel) {
    const std::int64_t n = r.n;
    Tensor cpu_length(DType::int32, {r.rows}), length(scale < 0 ? DType::int64 : DType::int32, {r.rows}),
        x(t, {r.rows, n}, {r.stride, 1}, r.offset);
    const auto any = [&](std::int64_t row) { return any_length(row, n, length.dtype()); };
    const auto clamped = [&](std::int64_t row) { return std::clamp(any(row), 0., static_cast<double>(n)); };
    cpu_length.fill(clamped);
    length.fill(any);
    x.fill_by_threads([&](std::int64_t at) { return value_in(like, at / n, at % n, n, clamped(at / n)); });
    softfold::RowOptions cpu, cuda;
    cpu.length = cpu_length.cpu(), cuda.length = length.cuda();
    cpu.scale = cuda.scale = scale;
    const std::string what = std::to_string(r.rows) + " rows of " + std::to_string(n) + ", " +
                             std::to_string(r.stride) + " apart from " + std::to_string(r.offset) + " on";
    expect_same(x, cpu, cuda, what, r.offset);
    if (HasFatalFailure()) return;
    const std::string took = expect_same_in_place(x, cpu, cuda, what);
    if (kernel != nullptr) {
      ASSERT_EQ(took, kernel) << what;
    }
  }
};

/// Rows on vectors, whose warps take several: of every number of lanes a row, some groups of lanes without one.
TEST_F(CudaLengths, ShortRowsOnVectors) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {8, 24, 64, 120, 128, 136, 200, 256, 264, 384, 512, 520, 768, 1000, 1024})
      for (const std::int64_t rows : {1, 7, 331})
        for (const auto& [scale, like] :
             {std::pair{1., Rows::any}, {-0.7, Rows::any}, {1., Rows::near}, {1., Rows::far}}) {
          if (like != Rows::any && (rows != 331 || (like == Rows::far && t != DType::float32))) continue;
          const CutRows r{rows, n, rows == 331 ? n + 16 : n};
          const char* kernel = n <= 8 ? "softmax_any_short" : n < 60 ? "softmax_hidden_rows" : "softmax_lengths_warp";
          expect_cut_same(t, r, scale, like, rows == 331 ? kernel : nullptr);
          if (HasFatalFailure() || HasNonfatalFailure()) return;
        }
}

/// The same of several outer axes, with a causal limit, lengths of a batch, or both.
TEST_F(CudaLengths, ShortRowsOfBatches) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {64, 256, 392, 1024})
      for (const int limits : {1, 2, 3}) {
        Tensor length(DType::int64, {3, 5, 40}, {1, 0, 0}), x(t, {3, 5, 40, n}, {5 * 40 * n + 64, 40 * n, n, 1});
        const bool causal = (limits & 1) != 0, has_length = (limits & 2) != 0;
        length.fill([&](std::int64_t i) { return static_cast<double>(i / 200 * n / 2); });
        x.fill([&](std::int64_t at) {
          const std::int64_t row = at / n;
          const std::int64_t of_batch = has_length ? row / 200 * n / 2 : n, of_row = causal ? row % 40 + 1 + n - 40 : n;
          return any_value(row, at % n, n, static_cast<double>(std::min(of_batch, of_row)));
        });
        softfold::RowOptions cpu, cuda;
        if (has_length) cpu.length = length.cpu(), cuda.length = length.cuda();
        cpu.causal = cuda.causal = causal;
        expect_same(x, cpu, cuda, "limits " + std::to_string(limits) + " of " + std::to_string(n));
        if (HasFatalFailure()) return;
      }
}

/// Rows on vectors, of a few chunks.
TEST_F(CudaLengths, RowsOfAFewChunksOnVectors) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {2056, 3072, 4096, 8192, 8200, 16384, 16392, 32768})
      for (const auto& [scale, like] : {std::pair{1., Rows::any}, {-0.7, Rows::near}}) {
        if (t == DType::float32 && n > 3072) continue;
        const std::int64_t rows = n == 4096 ? 9000 : 6600 * 1024 / n + 1;  // 16 a block, else up to 4
        expect_cut_same(t, {rows, n, n}, scale, like, "softmax_lengths_tiles");
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
}

/// The same that begin or end inside vectors, side by side and with a gap, the first one at a boundary and elsewhere.
TEST_F(CudaLengths, RowsOfAFewChunksAnywhere) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {2049, 3001, 4099, 8184, 8193, 12290, 16383, 16390, 32767})
      for (const auto& [gap, offset] : {std::pair{0, 0}, {0, 3}, {5, 1}})
        for (const auto& [scale, like] : {std::pair{1., Rows::any}, {-0.7, Rows::near}}) {
          if (t == DType::float32 && n > 16384) continue;
          if (n == 8184 && gap + offset == 0) continue;  // on vectors
          const std::int64_t rows = n == 4099 ? 9000 : 6600 * 1024 / n + 1;
          expect_cut_same(t, {rows, n, n + gap, offset}, scale, like, "softmax_lengths_tiles");
          if (HasFatalFailure() || HasNonfatalFailure()) return;
        }
}

/// Longer ones, by clusters that stay.
TEST_F(CudaLengths, LongRowsAnywhere) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {20001, 33001, 70003, 262139})
      for (const auto& [gap, offset] : {std::pair{0, 0}, {5, 1}})
        for (const auto& [scale, like] : {std::pair{1., Rows::any}, {-0.7, Rows::near}}) {
          if (t != DType::float32 && n < 32769) continue;
          const std::int64_t rows = 6600 * 1024 / n + 1;
          expect_cut_same(t, {rows, n, n + gap, offset}, scale, like, "softmax_lengths_stay");
          if (HasFatalFailure() || HasNonfatalFailure()) return;
        }
}

/// Operands that begin and end where their memory does: what lies around is not read (which compute-sanitizer sees).
TEST_F(CudaLengths, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {2051, 4099, 33001}) {
      const std::int64_t rows = 4300 * 1024 / n;
      Tensor x(t, {rows, n}, {}, 0, 0), y(t, {rows, n}, {}, 0, 0), length(DType::int32, {rows}, {}, 0, 0);
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      length.fill([&](std::int64_t row) {
        return static_cast<double>(row == 0 || row == rows - 1 ? n - row % 2 : row * 7919 % (n + 1));
      });
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = y.view(gpu);
        softfold::RowOptions o;
        o.length = length.view(gpu);
        softfold::plan(softfold::Op::softmax, {&in, 1}, {&out, 1}, o).run();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n << " " << name_of(t);
    }
}

/// Those of a few chunks of several outer axes, with a causal limit, lengths of a batch, or both.
TEST_F(CudaLengths, RowsOfAFewChunksOfBatches) {
  for (const int limits : {1, 2, 3, 5, 6, 7}) {
    const std::int64_t n = limits > 3 ? 4097 : 4096, queries = 300;
    Tensor length(DType::int64, {2, 3, queries}, {1, 0, 0}), x(DType::bfloat16, {2, 3, queries, n});
    const bool causal = (limits & 1) != 0, has_length = (limits & 2) != 0;
    length.fill([&](std::int64_t i) { return static_cast<double>(i / (3 * queries) * n / 2 + 7); });
    x.fill_by_threads([&](std::int64_t at) { return value_in(Rows::near, at / n, at % n, n, static_cast<double>(n)); });
    softfold::RowOptions cpu, cuda;
    if (has_length) cpu.length = length.cpu(), cuda.length = length.cuda();
    cpu.causal = cuda.causal = causal;
    expect_same(x, cpu, cuda, "limits " + std::to_string(limits) + " of " + std::to_string(n));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace softfold_test
