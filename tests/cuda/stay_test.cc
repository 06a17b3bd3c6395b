// cpu == cuda, bit for bit, and a row of many == the row alone: rows so many that clusters stay for them and guess a
// row's frame from the row before.
#include "cuda/both.hpp"

#include <algorithm>
#include <numbers>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;

/// Chunks of all rows: more than clusters stay for.
constexpr std::int64_t kChunks = 7000;
/// Rows of n elements: of long ones, for which few clusters run at once, two or three for each at least; of short ones,
/// which blocks hold, as many as they are left to clusters for.
constexpr std::int64_t rows_of(std::int64_t n) { return (n > 220000 ? 4 : n <= 16384 ? 2 : 1) * kChunks * 1024 / n; }

struct Layout {
  std::int64_t n, x_offset, y_offset;
  std::int64_t rows() const { return rows_of(n); }
};
/// Whole vectors and not, whole chunks and not, one or two chunks to a warp, places for up to 64, 256 and 512 of them.
constexpr Layout kLayouts[] = {
    {6152, 0, 0},   {7168, 0, 8},   {8001, 1, 1},   {8192, 4, 4},   {9216, 0, 0},   {10001, 0, 0},  {11264, 8, 0},
    {12288, 0, 0},  {13003, 5, 5},  {14336, 0, 0},  {16384, 0, 0},  {16392, 0, 0},  {17000, 0, 0},  {17001, 0, 0},
    {20480, 8, 0},  {33003, 3, 3},  {33004, 8, 0},  {50257, 1, 1},  {50264, 0, 0},  {65536, 0, 8},  {65536, 5, 5},
    {128256, 0, 0}, {151937, 7, 7}, {200064, 0, 0}, {230400, 0, 0}, {250001, 3, 3}, {260000, 0, 0}, {262136, 8, 0},
    {262144, 0, 0}, {262145, 0, 0}, {300001, 2, 2}, {300004, 4, 4}, {360000, 8, 0}, {393216, 0, 0}, {400008, 0, 0},
    {524280, 0, 0}, {524288, 0, 0}};

std::string describe(const Layout& l, DType t, Values v, double scale) {
  return std::to_string(l.rows()) + "x" + std::to_string(l.n) + " " + std::string(name_of(t)) + " offsets " +
         std::to_string(l.x_offset) + "," + std::to_string(l.y_offset) + " values " +
         std::to_string(static_cast<int>(v)) + " scale " + std::to_string(scale);
}

