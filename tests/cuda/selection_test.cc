// cpu == cuda, bit for bit: top-k and sampling over the list of cases and over shapes of real models.
#include "cuda/consumers.hpp"

#include <tuple>

namespace softfold_test {
namespace {

TEST_F(CudaConsumers, TopkOfTheList) { run_list({Op::topk}); }
TEST_F(CudaConsumers, SampleOfTheList) { run_list({Op::sample}); }

/// x, bias, bitmask, temperatures, top_ks, top_ps, min_ps, seeds -> tokens, log-probability, rank, by which options of
/// a serving stack they come.
TEST_F(CudaConsumers, SampleOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{60, 1000},
                                {20, 50257},
                                {8, 128256},
                                {2, 600000},
                                {120, 29184},
                                {280, 30011}})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (int bits = 0; bits < 16; ++bits) {
        const std::size_t one_in = rows > 100 ? 5 : n > 10000 ? 3 : 1;
        if ((index++ + static_cast<std::size_t>(bits)) % one_in != 0 || index % step() != 0) continue;
        std::vector<Array> given;
        given.push_back(logits(t, rows, n));
        given.emplace_back(DType::float32, Shape{n});
        given.emplace_back(DType::int32, Shape{rows, (n + 31) / 32});
        for (const DType type : {DType::float32, DType::int32, DType::float32, DType::float64, DType::int64})
          given.emplace_back(type, Shape{rows});
        for (std::int64_t i = 0; i < n; ++i)
          given[1].set_value(i,
                             i % 9 == 4 ? -std::numeric_limits<double>::infinity() : 0.5 * static_cast<double>(i % 3));
        for (std::int64_t i = 0; i < given[2].count(); ++i)
          given[2].set<std::int32_t>(i, static_cast<std::int32_t>(0xB7DD7BEF + 77 * i));
        for (std::int64_t r = 0; r < rows; ++r) {
          given[3].set_value(r, r % 7 == 3 ? 0. : 0.3 + 0.25 * static_cast<double>(r % 5));
          given[4].set_value(r, static_cast<double>(r % 3 == 0 ? 0 : 5 * r * r));
          given[5].set_value(r, r % 4 == 1 ? 1. : 0.8 + 0.05 * static_cast<double>(r % 4));
          given[6].set_value(r, r % 2 == 0 ? 0. : 0.01);
          given[7].set_value(r, static_cast<double>(r / 2 * 7919));
        }
        Array tokens(DType::int64, {rows}), lp(DType::float32, {rows}), rank(DType::int32, {rows});
        Array p(t, {rows, n}), masked(DType::float32, {rows, n});
        const auto draw = [&](bool gpu, std::vector<std::unique_ptr<DeviceBytes>>& memory) {
          const auto view = [&](Array& a) {
            if (!gpu) return a.view();
            memory.push_back(std::make_unique<DeviceBytes>(a.bytes()));
            return a.view_at(memory.back()->data(), kCuda);
          };
          softfold::SampleOptions o;
          o.seed = 5, o.offset = 3;
          o.log_probability = view(lp), o.rank = view(rank);
          const View out = view(tokens);
          o.probabilities = view(p), o.masked = view(masked);
          o.of = (bits & 1) != 0 ? softfold::Distribution::sampled : softfold::Distribution::raw;
          if ((bits & 2) != 0) o.bias = view(given[1]), o.bitmask = view(given[2]);
          if ((bits & 4) != 0) o.temperatures = view(given[3]), o.seeds = view(given[7]);
          if ((bits & 8) != 0) o.top_ks = view(given[4]), o.top_ps = view(given[5]), o.min_ps = view(given[6]);
          softfold::sample(view(given[0]), out, o);
        };
        std::vector<std::unique_ptr<DeviceBytes>> memory, none;
        draw(true, memory);
        cuda_check(cudaDeviceSynchronize());
        draw(false, none);
        const std::string what = std::to_string(rows) + "x" + std::to_string(n) + " options " + std::to_string(bits);
        EXPECT_EQ(memory[0]->download(), lp.bytes()) << what;
        EXPECT_EQ(memory[1]->download(), rank.bytes()) << what;
        ASSERT_EQ(memory[2]->download(), tokens.bytes()) << what;
        EXPECT_EQ(memory[3]->download(), p.bytes()) << what;
        ASSERT_EQ(memory[4]->download(), masked.bytes()) << what;
      }
}

