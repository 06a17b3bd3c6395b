// cpu == cuda, bit for bit: gradients of softmax and log_softmax of rows of which masks, lengths and causal limits hide
// something, or with scales of their own.
#include "cuda/operations.hpp"

#include <cmath>
#include <functional>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

class CudaHiddenGradient : public CudaBoth {};

enum class Hides { mask, length, both, causal, scales, all, count };
bool masks(Hides h) { return h == Hides::mask || h == Hides::both || h == Hides::all; }
bool cuts(Hides h) { return h == Hides::length || h == Hides::both || h == Hides::all; }
bool is_causal(Hides h) { return h == Hides::causal || h == Hides::all; }
bool scales(Hides h) { return h == Hides::scales || h == Hides::all; }

/// What a row's mask shows: everything, nothing, its last element, every other chunk, a part, one in some hundred,
/// most.
bool shows(std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row * 1000003 + i)).next();
  switch (row % 9) {
    case 0: return true;
    case 1: return false;
    case 2: return i == n - 1;
    case 3: return i / 1024 % 2 == 1;
    case 4: return i < n / 3 + row;
    case 5: return i > n / 2;
    case 6: return h % 300 == 0;
    default: return h % 4 != 0;
  }
}
std::int64_t length_of(std::int64_t row, std::int64_t n) {
  const std::int64_t some[] = {n, 0, 1, n - 1, n / 2, n * 2 / 3, n / 7, n};
  return some[row % 8];
}
double wild(std::int64_t at) {
  constexpr double kWild[] = {NAN, INFINITY, -INFINITY, 3e38, 0.};
  return kWild[at % 5];
}

/// Elements between rows of y, dy and dx and between masks, and before the first; one mask for all rows; dx in the
/// place of y, or of dy.
struct Layout {
  std::int64_t gap = 0, offset = 0, mask_gap = 0, mask_offset = 0;
  bool one_mask = false, over_y = false, over_dy = false;
};
constexpr Layout kLayouts[] = {{},
                               {0, 3, 0, 5},
                               {8, 0, 16, 0},
                               {3, 1, 0, 0},
                               {0, 0, 0, 3, true},
                               {0, 0, 1, 0, false, true},
                               {5, 2, 7, 1, false, false, true},
                               {16, 8, 0, 8, true, true}};

class Problem {
 public:
  Problem(DType t, std::int64_t rows, std::int64_t n, Hides hides, const Layout& at)
      : n_(n),
        y_(t, {rows, n}, {n + at.gap, 1}, at.offset),
        dy_(t, {rows, n}, {n + at.gap, 1}, at.offset),
        dx_(t, {rows, n}, {n + at.gap, 1}, at.offset),
        mask_(DType::boolean, {at.one_mask ? 1 : rows, n}, {n + at.mask_gap, 1}, at.mask_offset),
        length_(rows % 2 == 0 ? DType::int32 : DType::int64, {rows}),
        scale_(rows % 2 == 0 ? DType::float32 : DType::float64, {rows}) {
    const auto mask_row = [&](std::int64_t row) { return at.one_mask ? 7 : row; };
    mask_.fill([&](std::int64_t i) { return shows(mask_row(i / n), i % n, n) ? 1. : 0.; });
    length_.fill([&](std::int64_t row) { return static_cast<double>(length_of(row, n)); });
    scale_.fill([&](std::int64_t row) { return 0.5 + static_cast<double>(row % 5); });
    hidden_ = [=](std::int64_t row, std::int64_t i) {
      return (masks(hides) && !shows(mask_row(row), i, n)) || (cuts(hides) && i >= length_of(row, n)) ||
             (is_causal(hides) && i >= row + 1 + n - rows);
    };
    if (masks(hides)) cpu_.mask = mask_.cpu(), cuda_.mask = mask_.cuda();
    if (cuts(hides)) cpu_.length = length_.cpu(), cuda_.length = length_.cuda();
    if (scales(hides)) cpu_.scales = scale_.cpu(), cuda_.scales = scale_.cuda();
    cpu_.causal = cuda_.causal = is_causal(hides);
    cpu_.scale = cuda_.scale = n % 3 == 0 ? -0.25 : 1.5;
    out_ = at.over_y ? &y_ : at.over_dy ? &dy_ : &dx_;
  }
  /// Whether all bytes are the same, and which kernel it was.
  std::string run(Op op, std::string* kernel) {
    const double none = op == Op::softmax_backward ? 0. : -std::numeric_limits<double>::infinity();
    y_.fill([&](std::int64_t at) {
      const std::int64_t row = at / n_, i = at % n_;
      if (hidden_(row, i)) return wild(at);
      if (row % 10 == 9) return none;  // there, but nothing
      const double v = value_of(row % 7 == 6 ? Values::specials : Values::uniform, row, i, n_);
      return op == Op::softmax_backward ? v : -std::abs(v);
    });
    dy_.fill([&](std::int64_t at) {
      const std::int64_t row = at / n_, i = at % n_;
      return hidden_(row, i) ? wild(at + 1) : gradient_of(row, i);
    });
    dx_.poison(0xA5);
    for (const bool gpu : {false, true}) {
      const softfold::View in[] = {y_.view(gpu), dy_.view(gpu)}, out = out_->view(gpu);
      const auto plan = softfold::plan(op, in, {&out, 1}, gpu ? cuda_ : cpu_);
      plan.run();
      *kernel = plan.kernel();
    }
    if (cudaDeviceSynchronize() != cudaSuccess) return "a CUDA error";
    return difference(out_->host(), out_->download(), out_->size());
  }