class CudaStay : public Cuda {
 protected:
  static void fill(Tensor& x, const Layout& l, Values v) {
    x.fill_by_threads([&](std::int64_t i) { return value_of(v, i / l.n, i % l.n, l.n); });
  }
  static void compare(Op op, const Layout& l, DType t, Values v, double scale, bool in_place) {
    Tensor x(t, {l.rows(), l.n}, {}, l.x_offset), y(t, {l.rows(), l.n}, {}, l.y_offset);
    fill(x, l, v);
    softfold::RowOptions o;
    o.scale = scale;
    std::string kernel;
    for (const bool gpu : {false, true}) {
      const softfold::View in = x.view(gpu), out = in_place ? in : y.view(gpu);
      const auto plan = softfold::plan(op, {&in, 1}, {&out, 1}, o);
      plan.run();
      if (gpu) kernel = plan.kernel();
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(kernel, "softmax_cluster_stays") << describe(l, t, v, scale);
    Tensor& result = in_place ? x : y;
    ASSERT_EQ(difference(result.host(), result.download(), result.size()), "") << describe(l, t, v, scale);
  }
  /// The loss of rows of which one in five is ignored, their states and gradients.
  static void compare_loss_and_gradient(const Layout& l, DType t, Values v, double scale, double label_smoothing) {
    Tensor x(t, {l.rows(), l.n}, {}, l.x_offset), dx(t, {l.rows(), l.n}, {}, l.y_offset),
        targets(DType::int64, {l.rows()});
    Tensor loss(DType::float32, {}), states(DType::float64, {l.rows(), 4});
    fill(x, l, v);
    targets.fill([&](std::int64_t r) { return r % 5 == 4 ? -100. : static_cast<double>((r * 7919 + l.n - 2) % l.n); });
    for (const bool gpu : {false, true}) {
      softfold::CrossEntropyOptions o;
      o.rows.scale = scale, o.label_smoothing = label_smoothing;
      o.states = states.view(gpu), o.dx = dx.view(gpu);
      softfold::cross_entropy(x.view(gpu), targets.view(gpu), loss.view(gpu), o);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (Tensor* result : {&loss, &states, &dx})
      ASSERT_EQ(difference(result->host(), result->download(), result->size()), "") << describe(l, t, v, scale);
  }
};

TEST_F(CudaStay, SoftmaxOfRowsFarFromTheRowBefore) {
  std::size_t at = 0;
  for (const Layout& l : kLayouts)
    for (const auto& [v, scale] : {std::pair{Values::drift, 1.}, {Values::drift, -0.3}, {Values::specials, 0.5}}) {
      constexpr DType kTypes[] = {DType::bfloat16, DType::float16, DType::float32, DType::bfloat16, DType::float32};
      const DType t = l.n > 16384 ? kTypes[at % 5] : kTypes[at % 2];
      compare(Op::softmax, l, t, v, scale, at++ % 4 == 2);
      if (HasFatalFailure()) return;
    }
}

/// Rows that a guess holds, too, and such that log2 d is below 1, where results are compared with 0.
TEST_F(CudaStay, LogSoftmaxOfRowsFarFromTheRowBefore) {
  constexpr Layout kOfLog[] = {{10241, 1, 1},  {11264, 8, 0},  {14336, 0, 8},  {15001, 5, 5},  {15400, 0, 0},
                               {16384, 0, 0},  {17001, 1, 1},  {33003, 3, 3},  {33004, 8, 0},  {50257, 1, 1},
                               {50264, 0, 0},  {65536, 0, 8},  {65536, 5, 5},  {128256, 0, 0}, {151937, 7, 7},
                               {200064, 0, 0}, {250001, 3, 3}, {260000, 8, 0}, {262144, 0, 0}, {262136, 8, 0},
                               {393216, 0, 0}, {392960, 8, 0}, {460800, 0, 8}, {524280, 0, 0}};
  constexpr Layout kWide[] = {{17001, 1, 1},  {24275, 0, 0},  {32768, 0, 4},  {33003, 3, 3},  {50257, 0, 0},
                              {50264, 4, 0},  {65536, 5, 5},  {100000, 0, 0}, {128256, 0, 0}, {151937, 7, 7},
                              {200064, 0, 8}, {250001, 3, 3}, {254100, 0, 0}, {262144, 0, 0}, {262148, 8, 0},
                              {300004, 4, 4}, {360000, 8, 0}, {393216, 0, 0}};
  std::size_t at = 0;
  const auto compare_values = [&](const Layout& l, bool wide) {
    for (const auto& [v, scale] :
         {std::pair{Values::drift, 1.}, {Values::normal, -1.}, {Values::specials, 0.5}, {Values::normal, 40.}}) {
      const DType t = wide ? DType::float32 : at % 3 == 1 ? DType::float16 : DType::bfloat16;
      compare(Op::log_softmax, l, t, v, scale, at++ % 5 == 2);
      if (HasFatalFailure()) return;
    }
  };
  for (const Layout& l : kOfLog) compare_values(l, false);
  for (const Layout& l : kWide) compare_values(l, true);
}

struct ShortCase {
  Op op;
  std::int64_t n;
};
/// Rows of n by clusters that stay.
void expect_to_stay(const ShortCase& c, DType t) {
  const auto [op, n] = c;
  for (const Values v : {Values::drift, Values::specials}) {
    const bool backward = op != Op::log_softmax;
    const std::int64_t rows = (backward && n > 16384 ? 2 : 1) * rows_of(n);
    Tensor x(t, {rows, n}), dy(t, {backward ? rows : 1, n}), y(t, {rows, n});
    x.fill_by_threads([&, n = n](std::int64_t i) { return value_of(v, i / n, i % n, n); });
    dy.fill_by_threads([&, n = n](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    const std::string what =
        std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(op)) + " " + std::string(name_of(t));
    for (const bool gpu : {false, true}) {
      const softfold::View in[] = {x.view(gpu), dy.view(gpu)}, out = y.view(gpu);
      const auto plan = softfold::plan(op, {in, backward ? 2U : 1U}, {&out, 1});
      if (gpu) {
        ASSERT_EQ(plan.kernel(), backward ? "backward_cluster_stays" : "softmax_cluster_stays") << what;
      }
      plan.run();
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << what;
  }
}

/// Of few chunks, by clusters of small blocks: log_softmax, and gradients.
TEST_F(CudaStay, ShortRows) {
  for (const DType t : {DType::bfloat16, DType::float16})
    for (const ShortCase& c : {ShortCase{Op::log_softmax, 15400},
                               {Op::log_softmax, 16384},
                               {Op::softmax_backward, 8200},
                               {Op::softmax_backward, 9216},
                               {Op::log_softmax_backward, 12289},
                               {Op::log_softmax_backward, 8192},
                               {Op::log_softmax_backward, 7001},
                               {Op::log_softmax_backward, 4096}}) {
      expect_to_stay(c, t);
      if (HasFatalFailure()) return;
    }
}

/// Of a chunk to a warp; numbers of chunks that no cluster has warps for alone, and such as one has.
TEST_F(CudaStay, GradientsWithWarpsThatHaveNoChunk) {
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward})
    for (const std::int64_t n : {11001, 12288, 16385, 19456, 37001, 40960, 68000, 115001, 151936, 246001, 256001}) {
      expect_to_stay({op, n}, DType::float32);
      if (HasFatalFailure()) return;
    }
}

/// A lone element, or the whole last chunk, is what stands for absent ones there (its 118 binades under the frame are
/// -62.25 or -62.5 behind a row around 0): where its probability is about the least of all, and where the row's other
/// elements lie hardly above it.
TEST_F(CudaStay, ElementsThatLookAbsent) {
  for (const std::int64_t n : {17000, 20001, 50264, 262136}) {
    const std::int64_t rows = rows_of(n);
    Tensor x(DType::bfloat16, {rows, n}), y(DType::bfloat16, {rows, n});
    x.fill_by_threads([&](std::int64_t i) {
      const std::int64_t row = i / n, at = i % n;
      Random of_row(static_cast<std::uint64_t>(row)), of_element(static_cast<std::uint64_t>(i) + 77777);
      const std::uint64_t kind = of_row.next() % 4, candidate = of_row.next() % 3;
      const double absent = -62. - 0.25 * static_cast<double>(candidate), u = of_element.uniform();
      const bool last = at / 1024 == (n - 1) / 1024;
      if (last && (kind == 2 || (kind == 1 && at == n - 3))) return absent;
      return kind == 1 ? 12. + 8. * u : kind == 2 ? u - 47. : 8. * (u - 0.5);
    });
    for (const bool gpu : {false, true}) {
      const softfold::View in = x.view(gpu), out = y.view(gpu);
      softfold::plan(Op::softmax, {&in, 1}, {&out, 1}).run();
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n;
  }
}

/// Lengths, dtypes, places and distances of rows as they come, each batch by the kernels for many rows, each of its
/// rows by those for one; also in place.
TEST_F(CudaStay, RowsOfAnyLayoutAreTheRowsAlone) {
  Random random(20261124);
  constexpr DType kTypes[] = {DType::bfloat16, DType::bfloat16, DType::float16, DType::float32};
  constexpr std::int64_t kLongest[] = {20000, 33000, 70000, 131072, 263000, 530000};
  for (int i = 0; i < 48; ++i) {
    const DType t = kTypes[random.below(4)];
    const std::int64_t longest = kLongest[random.below(6)], any = 2049 + random.below(longest - 2048);
    const std::int64_t n = i % 3 == 0   ? any / 8 * 8
                           : i % 3 == 1 ? any / 1024 * 1024 + random.below(19) - 9 + 1024
                                        : any;
    const std::int64_t rows = (kChunks + random.below(kChunks)) * 1024 / n,
                       stride = n + (i % 2 == 0 ? 0 : random.below(10));
    const std::int64_t offset = i % 4 < 2 ? 0 : random.below(8);
    const Op op = i % 4 == 3 ? Op::log_softmax : Op::softmax;
    Tensor x(t, {rows, n}, {stride, 1}, offset), all(t, {rows, n}, {stride, 1}, offset),
        each(t, {rows, n}, {stride, 1}, offset);
    x.fill_by_threads([&](std::int64_t at) { return value_of(Values::drift, at / n, at % n, n); });
    const auto run = [op](const softfold::View& in, const softfold::View& out) {
      softfold::plan(op, {&in, 1}, {&out, 1}).run();
    };
    run(x.cuda(), all.cuda());
    const std::vector<std::int64_t> one{1, n}, strides{stride, 1};
    const auto row = [&](const Tensor& of, const softfold::View& v, std::int64_t r) {
      char* first = static_cast<char*>(v.data) + r * stride * static_cast<std::int64_t>(of.size());
      return softfold::View(first, t, one, strides, v.device);
    };
    for (std::int64_t r = 0; r < rows; ++r) run(row(x, x.cuda(), r), row(each, each.cuda(), r));
    run(x.cuda(), x.cuda());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) +
                             " stride " + std::to_string(stride) + " offset " + std::to_string(offset);
    const auto result = all.download();
    ASSERT_EQ(difference(each.download(), result, all.size()), "") << what;
    ASSERT_EQ(difference(x.download(), result, all.size()), "") << what << " in place";
  }
}

/// A batch whose clusters take rows one by one against parts of it, of fewer rows than clusters stay for; whatever the
/// counter's word holds before: anything, what a run has left, also where others have written over a part of that
/// since, or the mark of a count that no run of so many rows comes to.
TEST_F(CudaStay, RowsThatAreTakenOneByOne) {
  struct Case {
    Op op;
    DType t;
    std::int64_t n;
  };
  constexpr std::int64_t kPart = 3 << 20;  // elements: too few to stay for
  for (const auto& [op, t, n] : {Case{Op::softmax, DType::bfloat16, 50257},
                                 {Op::softmax, DType::bfloat16, 200064},
                                 {Op::softmax, DType::float16, 17000},
                                 {Op::log_softmax, DType::bfloat16, 65536},
                                 {Op::softmax, DType::float32, 100000},
                                 {Op::softmax, DType::float32, 65536},
                                 {Op::softmax, DType::float32, 393216},
                                 {Op::log_softmax, DType::float32, 50257},
                                 {Op::log_softmax, DType::float32, 110001},
                                 {Op::softmax_backward, DType::bfloat16, 50257},
                                 {Op::softmax_backward, DType::float32, 131072}}) {
    const std::int64_t elements = std::int64_t{140 << 20} / static_cast<std::int64_t>(softfold::size_of(t)),
                       rows = elements / n;
    const bool backward = op == Op::softmax_backward;
    const std::int64_t part = backward ? 1 : kPart / n;
    Tensor x(t, {rows, n}), dy(t, {backward ? rows : 1, n}), whole(t, {rows, n}), parts(t, {rows, n});
    Tensor counter(DType::int64, {1});
    x.fill_by_threads([&](std::int64_t i) { return value_of(Values::drift, i / n, i % n, n); });
    dy.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    const auto run = [&](Tensor& result, std::int64_t first, std::int64_t count) {
      const std::vector<std::int64_t> shape{count, n};
      const auto some = [&](Tensor& a) {
        return softfold::View(static_cast<char*>(a.device_data()) + first * n * static_cast<std::int64_t>(a.size()), t,
                              shape, {}, {softfold::DeviceKind::cuda, 0});
      };
      softfold::Workspace workspace{counter.device_data(), sizeof(std::uint64_t)};
      softfold::Context context;
      context.workspace = &workspace;
      const softfold::View in[] = {some(x), some(dy)}, out = some(result);
      if (count < rows) context.workspace = nullptr;
      const auto plan = softfold::plan(op, {in, backward ? 2U : 1U}, {&out, 1}, softfold::RowOptions{}, context);
      plan.run();
      const bool stays = plan.kernel() == (backward      ? "backward_cluster_stays"
                                           : n == 110001 ? "softmax_ring"
                                                         : "softmax_cluster_stays");
      ASSERT_EQ(stays, count == rows) << plan.kernel();
    };
    const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t));
    parts.poison(0x5A);
    for (std::int64_t first = 0, count = 0; first < rows; first += count) {
      count = std::min(part, rows - first);
      run(parts, first, count);
    }
    const auto word = [&] {
      std::uint64_t held = 0;
      std::memcpy(&held, counter.download().data(), sizeof held);
      return held;
    };
    const std::uint64_t no_count = 0xB5E1'A6C4'0000'0000U + static_cast<std::uint64_t>(rows);
    counter.poison(0xA5);
    for (const std::uint64_t written : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, no_count}) {
      whole.poison(0x5A);
      run(whole, 0, rows);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(parts.download(), whole.download(), whole.size()), "") << what;
      // A cluster asks for another row with each that it has: one question a row in all, and the last leaves 0.
      ASSERT_EQ(word(), 0U) << what;
      const std::uint64_t next = word() | written;
      ASSERT_EQ(cudaMemcpy(counter.device_data(), &next, sizeof next, cudaMemcpyHostToDevice), cudaSuccess);
    }
  }
}

