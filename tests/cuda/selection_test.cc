// cpu == cuda, bit for bit: top-k and sampling over the list of cases and over shapes of real models.
#include "cuda/consumers.hpp"

namespace softfold_test {
namespace {

TEST_F(CudaConsumers, TopkOfTheList) { run_list({Op::topk}); }
TEST_F(CudaConsumers, SampleOfTheList) { run_list({Op::sample}); }

/// x, bias, bitmask, temperatures, top_ks, top_ps, min_ps, seeds -> tokens, log-probability, rank, by which options of
/// a serving stack they come.
TEST_F(CudaConsumers, SampleOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{60, 1000}, {20, 50257}, {8, 128256}, {2, 600000}})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (int bits = 0; bits < 16; ++bits) {
        if ((index++ + static_cast<std::size_t>(bits)) % (n > 10000 ? 3 : 1) != 0 || index % step() != 0) continue;
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

enum class Order { random, few, ascending, descending, equal, nan, nan_first, count };

double ordered(Order order, std::int64_t row, std::int64_t i, std::int64_t n) {
  const auto at = static_cast<double>(i) / static_cast<double>(n);
  switch (order) {
    case Order::few: return std::floor(value(row, i, n) / 3.);
    case Order::ascending: return 30. * at - 10.;
    case Order::descending: return i % 1024 == 77 ? -0. : -40. * at;
    case Order::equal: return 1.5;
    case Order::nan: return std::numeric_limits<double>::quiet_NaN();
    case Order::nan_first: return i == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.5;
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
          expect_same(p, std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) + " order " +
                             std::to_string(order) + " k " + std::to_string(k));
          if (HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace softfold_test
