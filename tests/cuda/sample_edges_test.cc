// cpu == cuda, byte for byte: sampling with options at the ends of their ranges and next to them, alone and together,
// of the batch and of each row; rows of which nothing, all or several may be drawn; the largest of one, of all, of
// more.
#include "cuda/consumers.hpp"
#include "refuse/refusal.hpp"

#include <cfloat>
#include <functional>

namespace softfold_test {
namespace {

using softfold::SampleOptions;

class CudaSampleEdges : public CudaConsumers {};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// The least numbers above 0 of float64 and of float32; the largest below 1.
constexpr double kLeast = std::numeric_limits<double>::denorm_min(), kLeastFloat = 0x1p-149, kBelowOne = 1. - 0x1p-53;
constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();

constexpr double kTemperatures[] = {1., 0., kLeast, 1e-310, kLeastFloat, 1e-40, 1e-30, 0.01, 1e30, 1e300, DBL_MAX};
constexpr double kTopPs[] = {1., 0., kLeast, 1e-30, kBelowOne, 1. - 0x1p-24};
constexpr double kMinPs[] = {0., 1., kLeast, 1e-30, kBelowOne};

/// How a batch or a row is drawn from.
struct Edge {
  double temperature = 1, top_p = 1, min_p = 0;
  std::int64_t top_k = 0;
};

/// Every option at every edge, the others as by default.
std::vector<Edge> edges_alone(std::int64_t n) {
  std::vector<Edge> all;
  for (const double v : kTemperatures) all.emplace_back().temperature = v;
  for (const double v : kTopPs) all.emplace_back().top_p = v;
  for (const double v : kMinPs) all.emplace_back().min_p = v;
  for (const std::int64_t k : {std::int64_t{1}, n - 1, n, n + 1, kMany}) all.emplace_back().top_k = k;
  return all;
}

std::vector<Edge> edges_together(std::int64_t n) {
  std::vector<Edge> all;
  for (const double t : kTemperatures)
    for (const double top_p : kTopPs)
      for (const double min_p : kMinPs)
        for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::min<std::int64_t>(n, 40), n, n + 1})
          all.push_back({t, top_p, min_p, k});
  return all;
}

enum class Content {
  plain,
  absent,
  not_a_number,
  ties,
  few,
  infinite,
  only,
  nothing_else,
  wide,
  first_nan,
  one_huge,
  narrow,
  far_up,
  peaked,
  count
};

/// Element i of a row of n.
double element(Content content, std::int64_t row, std::int64_t i, std::int64_t n) {
  const double plain = value(11 * row, i, n);
  switch (content) {
    case Content::absent: return -kInfinity;
    case Content::not_a_number: return std::numeric_limits<double>::quiet_NaN();
    case Content::ties: return -1.75;
    case Content::few: return std::floor(plain / 3.);
    case Content::infinite: return i % 3 == 1 ? kInfinity : plain;
    case Content::only: return i == n * 2 / 3 ? -7. : -kInfinity;
    case Content::nothing_else: return i % 2 == 0 ? -kInfinity : 0.;
    case Content::wide: return 60000. * (plain / 10. - 0.3);
    case Content::one_huge: return i == n / 2 ? 60000. : plain;
    case Content::narrow: return plain * 1e-4;  // on both sides of 0, within a thousandth
    case Content::far_up: return plain / 4. + 300.;
    case Content::peaked: return i == n / 3 ? 10. : plain / 4.;  // about as much as all others together
    case Content::first_nan: return i == 0 ? std::numeric_limits<double>::quiet_NaN() : plain;
    default: return plain;
  }
}

/// Which results are asked for beside the tokens: with all of them a row's probabilities are written.
enum class Results { log_probability_and_rank, all, tokens };

/// Rows, how each is drawn from, and what comes back.
struct Draws {
  std::int64_t rows, n;
  Array x, temperatures, top_ps, min_ps, top_ks, tokens, log_probability, rank, probabilities, masked;
  std::string kernel;

  /// first: what the first row holds; the next ones hold what follows.
  Draws(DType t, std::int64_t rows_, std::int64_t n_, Layout layout, int first)
      : rows(rows_),
        n(n_),
        x(t, {rows, n}, layout),
        temperatures(DType::float64, {rows}),
        top_ps(DType::float64, {rows}),
        min_ps(DType::float64, {rows}),
        top_ks(DType::int64, {rows}),
        tokens(DType::int64, {rows}, layout),
        log_probability(DType::float32, {rows}, layout),
        rank(DType::int32, {rows}),
        probabilities(t, {rows, n}, layout),
        masked(DType::float32, {rows, n}, layout) {
    for (std::int64_t k = 0; k < rows * n; ++k) {
      const auto content = static_cast<Content>((k / n + first) % static_cast<int>(Content::count));
      x.set_value(k, element(content, k / n, k % n, n));
    }
  }
  /// Row r by edge r, and so on in turn.
  void give_rows(const std::vector<Edge>& edges) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const Edge& e = edges[static_cast<std::size_t>(r) % edges.size()];
      temperatures.set(r, e.temperature), top_ps.set(r, e.top_p), min_ps.set(r, e.min_p), top_ks.set(r, e.top_k);
    }
  }
  std::vector<Array*> results() { return {&tokens, &log_probability, &rank, &probabilities, &masked}; }

  using ViewOf = std::function<View(Array&)>;
  void run(const ViewOf& view, SampleOptions o, Results asked, bool of_rows) {
    if (asked != Results::tokens) o.log_probability = view(log_probability), o.rank = view(rank);
    if (asked == Results::all) o.probabilities = view(probabilities), o.masked = view(masked);
    if (of_rows) {
      o.temperatures = view(temperatures), o.top_ps = view(top_ps);
      o.min_ps = view(min_ps), o.top_ks = view(top_ks);
    }
    const View in = view(x), out = view(tokens);
    const auto plan = softfold::plan(Op::sample, {&in, 1}, {&out, 1}, o);
    plan.run();
    kernel = plan.kernel();
  }
};

