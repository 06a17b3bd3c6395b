// cpu == cuda, bit for bit: softmax and log_softmax of rows of a few chunks of which lengths, a causal limit or masks
// hide something, of any content, wherever they begin.
#include "cuda/content.hpp"
#include "cuda/hidden.hpp"

#include <array>
#include <set>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

constexpr DType kNarrow[] = {DType::float32, DType::bfloat16, DType::float16};

/// One tensor of [batches, queries, n].
struct Case {
  DType t;
  std::int64_t n, batches, queries;
  Content kind;
  Layout layout;
  double level = 0.;  ///< what is added to it

  std::string name() const {
    return std::to_string(batches) + "x" + std::to_string(queries) + "x" + std::to_string(n) + " " +
           std::string(name_of(t)) + " " + std::to_string(layout.gap) + " apart from " + std::to_string(layout.offset) +
           (layout.in_place ? " in place" : "") + ", content " + std::to_string(static_cast<int>(kind));
  }
};

class CudaHiddenPairs : public CudaHidden {
 protected:
  /// Both backends' softmax and log_softmax, of options_of(whether it is the GPU's). is_shown: where rows do not hold
  /// NaN or infinities.
  template <class Options, class Shown>
  void compare(const Case& c, const Options& options_of, const Shown& is_shown) {
    const std::int64_t n = c.n;
    const Layout& l = c.layout;
    const std::vector<std::int64_t> shape{c.batches, c.queries, n}, strides{c.queries * (n + l.gap), n + l.gap, 1};
    std::vector<double> values(static_cast<std::size_t>(kRows * n));
    for (std::int64_t i = 0; i < kRows * n; ++i)
      values[static_cast<std::size_t>(i)] = content_of(c.kind, c.t, i / n, i % n, n) + c.level;
    for (const Op op : {Op::softmax, Op::log_softmax}) {
      Tensor x(c.t, shape, strides, l.offset), y(c.t, shape, strides, l.offset);
      x.fill_by_threads([&](std::int64_t i) {
        return is_shown(i / n, i % n) ? values[static_cast<std::size_t>(i % (kRows * n))] : planted(i / n, i % n);
      });
      std::string kernel;
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = l.in_place ? in : y.view(gpu);
        const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, options_of(gpu));
        plan.run();
        kernel = plan.kernel();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << c.name();
      Tensor& result = l.in_place ? x : y;
      ASSERT_EQ(difference(result.host(), result.download(), result.size()), "")
          << name_of(op) << " " << c.name() << " by " << kernel;
      ++all_;
      if (kernels_.count(kernel) == 0) continue;
      ++taken_;
      seen_.insert({static_cast<int>(c.t), static_cast<int>(c.kind), l.in_place ? 1 : 0});
    }
  }
  void TearDown() override {
    if (all_ == 0) return;
    EXPECT_GE(taken_ * one_in_, all_);
    EXPECT_GE(seen_.size(), meetings_);
  }
  /// The at-th case's content and layout: all meet.
  static Content kind_at(std::size_t at) {
    return static_cast<Content>((at + at / 5) % static_cast<std::size_t>(Content::count));
  }
  static const Layout& layout_at(std::size_t at) { return kLayouts[(at / 12 + at) % std::size(kLayouts)]; }
  static double scale_at(std::size_t at, DType t, Content kind) {
    return at % 11 == 1 ? 0.125 : t == DType::float16 && kind == Content::no_floor ? 200. : 1.;
  }

 protected:
  std::size_t meetings_ = 42;  ///< of dtypes, contents and whether results go where elements were
  std::int64_t one_in_ = 2;    ///< of how many cases these kernels take one at least

 private:
  const std::set<std::string> kernels_{"softmax_lengths_pairs", "softmax_masked_pairs", "softmax_masked_chunks",
                                       "softmax_hidden_rows"};
  std::int64_t all_ = 0, taken_ = 0;
  std::set<std::array<int, 3>> seen_;
};