 private:
  std::int64_t n_;
  Tensor y_, dy_, dx_, mask_, length_, scale_;
  Tensor* out_;
  softfold::RowOptions cpu_, cuda_;
  std::function<bool(std::int64_t, std::int64_t)> hidden_;
};

void compare_hidden(DType t, std::int64_t rows, std::int64_t n, Hides hides, const Layout& at) {
  Problem p(t, rows, n, hides, at);
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
    std::string kernel;
    ASSERT_EQ(p.run(op, &kernel), "") << rows << " rows of " << n << " " << name_of(t) << " " << name_of(op)
                                      << " hidden " << static_cast<int>(hides) << " gap " << at.gap << " by " << kernel;
    EXPECT_EQ(kernel.substr(0, 15), "backward_hidden") << n << " hidden " << static_cast<int>(hides);
  }
}

TEST_F(CudaHiddenGradient, EveryRegimeEdge) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const std::int64_t n :
         {1,    2,    5,    8,    15,   16,   17,   31,   32,   33,   63,    64,    65,    100,   127,    128,   129,
          200,  255,  256,  257,  384,  500,  511,  512,  513,  700,  768,   1000,  1016,  1023,  1024,   1025,  1279,
          1536, 2047, 2048, 2049, 4096, 5000, 8191, 8192, 8193, 9216, 16384, 16385, 32768, 50257, 131072, 131073})
      for (int h = 0; h < static_cast<int>(Hides::count); ++h) {
        if (n > 10000 && (h + static_cast<int>(at)) % 3 != 0) {
          ++at;
          continue;
        }
        // Short rows: several sets of a warp, of which the last is not whole.
        const std::int64_t rows = n > 20000 ? 10 : n > 1024 ? 19 : 1 + 3000 / n + 37;
        compare_hidden(t, rows, n, static_cast<Hides>(h), kLayouts[at++ % std::size(kLayouts)]);
        if (HasFatalFailure()) return;
      }
}

/// The longest rows, and rows enough for all processors.
TEST_F(CudaHiddenGradient, ManyLongRows) {
  std::size_t at = 0;
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const auto& [n, hides] : {std::pair<std::int64_t, Hides>{262144, Hides::mask},
                                   {200064, Hides::both},
                                   {262143, Hides::length},
                                   {50257, Hides::mask},
                                   {17409, Hides::causal},
                                   {16384, Hides::mask},
                                   {20480, Hides::length},
                                   {128256, Hides::mask},
                                   {65537, Hides::mask},
                                   {40963, Hides::mask},
                                   {262139, Hides::mask},
                                   {33000, Hides::mask}}) {
      compare_hidden(t, std::max<std::int64_t>(20, 9000 * 1024 / n), n, hides, kLayouts[at++ % std::size(kLayouts)]);
      if (HasFatalFailure()) return;
    }
}

/// Long rows that clusters stay for, with scales of their own; masks that run backwards, or one for each of two outer
/// indices; everything begins and ends inside vectors at the ends of its memory.
TEST_F(CudaHiddenGradient, RowsThatClustersStayFor) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
    for (const bool of_batch : {false, true}) {
      const std::int64_t n = t == DType::float32 ? 65537 : 66001, rows = 9000 * 1024 / n / 2, all = 2 * rows;
      Tensor y(t, {2, rows, n}, {}, 1, 0), dy(t, {2, rows, n}, {}, 1, 0), dx(t, {2, rows, n}, {}, 1, 0);
      Tensor scale(DType::float32, {2, rows}),
          mask(DType::boolean, {2, of_batch ? 1 : rows, n},
               of_batch ? std::vector<std::int64_t>{n, n, 1} : std::vector<std::int64_t>{-rows * n, -n, 1}, 3, 0);
      mask.fill_by_threads([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
      scale.fill([&](std::int64_t row) { return 0.5 + static_cast<double>(row % 5); });
      const auto is_shown = [&](std::int64_t row, std::int64_t i) { return shows(of_batch ? row / rows : row, i, n); };
      softfold::RowOptions cpu, cuda;
      cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      if (!of_batch) cpu.scales = scale.cpu(), cuda.scales = scale.cuda();
      for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
        y.fill_by_threads([&](std::int64_t at) {
          const double v = value_of(Values::uniform, at / n, at % n, n);
          return !is_shown(at / n, at % n) ? wild(at) : op == Op::softmax_backward ? v : -std::abs(v);
        });
        dy.fill_by_threads(
            [&](std::int64_t at) { return is_shown(at / n, at % n) ? gradient_of(at / n, at % n) : wild(at + 1); });
        expect_same(op, {&y, &dy}, {&dx}, cpu, cuda, std::to_string(all) + " rows of " + std::to_string(n));
        const softfold::View in[] = {y.cuda(), dy.cuda()}, out = dx.cuda();
        EXPECT_EQ(softfold::plan(op, in, {&out, 1}, cuda).kernel(), "backward_hidden_stays") << name_of(t);
        if (HasFatalFailure()) return;
      }
    }
}