/// On both backends, the GPU first: until then the results are poison.
void expect_same(Draws d, const SampleOptions& o, Results asked, bool of_rows, const std::string& what) {
  DeviceCopies copies;
  d.run(std::ref(copies), o, asked, of_rows);
  const std::string kernel = d.kernel;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << what << " by " << kernel;
  d.run([](Array& a) { return a.view(); }, o, asked, of_rows);
  int result = 0;
  for (const Array* a : d.results()) {
    if (copies.has(*a)) {
      ASSERT_EQ(copies.download(*a), a->bytes()) << what << " by " << kernel << ": result " << result;
    }
    ++result;
  }
}

SampleOptions options_of(const Edge& e, std::size_t index) {
  SampleOptions o;
  o.seed = 31 + index, o.offset = index % 3;
  o.temperature = e.temperature, o.top_p = e.top_p, o.min_p = e.min_p, o.top_k = e.top_k;
  o.order = index % 2 == 0 ? softfold::FilterOrder::min_p_first : softfold::FilterOrder::min_p_last;
  o.of = index % 4 < 2 ? softfold::Distribution::raw : softfold::Distribution::sampled;
  return o;
}

std::string describe(const Edge& e) {
  char text[160];
  std::snprintf(text, sizeof text, " temperature %g top_p %.17g min_p %.17g top_k %lld", e.temperature, e.top_p,
                e.min_p, static_cast<long long>(e.top_k));
  return text;
}

struct Batch {
  std::int64_t rows, n;
  std::size_t stride;  ///< of combinations of options: every so-manieth
};
constexpr Batch kBatches[] = {{1, 1, 11},       {20, 1, 23},     {1, 33, 11},      {300, 40, 53},  {5000, 64, 211},
                              {1, 1024, 17},    {20, 1025, 41},  {300, 1000, 83},  {12, 9001, 61}, {1, 50257, 53},
                              {11, 50257, 211}, {1, 128256, 71}, {10, 128256, 331}};

/// These edges on every batch: which dtype, layout, results and contents by turns.
template <class EdgesOf>
void for_batches(const EdgesOf& edges_of, std::size_t step, bool all_of_them) {
  constexpr DType types[] = {DType::float32, DType::bfloat16, DType::float16};
  std::size_t index = 0;
  for (const Batch& b : kBatches) {
    const std::vector<Edge> edges = edges_of(b.n);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < edges.size(); i += (all_of_them ? 1 : b.stride) * step, ++index, ++taken) {
      // Two of three are plain rows; those in other layouts cost the CPU more.
      const Layout layout = taken % 3 == 2 ? kLayouts[1 + taken / 3 % 4] : Layout::contiguous;
      const auto asked = static_cast<Results>(index % 3);
      const DType t = types[index / 3 % 3];
      Draws draws(t, b.rows, b.n, layout, static_cast<int>(index));
      expect_same(std::move(draws), options_of(edges[i], index), asked, false,
                  shape_of(b.rows, b.n, t) + " layout " + std::to_string(static_cast<int>(layout)) +
                      describe(edges[i]) + " case " + std::to_string(index));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaSampleEdges, EachAlone) { for_batches(edges_alone, step(), true); }
TEST_F(CudaSampleEdges, Together) { for_batches(edges_together, step(), false); }

/// Options of the rows' own, all of them from the device's memory.
TEST_F(CudaSampleEdges, OfEachRow) {
  std::size_t index = 0;
  for (const Batch& b : kBatches)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const Results asked : {Results::log_probability_and_rank, Results::all, Results::tokens}) {
        if (index++ % step() != 0) continue;
        const Layout layout = index % 4 == 3 ? kLayouts[1 + index / 4 % 4] : Layout::contiguous;
        Draws draws(t, b.rows, b.n, layout, static_cast<int>(index));
        std::vector<Edge> edges = index % 2 == 0 ? edges_alone(b.n) : edges_together(b.n);
        std::rotate(edges.begin(), edges.begin() + static_cast<std::ptrdiff_t>(index * 37 % edges.size()), edges.end());
        draws.give_rows(edges);
        expect_same(std::move(draws), options_of({}, index), asked, true,
                    shape_of(b.rows, b.n, t) + " rows' own, case " + std::to_string(index));
        if (HasFatalFailure()) return;
      }
}