/// Rows that lengths, or a causal limit, cut short.
TEST_F(CudaHiddenPairs, RowsCutShort) {
  std::size_t at = 0;
  for (const std::int64_t n :
       {513, 700, 777, 1000, 1023, 1025, 1032, 1280, 1281, 1500, 1536, 1792, 2001, 2040, 2047, 2048})
    for (const DType t : kNarrow)
      for (const std::int64_t rows : {301, 9001})
        for (const bool causal : {false, true}) {
          const std::int64_t queries = causal ? 43 : rows;
          const Case c{t, n, rows / queries, queries, kind_at(at), layout_at(at)};
          Tensor lengths(at % 2 == 1 ? DType::int64 : DType::int32, {c.batches, queries});
          lengths.fill([&](std::int64_t i) {
            return static_cast<double>(i % 9 == 0 ? 0 : i % 9 == 1 ? n : i * 7919 % n);
          });
          const auto options = [&](bool gpu) {
            softfold::RowOptions o;
            o.causal = causal;
            o.scale = scale_at(at, t, c.kind);
            if (!causal || at % 3 != 2) o.length = lengths.view(gpu);
            return o;
          };
          compare(c, options, [](std::int64_t, std::int64_t) { return true; });
          ++at;
          if (HasFatalFailure()) return;
        }
}

/// What the row-th mask shows: everything, nothing, the last element, one of the first or the second chunk alone, a
/// part in front or behind, one in some hundred, most.
bool shows(std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row * 1000003 + i)).next();
  switch (row % 13) {
    case 0: return true;
    case 1: return false;
    case 2: return i == n - 1;
    case 3: return i >= 1024;
    case 4: return i < 1024;
    case 5: return i < n / 3 + row % 40;
    case 6: return i > n / 2 + row % 40;
    case 7: return h % 300 == 0;
    default: return h % 4 != 0;
  }
}