/// The largest tokens of the raw and of the sampled distribution beside the draw. bits: sampled; filters; temperatures
/// of rows; bias and mask; masked logits in 16 bit.
void expect_same_top(DType t, std::int64_t rows, std::int64_t n, std::int64_t top, int bits, const std::string& what) {
  Array x = logits(t, rows, n), bias(DType::float32, {n}), mask(DType::boolean, {rows, n});
  Array temperatures(DType::float32, {rows});
  for (std::int64_t i = 0; i < n; ++i) {
    x.set_value(i, std::floor(value(0, i, n) / 2.));  // many equal ones
    if (rows > 4) x.set_value(3 * n + i, i % 40 == 7 ? 2. : -std::numeric_limits<double>::infinity());
    if (rows > 4) x.set_value(4 * n + i, i % 40 == 9 ? std::numeric_limits<double>::infinity() : 1.);
    bias.set_value(i, i % 9 == 4 ? -std::numeric_limits<double>::infinity() : 0.5 * static_cast<double>(i % 3));
  }
  for (std::int64_t k = 0; k < rows * n; ++k) mask.set_value(k, k % 11 != 3 && k / n != 6 ? 1. : 0.);
  for (std::int64_t r = 0; r < rows; ++r)
    temperatures.set_value(r, r % 7 == 4 ? 0. : 0.3 + 0.25 * static_cast<double>(r % 5));
  Array tokens(DType::int64, {rows}), lp(DType::float32, {rows}), masked(DType::bfloat16, {rows, n});
  Array top_tokens(DType::int32, {rows, top}, Layout::padded), top_lp(DType::float32, {rows, top});
  const auto draw = [&](bool gpu, std::vector<std::unique_ptr<DeviceBytes>>& memory) {
    const auto view = [&](Array& a) {
      if (!gpu) return a.view();
      memory.push_back(std::make_unique<DeviceBytes>(a.bytes()));
      return a.view_at(memory.back()->data(), kCuda);
    };
    softfold::SampleOptions o;
    o.seed = 11;
    const View out = view(tokens);
    o.log_probability = view(lp), o.top_tokens = view(top_tokens), o.top_log_probabilities = view(top_lp);
    const View to_masked = view(masked), in = view(x);
    if ((bits & 1) != 0) o.of = softfold::Distribution::sampled;
    if ((bits & 2) != 0) o.top_k = 50, o.top_p = 0.9;
    if ((bits & 4) != 0) o.temperatures = view(temperatures);
    if ((bits & 8) != 0) o.bias = view(bias), o.rows.mask = view(mask);
    if ((bits & 16) != 0) o.masked = to_masked;
    softfold::Context context;
    const std::size_t bytes = softfold::plan(Op::sample, {&in, 1}, {&out, 1}, o).workspace_bytes();
    const DeviceBytes room(std::vector<unsigned char>(bytes + 256, 0xA5));
    softfold::Workspace lent{room.data(), bytes};
    if (gpu) context.workspace = &lent;
    const auto plan = softfold::plan(Op::sample, {&in, 1}, {&out, 1}, o, context);
    plan.run();
    if (!gpu) return;
    EXPECT_EQ(plan.kernel(), "sample_and_topk");
    cuda_check(cudaDeviceSynchronize());
    const auto after = room.download();
    for (std::size_t i = bytes; i < after.size(); ++i) ASSERT_EQ(after[i], 0xA5) << "behind the workspace";
  };
  std::vector<std::unique_ptr<DeviceBytes>> memory, none;
  draw(true, memory);
  draw(false, none);
  const Array* results[] = {&tokens, &lp, &top_tokens, &top_lp, &masked};
  for (std::size_t i = 0; i < 5; ++i) ASSERT_EQ(memory[i]->download(), results[i]->bytes()) << what << " result " << i;
}

TEST_F(CudaConsumers, TheLargestTokensBesideTheDraw) {
  std::size_t index = 0;
  for (const auto& [rows, n, top] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{60, 1000, 5},
                                     {20, 50257, 20},
                                     {3, 128256, 300},
                                     {40, 40, 40},
                                     {9, 5003, 0}})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (int bits = 0; bits < 32; ++bits) {
        if ((index++ + static_cast<std::size_t>(bits)) % (n > 10000 ? 3 : 1) != 0 || index % step() != 0) continue;
        expect_same_top(t, rows, n, top, bits, shape_of(rows, n, t) + " bits " + std::to_string(bits));
        if (HasFatalFailure()) return;
      }
}