/// float32 elements at every distance from their row's frame: within its reach, at its edges, where they are 0 in their
/// own chunk's frame and where they may not be, alone in a chunk or not.
TEST_F(CudaStay, ElementsAtTheEdgesOfAFrame) {
  for (const std::int64_t n : {33000, 50257, 131072, 260000, 300001})
    for (const double scale : {1., -2.}) {
      const std::int64_t rows = rows_of(n);
      Tensor x(DType::float32, {rows, n}), y(DType::float32, {rows, n}), log_y(DType::float32, {rows, n}),
          dx(DType::float32, {rows, n}), targets(DType::int64, {rows}), loss(DType::float32, {});
      x.fill_by_threads([&](std::int64_t i) {
        Random of_row(static_cast<std::uint64_t>(i / n)), of_element(static_cast<std::uint64_t>(i) + 4242);
        const double u = of_element.uniform(), depth = 60. + 190. * of_row.uniform();  // binades
        const std::uint64_t kind = of_row.next() % 4;
        const bool deep = kind == 0   ? i % n == 5
                          : kind == 1 ? u < 0.01
                          : kind == 2 ? i % n / 1024 == 3
                                      : i % n % 1024 != 17;
        return (deep ? -depth - 0.5 * u : 10. * (u - 0.5)) * std::numbers::ln2 / scale;
      });
      targets.fill([&](std::int64_t r) { return static_cast<double>(r % 7 == 3 ? -100 : r % n); });
      softfold::RowOptions o;
      o.scale = scale;
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = y.view(gpu), log_out = log_y.view(gpu);
        softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o).run();
        softfold::plan(Op::log_softmax, {&in, 1}, {&log_out, 1}, o).run();
        softfold::CrossEntropyOptions of_loss;
        of_loss.rows.scale = scale, of_loss.dx = dx.view(gpu);
        if (n <= 262144) softfold::cross_entropy(x.view(gpu), targets.view(gpu), loss.view(gpu), of_loss);
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n << " scale " << scale;
      ASSERT_EQ(difference(log_y.host(), log_y.download(), log_y.size()), "") << rows << "x" << n << " scale " << scale;
      if (n > 262144) continue;
      ASSERT_EQ(difference(dx.host(), dx.download(), dx.size()), "") << rows << "x" << n << " scale " << scale;
      ASSERT_EQ(difference(loss.host(), loss.download(), loss.size()), "") << rows << "x" << n << " scale " << scale;
    }
}