/// top-p from none to all of a row, alone and beside the other filters: what sample_rows weighs. Rows that fit in a
/// block, in a cluster, and in no cluster's shared memory; few, and so many that a block has one to itself.
std::vector<Edge> edges_of_shares() {
  std::vector<Edge> all;
  for (const double top_p : {0., 1e-30, 0.1, 0.5, 0.9, 0.999999, 1.})
    for (const double temperature : {0.8, 1e-3, 1e6, 1e38})
      for (const auto& [min_p, top_k] :
           {std::pair{0., std::int64_t{0}}, {0., std::int64_t{1000}}, {0.02, std::int64_t{0}}})
        all.push_back({temperature, top_p, min_p, top_k});
  return all;
}
constexpr Batch kShareBatches[] = {{3, 1, 3},       {5, 7, 3},       {40, 1000, 3},    {700, 1500, 11},
                                   {300, 5003, 11}, {14, 50257, 11}, {14, 128256, 17}, {1, 128256, 7},
                                   {2, 600000, 17}, {2, 900001, 31}, {100, 30720, 23}, {270, 30011, 61},
                                   {830, 28672, 83}};

TEST_F(CudaSampleEdges, ByShare) {
  std::size_t index = 0;
  const std::vector<Edge> edges = edges_of_shares();
  for (const Batch& b : kShareBatches)
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (std::size_t i = index % b.stride; i < edges.size(); i += b.stride) {
        if (index++ % step() != 0) continue;
        const Layout layout = index % 3 == 2 ? Layout::padded : Layout::contiguous;
        const bool of_rows = index % 5 == 4;
        Draws draws(t, b.rows, b.n, layout, b.rows < 3 ? static_cast<int>(index) : 0);
        if (of_rows) {
          std::vector<Edge> turned = edges;
          std::rotate(turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(i), turned.end());
          draws.give_rows(turned);
        }
        expect_same(std::move(draws), options_of(edges[i], index), static_cast<Results>(index / 2 % 3), of_rows,
                    shape_of(b.rows, b.n, t) + describe(edges[i]) + " case " + std::to_string(index));
        if (HasFatalFailure()) return;
      }
}

/// Refused for its shape when the plan is made, on the GPU as on the CPU.
void expect_refused(const std::function<softfold::Plan(bool)>& plan, const std::string& what) {
  for (const bool gpu : {false, true})
    softfold_test::expect_refused(what + (gpu ? " on the GPU" : " on the CPU"), Code::shape, {},
                                  [&] { plan(gpu).run(); });
}

/// The largest element, all of them, and one more than there are, of top-k and beside a draw.
TEST_F(CudaSampleEdges, TheLargestOfOneOfAllAndOfMore) {
  std::size_t index = 0;
  for (const std::int64_t n : {1, 40, 1024, 1025, 9001, 128256})
    for (const std::int64_t rows : {1, 11}) {
      const DType t = index % 2 == 0 ? DType::float32 : DType::bfloat16;
      const Draws d(t, rows, n, index % 3 == 2 ? Layout::padded : Layout::contiguous, static_cast<int>(index));
      ++index;
      for (const std::int64_t k : {std::int64_t{1}, n, n + 1}) {
        Problem p;
        p.op = Op::topk;
        p.own = softfold::TopkOptions{};
        p.inputs.push_back(d.x);
        p.outputs.emplace_back(t, Shape{rows, k});
        p.outputs.emplace_back(DType::int64, Shape{rows, k});
        for (int i = 0; i < 2; ++i) p.outputs.emplace_back(DType::float32, Shape{rows, k});
        p.outputs.emplace_back(DType::float32, Shape{rows});
        const std::string what = shape_of(rows, n, t) + " k " + std::to_string(k);
        if (k <= n) {
          softfold_test::expect_same(p, what);
          if (HasFatalFailure()) return;
          continue;
        }
        OnDevice device(p);
        const std::vector<unsigned char> before = p.outputs[1].bytes();
        const Bound host = bind(p);
        expect_refused([&](bool gpu) { return plan_of(gpu ? device.bound : host, p.op, false); }, what);
        EXPECT_EQ(device.memory[2]->download(), before) << what;
        EXPECT_EQ(p.outputs[1].bytes(), before) << what;
        expect_refused(
            [&](bool gpu) {
              const Bound& b = gpu ? device.bound : host;
              const Shape of_rows{rows};
              const View tokens(b.outputs[1].data, DType::int64, of_rows, {}, b.outputs[1].device);
              SampleOptions o;
              o.top_tokens = b.outputs[1], o.top_log_probabilities = b.outputs[2];
              o.top_tokens.data = static_cast<std::int64_t*>(o.top_tokens.data) + rows;
              return softfold::plan(Op::sample, {b.inputs.data(), 1}, {&tokens, 1}, o);
            },
            what + " top_tokens");
        EXPECT_EQ(device.memory[2]->download(), before) << what;
      }
    }
}

}  // namespace
}  // namespace softfold_test