/// x, temperatures, top_ks, top_ps, min_ps -> tokens, log-probability, rank of plain rows: what one read decides, and
/// rows that it does not. few: many equal logits.
struct DrawCase {
  std::int64_t rows, n;
  DType dtype;
  bool few, of_rows, sampled, ranked;
  double temperature, top_p, min_p;
  std::int64_t top_k;
  softfold::FilterOrder order;
};

void expect_same_draws(const DrawCase& c, const std::string& what) {
  std::vector<Array> given;
  given.push_back(logits(c.dtype, c.rows, c.n));
  for (const DType type : {DType::float32, DType::int32, DType::float32, DType::float64})
    given.emplace_back(type, Shape{c.rows});
  if (c.few)
    for (std::int64_t i = 0; i < given[0].count(); ++i)
      given[0].set_value(i, std::floor(value(i / c.n, i % c.n, c.n) / 2.));
  if (c.rows > 16)
    for (std::int64_t i = 0; i < c.n; ++i) {
      given[0].set_value(12 * c.n + i, -std::numeric_limits<double>::infinity());
      given[0].set_value(13 * c.n + i, i % 3 == 0 ? std::numeric_limits<double>::infinity() : 1.);
      given[0].set_value(14 * c.n + i, i == 7 ? 2. : -std::numeric_limits<double>::infinity());
    }
  for (std::int64_t r = 0; r < c.rows; ++r) {
    given[1].set_value(r, r % 7 == 3 ? 0. : r % 7 == 4 ? -1. : 0.3 + 0.25 * static_cast<double>(r % 5));
    given[2].set_value(r, static_cast<double>(r % 3 == 0 ? 0 : 3 * r));
    given[3].set_value(r, r % 4 == 1 ? 1. : 0.8 + 0.05 * static_cast<double>(r % 4));
    given[4].set_value(r, r % 2 == 0 ? 0. : 0.01);
  }
  Array tokens(DType::int64, {c.rows}), lp(DType::float32, {c.rows}), rank(DType::int32, {c.rows});
  std::string kernel;
  const auto draw = [&](bool gpu, std::vector<std::unique_ptr<DeviceBytes>>& memory) {
    const auto view = [&](Array& a) {
      if (!gpu) return a.view();
      memory.push_back(std::make_unique<DeviceBytes>(a.bytes()));
      return a.view_at(memory.back()->data(), kCuda);
    };
    softfold::SampleOptions o;
    o.seed = 77, o.offset = 1;
    o.temperature = c.temperature, o.top_k = c.top_k, o.top_p = c.top_p, o.min_p = c.min_p, o.order = c.order;
    o.of = c.sampled ? softfold::Distribution::sampled : softfold::Distribution::raw;
    const View out = view(tokens);
    o.log_probability = view(lp);
    if (c.ranked) o.rank = view(rank);
    if (c.of_rows) {
      // The CPU refuses a negative temperature; a GPU gives its row no token.
      if (!gpu)
        for (std::int64_t r = 0; r < c.rows; ++r)
          if (r % 7 == 4) given[1].set_value(r, 1.);
      o.temperatures = view(given[1]), o.top_ks = view(given[2]), o.top_ps = view(given[3]), o.min_ps = view(given[4]);
    }
    const View x = view(given[0]);
    const auto plan = softfold::plan(Op::sample, {&x, 1}, {&out, 1}, o);
    if (gpu) kernel = plan.kernel();
    plan.run();
  };
  std::vector<std::unique_ptr<DeviceBytes>> memory, none;
  draw(true, memory);
  cuda_check(cudaDeviceSynchronize());
  draw(false, none);
  // Else top-p may have the whole row; few rows are drawn by sample_rows if they are greedy or wanted entries are many.
  const bool greedy = c.temperature == 0. && c.n <= 8192;
  if (c.n > 232 && (c.of_rows || (c.top_k < 100 && !greedy))) {
    EXPECT_EQ(kernel, "sample_draw") << what;
  }
  Array got_tokens = tokens, got_lp = lp, got_rank = rank;
  got_tokens.bytes() = memory[0]->download();
  got_lp.bytes() = memory[1]->download();
  if (c.ranked) got_rank.bytes() = memory[2]->download();
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const bool refused = c.of_rows && r % 7 == 4;
    const std::string row = what + " row " + std::to_string(r);
    ASSERT_EQ(got_tokens.get<std::int64_t>(r), refused ? -1 : tokens.get<std::int64_t>(r)) << row;
    if (refused) continue;
    const float a = got_lp.get<float>(r), b = lp.get<float>(r);
    ASSERT_EQ(std::memcmp(&a, &b, 4), 0) << row << ": cpu " << b << ", cuda " << a;
    ASSERT_EQ(got_rank.get<std::int32_t>(r), rank.get<std::int32_t>(r)) << row;
  }
}