TEST_F(CudaStay, LossAndGradientOfRowsFarFromTheRowBefore) {
  std::size_t at = 0;
  for (const Layout& l : kLayouts) {
    const bool wide = at % 3 == 1 && l.n > 32768;
    const DType t = wide ? DType::float32 : at % 2 == 1 ? DType::float16 : DType::bfloat16;
    const Values v = at % 5 == 4 ? Values::specials : Values::drift;
    const double scale = at++ % 3 == 2 ? -0.5 : 1.;
    compare_loss_and_gradient(l, t, v, scale, at % 4 == 0 ? 0.1 : 0.);
    if (HasFatalFailure()) return;
  }
}

/// The same of rows that are written behind, of every dtype.
TEST_F(CudaStay, LossAndGradientOfLongRowsFarFromTheRowBefore) {
  for (const DType t : {DType::bfloat16, DType::float16, DType::float32})
    for (const auto& [n, v] :
         {std::pair{std::int64_t{240000}, Values::specials}, {260000, Values::drift}, {262144, Values::drift}}) {
      compare_loss_and_gradient({n, 0, 0}, t, v, 1., 0.);
      if (HasFatalFailure()) return;
    }
}

/// Targets that are no class make their rows' gradients NaN, and those alone.
TEST_F(CudaStay, GradientsOfStrayTargets) {
  for (const DType t : {DType::bfloat16, DType::float32})
    for (const std::int64_t n : {50257, 65536, 262144}) {
      const std::int64_t rows = rows_of(n);
      Tensor x(t, {rows, n}), some(t, {rows, n}), all(t, {rows, n}), targets(DType::int64, {rows});
      Tensor loss(DType::float32, {});
      x.fill_by_threads([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
      for (const bool stray : {false, true}) {
        targets.fill([&](std::int64_t r) { return static_cast<double>(stray && r % 5 == 3 ? n + r : r % n); });
        softfold::CrossEntropyOptions o;
        o.reduction = softfold::Reduction::sum;
        o.dx = (stray ? some : all).cuda();
        softfold::cross_entropy(x.cuda(), targets.cuda(), loss.cuda(), o);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      const auto with = some.download(), without = all.download();
      const std::size_t bytes = static_cast<std::size_t>(n) * all.size();
      for (std::int64_t r = 0; r < rows; ++r) {
        const char *own = reinterpret_cast<const char*>(with.data()) + static_cast<std::size_t>(r) * bytes,
                   *clean = reinterpret_cast<const char*>(without.data()) + static_cast<std::size_t>(r) * bytes;
        if (r % 5 != 3) {
          ASSERT_EQ(std::memcmp(own, clean, bytes), 0) << r << " of " << rows << "x" << n;
          continue;
        }
        for (std::size_t at = 0; at < bytes; at += all.size()) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, own + at, all.size());
          ASSERT_EQ(bits, t == DType::float32 ? 0x7FC00000U : 0x7FC0U) << r << " of " << rows << "x" << n;
        }
      }
    }
}

/// dloss is a large power of two, and the reciprocal of a row's sum in the frame of the row before is larger: their
/// product is beyond float32, the gradient is not.
TEST_F(CudaStay, LargeGradientsOfRowsFarBelowTheRowBefore) {
  for (const std::int64_t n : {17000, 50257, 65536, 262144}) {
    const std::int64_t rows = rows_of(n);
    Tensor x(DType::bfloat16, {rows, n}), dx(DType::bfloat16, {rows, n}), targets(DType::int64, {rows});
    Tensor loss(DType::float32, {}), dloss(DType::float32, {});
    x.fill_by_threads([&](std::int64_t i) {
      const std::int64_t row = i / n;
      const double level = row % 3 == 2 ? 0. : -60. - static_cast<double>(row % 40);
      return i % n % (n / 10) == 7 ? level : -std::numeric_limits<double>::infinity();
    });
    targets.fill([&](std::int64_t r) { return r % 2 == 0 ? 7. : 8.; });
    for (const double power : {0x1p29, 0x1p40, 0x1p100}) {
      dloss.fill([&](std::int64_t) { return power; });
      for (const bool gpu : {false, true}) {
        softfold::CrossEntropyOptions o;
        o.reduction = softfold::Reduction::sum;
        o.dloss = dloss.view(gpu), o.dx = dx.view(gpu);
        softfold::cross_entropy(x.view(gpu), targets.view(gpu), loss.view(gpu), o);
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      for (Tensor* result : {&loss, &dx})
        ASSERT_EQ(difference(result->host(), result->download(), result->size()), "")
            << rows << "x" << n << " dloss " << power;
    }
  }
}

/// All elements far above 0, by every distance at which 0 is no longer near enough, or absent; with chunks that are not
/// full, and elements that are absent.
TEST_F(CudaStay, RowsFarAboveZero) {
  for (const std::int64_t n : {17000, 50257, 50264, 131072, 260000, 300001})
    for (const double scale : {1., -0.5}) {
      const std::int64_t rows = rows_of(n);
      const DType t = n > 32768 && scale < 0 ? DType::float32 : DType::bfloat16;
      Tensor x(t, {rows, n}), y(t, {rows, n});
      x.fill_by_threads([&](std::int64_t i) {
        const std::int64_t row = i / n, kind = row / 16 % 4;
        Random of_row(static_cast<std::uint64_t>(row / 64)), of_element(static_cast<std::uint64_t>(i) + 999);
        const double u = of_element.uniform(), level = 40. + 60. * of_row.uniform();
        const bool absent = (kind == 1 && u < 0.01) || (kind == 2 && i % n > n / 2) || (kind == 3 && i % n == n - 1);
        return (absent ? -std::numeric_limits<double>::infinity() : level + 20. * (u - 0.5)) / scale;
      });
      softfold::RowOptions o;
      o.scale = scale;
      for (const bool gpu : {false, true}) {
        const softfold::View in = x.view(gpu), out = y.view(gpu);
        softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, o).run();
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(difference(y.host(), y.download(), y.size()), "") << rows << "x" << n << " scale " << scale;
    }
}

}  // namespace
}  // namespace softfold_test