/// A mask for each row, or one for each of a batch, or of all batches; with lengths and causal limits, or without.
TEST_F(CudaHiddenPairs, RowsWithMasks) {
  std::size_t at = 0;
  for (const std::int64_t n :
       {257, 300, 500, 777, 1000, 1001, 1023, 1025, 1032, 1280, 1281, 1500, 1536, 2001, 2047, 2048})
    for (const DType t : kNarrow)
      for (const std::int64_t queries : {7, 43})
        for (const std::int64_t batches : {43, 210}) {
          const Case c{
              t, n, batches, queries, kind_at(at), layout_at(at), at % 3 == 1 ? 120. : 0.};  // above all floors
          const std::size_t how = at / 5 % 6;
          const bool causal = how == 1, has_length = how == 2, of_all = how == 3, of_batch = how == 4;
          const std::int64_t width = t == DType::float32 ? 4 : 8, step = n + c.layout.gap + width * (how == 5 ? 3 : 0);
          Tensor mask(DType::boolean, {of_all ? 1 : batches, of_batch ? 1 : queries, n},
                      {of_batch ? (n + width) / width * width : queries * step, step, 1}, c.layout.offset);
          Tensor lengths(DType::int32, {batches, queries});
          const auto mask_of = [&](std::int64_t row) {
            return of_all ? row % queries : of_batch ? row / queries : row;
          };
          mask.fill_by_threads([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
          lengths.fill([&](std::int64_t i) { return static_cast<double>(i % 9 == 0 ? 0 : i * 7919 % (n + 1)); });
          const auto options = [&](bool gpu) {
            softfold::RowOptions o;
            o.causal = causal;
            o.scale = scale_at(at, t, c.kind);
            o.mask = mask.view(gpu);
            if (has_length) o.length = lengths.view(gpu);
            return o;
          };
          compare(c, options, [&](std::int64_t row, std::int64_t i) { return shows(mask_of(row), i, n); });
          ++at;
          if (HasFatalFailure()) return;
        }
}

/// Longer ones: softmax of plain rows but for their masks, one for each row or one for all.
TEST_F(CudaHiddenPairs, LongerRowsWithMasks) {
  one_in_ = 3, meetings_ = 36;
  std::size_t at = 0;
  for (const std::int64_t n : {2049, 2056, 2500, 2560, 3001, 3072, 3073, 3600, 4099, 5001, 6143, 9001, 13001, 15359})
    for (const DType t : kNarrow)
      for (int repeat = 0; repeat < (n > 6144 ? 1 : 3); ++repeat, ++at) {
        if (n > 6144 && t != DType::float32) continue;
        Random chance(at * 7919 + 1);
        const auto draw = [&](int of) { return static_cast<std::size_t>(chance.uniform() * of); };
        const auto kind = static_cast<Content>((at + draw(7)) % static_cast<std::size_t>(Content::count));
        const Layout& l = kLayouts[draw(6)];
        const bool one_mask = draw(4) == 0, has_level = draw(3) == 0;
        const Case c{t, n, 1, n > 6144 ? 900 : 2200, kind, l, has_level ? 120. : 0.};
        // Each row's mask begins at another place of a vector, as the row does; one for all fits those on vectors.
        Tensor mask(DType::boolean, {1, one_mask ? 1 : c.queries, n}, {0, one_mask ? 0 : n + l.gap, 1}, l.offset);
        const auto is_shown = [&](std::int64_t row, std::int64_t i) {
          return shows(one_mask ? 9 : row, i, n) || (one_mask && i % 5 == 0);
        };
        mask.fill_by_threads([&](std::int64_t i) { return is_shown(i / n, i % n) ? 1. : 0.; });
        const auto empty = draw(2) == 0 ? softfold::Empty::zero : softfold::Empty::nan;
        const auto options = [&](bool gpu) {
          softfold::RowOptions o;
          o.scale = scale_at(at, t, c.kind);
          o.mask = mask.view(gpu);
          o.empty = empty;
          return o;
        };
        compare(c, options, is_shown);
        if (HasFatalFailure()) return;
      }
}

/// Rows, masks and lengths that run backwards.
TEST_F(CudaHiddenPairs, RowsBackwards) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {777, 1032, 1500, 2049, 4099, 33001}) {
      const std::int64_t rows = n > 2048 ? 6600 * 1024 / n + 1 : 301, step = n + 3;
      Tensor x(t, {rows, n}, {-step, 1}), mask(DType::boolean, {rows, n}, {-step, 1}),
          lengths(DType::int64, {rows}, {-1});
      mask.fill_by_threads([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
      lengths.fill([&](std::int64_t row) { return static_cast<double>(row % 5 == 0 ? n : row * 7919 % n); });
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      softfold::RowOptions cpu, cuda;
      cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      expect_same(x, cpu, cuda, "backwards, masks of " + std::to_string(n));
      cpu.mask = cuda.mask = {}, cpu.length = lengths.cpu(), cuda.length = lengths.cuda();
      expect_same(x, cpu, cuda, "backwards, lengths of " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
}

/// Operands that end where their memory does, and masks that begin there or a vector's elements behind: what lies
/// around is not read (which compute-sanitizer sees), and what no vector of 16 bytes inside holds is not missed.
TEST_F(CudaHiddenPairs, EdgesOfMemory) {
  for (const DType t : kNarrow)
    for (const std::int64_t n : {777, 1001, 1029, 1032, 1500, 2047, 2049, 3003, 4104})
      for (const std::int64_t offset : {0, 8})
        for (const bool one_mask : {false, true}) {
          const std::int64_t rows = (n > 2048 ? 2100 : 61) + offset;
          Tensor x(t, {rows, n}, {}, 0, 0), y(t, {rows, n}, {}, 0, 0);
          Tensor mask(DType::boolean, {one_mask && n % 8 == 0 ? 1 : rows, n}, {}, offset, 0);
          x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
          mask.fill_by_threads([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
          std::string kernel;
          for (const bool gpu : {false, true}) {
            const softfold::View in = x.view(gpu), out = y.view(gpu);
            softfold::RowOptions o;
            o.mask = mask.view(gpu);
            const auto plan = softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o);
            plan.run();
            kernel = plan.kernel();
          }
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          const bool stays = t == DType::float32 && n == 4104;  // on vectors
          EXPECT_EQ(kernel, stays      ? "softmax_masked_stays"
                            : n > 2048 ? "softmax_masked_chunks"
                            : n < 1025 ? "softmax_hidden_rows"
                                       : "softmax_masked_pairs")
              << rows << "x" << n << " " << name_of(t);
          ASSERT_EQ(difference(y.host(), y.download(), y.size()), "")
              << rows << "x" << n << " " << name_of(t) << " offset " << offset << (one_mask ? " one mask" : "");
        }
}

}  // namespace
}  // namespace softfold_test