TEST_F(CudaConsumers, SampleOfPlainRows) {
  std::size_t index = 0;
  const auto first = softfold::FilterOrder::min_p_first, last = softfold::FilterOrder::min_p_last;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{400, 40},
                                {520, 1000},
                                {66, 5003},
                                {66, 50257},
                                {8, 128256},
                                {1, 128256},
                                {600, 9000},
                                {2, 602000}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int bits = 0; bits < 16; ++bits)
        for (const auto& [temperature, top_k, top_p, min_p, order] :
             {std::tuple{0.8, std::int64_t{0}, 1., 0., first}, std::tuple{1., std::int64_t{50}, 0.9, 0., first},
              std::tuple{0.7, std::int64_t{7}, 1., 0.02, last}, std::tuple{1.2, std::int64_t{200}, 0.5, 0.01, last},
              std::tuple{1., std::int64_t{225}, 1., 0., first}, std::tuple{1., std::int64_t{226}, 1., 0., first},
              std::tuple{0., std::int64_t{0}, 1., 0., first}, std::tuple{1.5, std::int64_t{0}, 1., 0.05, first}}) {
          if ((index++ + static_cast<std::size_t>(bits)) % (n > 4000 ? 13 : 5) != 0 || index % step() != 0) continue;
          expect_same_draws({rows, n, t, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0,
                             temperature, top_p, min_p, top_k, order},
                            shape_of(rows, n, t) + " bits " + std::to_string(bits) + " k " + std::to_string(top_k));
          if (HasFatalFailure()) return;
        }
}

enum class Order { random, few, ascending, descending, equal, nan, nan_first, high, low, infinite, count };

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ordered(Order order, std::int64_t row, std::int64_t i, std::int64_t n) {
  const auto at = static_cast<double>(i) / static_cast<double>(n);
  switch (order) {
    case Order::few: return std::floor(value(row, i, n) / 3.);
    case Order::ascending: return 30. * at - 10.;
    case Order::descending: return i % 1024 == 77 ? -0. : -40. * at;
    case Order::equal: return 1.5;
    case Order::nan: return std::numeric_limits<double>::quiet_NaN();
    case Order::nan_first: return i == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.5;
    // Elements by which topk_large guesses its bound are among the largest, or none of them is.
    case Order::high: return value(row, i, n) + (i % 256 < 16 ? 40. : 0.);
    case Order::low: return value(row, i, n) - (i % 256 < 16 ? 40. : 0.);
    case Order::infinite: return i % 50 == 3 ? value(row, i, n) : i == 9 ? kInfinity : -kInfinity;
    default: return value(row, i, n);
  }
}

/// x -> values, indices, probabilities, log-probabilities, lse.
Problem topk_problem(DType t, std::int64_t rows, std::int64_t n, std::int64_t k, Order order, bool sorted) {
  Problem p;
  softfold::TopkOptions o;
  o.sorted = sorted;
  p.op = Op::topk;
  p.own = o;
  p.scale = sorted ? 1. : 0.5;
  p.inputs.emplace_back(t, Shape{rows, n}, rows % 2 == 1 ? Layout::padded : Layout::contiguous);
  for (std::int64_t at = 0; at < rows * n; ++at) p.inputs[0].set_value(at, ordered(order, at / n, at % n, n));
  p.outputs.emplace_back(t, Shape{rows, k});
  p.outputs.emplace_back(sorted ? DType::int64 : DType::int32, Shape{rows, k});
  p.outputs.emplace_back(DType::float32, Shape{rows, k});
  p.outputs.emplace_back(DType::float32, Shape{rows, k});
  p.outputs.emplace_back(DType::float32, Shape{rows});
  return p;
}