/// One mask for all heads, as attention has it, of keys or of steps and keys, and a causal limit of each head's rows.
TEST_F(CudaHiddenGradient, SeveralOuterAxes) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {24, 130, 1000, 3000})
      for (const int lies : {0, 1, 2, 3}) {
        const bool causal = lies % 2 == 1;
        const std::int64_t batch = 2, heads = 3, steps = 21;
        Tensor y(t, {batch, heads, steps, n}), dy(t, {batch, heads, steps, n}), dx(t, {batch, heads, steps, n}),
            mask(DType::boolean, {lies == 2 ? 1 : batch, 1, lies < 2 ? 1 : steps, n}),
            length(DType::int32, {batch, heads, steps});
        mask.fill([&](std::int64_t i) { return i % n < n / 2 + 5 * (i / n % 9) ? 1. : 0.; });
        y.fill([&](std::int64_t i) { return value_of(Values::uniform, i / n, i % n, n); });
        dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
        softfold::RowOptions cpu, cuda;
        cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        cpu.causal = cuda.causal = causal;
        length.fill([&](std::int64_t row) { return static_cast<double>(length_of(row, n)); });
        if (n % 4 == 0) cpu.length = length.cpu(), cuda.length = length.cuda();
        expect_same(Op::softmax_backward, {&y, &dy}, {&dx}, cpu, cuda, "several outer axes of " + std::to_string(n));
        const softfold::View in[] = {y.cuda(), dy.cuda()}, out = dx.cuda();
        EXPECT_EQ(softfold::plan(Op::softmax_backward, in, {&out, 1}, cuda).kernel().substr(0, 15), "backward_hidden");
        if (HasFatalFailure()) return;
      }
}

/// What lies outside rows and masks at the ends of their memory is not touched: these begin and end inside vectors with
/// an allocation, of which the sanitizer knows.
TEST_F(CudaHiddenGradient, EdgesOfMemory) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {3, 101, 1001, 5003}) {
      const std::int64_t rows = 61;
      Tensor y(t, {rows, n}, {}, 1, 0), dy(t, {rows, n}, {}, 1, 0), dx(t, {rows, n}, {}, 1, 0),
          mask(DType::boolean, {rows, n}, {}, 3, 0);
      mask.fill([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
      y.fill([&](std::int64_t i) { return value_of(Values::uniform, i / n, i % n, n); });
      dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
      softfold::RowOptions cpu, cuda;
      cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
      expect_same(Op::softmax_backward, {&y, &dy}, {&dx}, cpu, cuda, "at the end of memory");
      if (HasFatalFailure()) return;
    }
}

/// Masks that run backwards or are every other byte of their memory, and dy at another stride than y.
TEST_F(CudaHiddenGradient, StridesOfTheirOwn) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t n : {1, 40, 300, 1000, 3000})
      for (const std::int64_t step : {1, 2}) {
        const std::int64_t rows = 75;
        Tensor y(t, {rows, n}, {n + 16, 1}), dy(t, {rows, n}, {n + 32, 1}), dx(t, {rows, n}, {n + 16, 1}),
            mask(DType::boolean, {rows, n}, {-step * (n + 5), step}), length(DType::int64, {rows}, {-2});
        mask.fill([&](std::int64_t i) { return shows(i / n, i % n, n) ? 1. : 0.; });
        length.fill([&](std::int64_t row) { return static_cast<double>(length_of(row, n)); });
        y.fill([&](std::int64_t i) { return value_of(Values::uniform, i / n, i % n, n); });
        dy.fill([&](std::int64_t i) { return gradient_of(i / n, i % n); });
        softfold::RowOptions cpu, cuda;
        cpu.mask = mask.cpu(), cuda.mask = mask.cuda();
        cpu.length = length.cpu(), cuda.length = length.cuda();
        expect_same(Op::softmax_backward, {&y, &dy}, {&dx}, cpu, cuda, "strides of their own, " + std::to_string(n));
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace softfold_test