TEST_F(CudaConsumers, TopkOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{301, 256},
                                {60, 1024},
                                {33, 1025},
                                {20, 9000},
                                {9, 128256},
                                {1, 128256},
                                {300, 17000},
                                {2, 262145},
                                {1, 3000000}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int order = 0; order < static_cast<int>(Order::count); ++order)
        for (const std::int64_t k : {1, 8, 32, 50, 200, 256, 257, 1000}) {
          if (k > n || (index++ + static_cast<std::size_t>(order)) % (n > 10000 ? 3 : 1) != 0 || index % step() != 0)
            continue;
          Problem p = topk_problem(t, rows, n, k, static_cast<Order>(order), index % 4 != 1);
          expect_same(p, shape_of(rows, n, t) + " order " + std::to_string(order) + " k " + std::to_string(k));
          if (HasFatalFailure()) return;
        }
}

/// With NaN among them.
TEST_F(CudaConsumers, TopkOfShortRows) {
  std::size_t index = 0;
  for (const std::int64_t n :
       {1, 33, 64, 100, 128, 129, 250, 256, 257, 500, 513, 1000, 1024, 1025, 1500, 2048, 2049, 3000, 4096})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int order = 0; order < static_cast<int>(Order::count); ++order)
        for (const std::int64_t k : {1, 5, 8, 9, 17, 32, 33, 50, 100, 255, 256}) {
          if (k > n || index++ % step() != 0) continue;
          const std::int64_t rows = 1 + static_cast<std::int64_t>(index) % 9;
          Problem p = topk_problem(t, rows, n, k, static_cast<Order>(order), index % 4 != 1);
          if (index % 5 == 0)
            for (std::int64_t i = 0; i < rows * n; i += 1 + i % 7) p.inputs[0].set_value(i, std::nan(""));
          const std::string what = shape_of(rows, n, t) + " order " + std::to_string(order) + " k " + std::to_string(k);
          const bool few = k <= 8 || (k <= 32 && n >= 16 * k);
          EXPECT_EQ(plan_of(OnDevice(p).bound, p.op, false).kernel(), n > 1024 && n > 35 * k ? "topk_filter"
                                                                      : n <= 1024 && few     ? "topk_warp_rows"
                                                                                             : "topk_search")
              << what;
          expect_same(p, what);
          if (HasFailure()) return;
        }
}

TEST_F(CudaConsumers, TopkOfManyElements) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{300, 300},
                                {40, 1027},
                                {30, 2048},
                                {21, 4097},
                                {8, 8193},
                                {9, 9002},
                                {140, 20001},
                                {3, 128256},
                                {1, 128256},
                                {1, 262147},
                                {2, 1000003}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int order = 0; order < static_cast<int>(Order::count); ++order)
        for (const std::int64_t k : {std::int64_t{257}, std::int64_t{1000}, std::int64_t{2048}, std::int64_t{4096},
                                     std::int64_t{8192}, std::int64_t{8193}, n}) {
          const bool of_row = k == n && n < 10000;  // all of it
          if (k > n || (k == n && !of_row)) continue;
          if ((index++ + static_cast<std::size_t>(order)) % (n > 100000 ? 7 : n > 4000 ? 3 : 1) != 0) continue;
          if (index % step() != 0) continue;
          Problem p = topk_problem(t, rows, n, k, static_cast<Order>(order), index % 4 != 1);
          const std::string what = shape_of(rows, n, t) + " order " + std::to_string(order) + " k " + std::to_string(k);
          const OnDevice device(p);
          EXPECT_EQ(plan_of(device.bound, p.op, false).kernel(), k > 8192 ? "topk_radix" : "topk_large") << what;
          expect_same(p, what);
          if (HasFatalFailure()) return;
        }
}

/// Rows and k of a model's, values and indices alone.
TEST_F(CudaConsumers, TopkOfManyRowsWithoutStates) {
  for (const DType t : {DType::float32, DType::bfloat16})
    for (const std::int64_t k : {512, 4096}) {
      Problem p = topk_problem(t, 300, 50257, k, Order::random, k == 512);
      p.outputs.resize(2);
      expect_same(p, shape_of(300, 50257, t) + " k " + std::to_string(k));
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace softfold_test
