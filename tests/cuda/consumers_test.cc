// cpu == cuda, bit for bit: cross-entropy, entropy and top-k over the list of cases and over shapes of real models;
// workspaces of exactly the bytes that were asked for; targets that are no class.
#include "own_plan.hpp"

#include "softfold/softfold.hpp"
#include "support/bits.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace softfold_test {
namespace {

using softfold::CrossEntropyOptions;
using softfold::Reduction;

constexpr softfold::Device kCuda{softfold::DeviceKind::cuda, 0};

void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// Memory on the device that begins as given.
class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<unsigned char>& from) : size_(from.size()) {
    cuda_check(cudaMalloc(&data_, size_));
    cuda_check(cudaMemcpy(data_, from.data(), size_, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> to(size_);
    cuda_check(cudaMemcpy(to.data(), data_, size_, cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

/// The operands of a problem on the device, and the problem bound to them.
struct OnDevice {
  std::vector<std::unique_ptr<DeviceBytes>> memory;
  Bound bound;

  explicit OnDevice(Problem& p) {
    std::vector<unsigned char*> bases;
    for (Array* t : p.operands()) {
      memory.push_back(std::make_unique<DeviceBytes>(t->bytes()));
      bases.push_back(memory.back()->data());
    }
    bound = softfold_test::bind(p, bases, kCuda);
  }
};

/// Runs it on the device in a workspace of exactly the bytes that its plan asks for; the kernel's name.
std::string run_on_device(const Problem& p, const Bound& bound) {
  constexpr std::size_t guard = 256;
  const softfold::Plan sizes = plan_of(bound, p.op, false);
  const std::size_t bytes = sizes.workspace_bytes();
  DeviceBytes memory(std::vector<unsigned char>(bytes + guard, 0xA5));
  softfold::Workspace lent{memory.data(), bytes};
  softfold::Context context;
  if (bytes != 0) context.workspace = &lent;
  const softfold::Plan plan = plan_of(bound, p.op, false, context);
  plan.run();
  cuda_check(cudaDeviceSynchronize());
  const auto after = memory.download();
  for (std::size_t i = bytes; i < after.size(); ++i) EXPECT_EQ(after[i], 0xA5) << "behind the workspace";
  return std::string(plan.kernel());
}

/// Every byte of every output, padding included. `p` is taken twice: the CPU works in the arrays themselves.
void expect_same(Problem& p, const std::string& what) {
  OnDevice device(p);
  const Bound bound = bind(p);
  plan_of(bound, p.op, false).run();
  std::string kernel;
  try {
    kernel = run_on_device(p, device.bound);
  } catch (const softfold::Error& e) {
    FAIL() << what << ": " << e.what();
  }
  for (std::size_t i = 0; i < p.outputs.size(); ++i) {
    const Array& cpu = p.outputs[i];
    Array gpu = cpu;
    gpu.bytes() = device.memory[p.inputs.size() + i]->download();
    if (gpu.bytes() == cpu.bytes()) continue;
    std::int64_t wrong = 0, first = -1;
    const auto a = cpu.elements(), b = gpu.elements();
    const std::size_t size = size_of(cpu.dtype());
    for (std::int64_t k = 0; k < cpu.count(); ++k) {
      if (std::memcmp(&a[static_cast<std::size_t>(k) * size], &b[static_cast<std::size_t>(k) * size], size) == 0)
        continue;
      if (first < 0) first = k;
      ++wrong;
    }
    const auto hex = [&](const std::vector<unsigned char>& v) {
      std::string s;
      char digits[4];
      for (std::size_t at = size; first >= 0 && at-- > 0;) {
        std::snprintf(digits, sizeof digits, "%02x", v[static_cast<std::size_t>(first) * size + at]);
        s += digits;
      }
      return s;
    };
    FAIL() << what << " by " << kernel << ": output " << i << ": " << wrong << " elements differ, the first at "
           << first << ": cpu " << hex(a) << ", cuda " << hex(b);
  }
}

class CudaConsumers : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no CUDA device";
  }
  /// Under a sanitizer every so many cases.
  static std::size_t step() {
    const char* s = std::getenv("SOFTFOLD_TEST_STEP");
    return s == nullptr ? 1 : static_cast<std::size_t>(std::atoi(s));
  }
  static void run_list(const std::vector<Op>& ops) {
    std::size_t index = 0;
    for (const Case& c : cases()) {
      if (c.own < 0) continue;
      Problem p = c.make();
      if (std::find(ops.begin(), ops.end(), p.op) == ops.end() || index++ % step() != 0) continue;
      for (const Layout layout : kLayouts) {
        if (layout != Layout::contiguous && index % 5 != static_cast<std::size_t>(layout)) continue;
        Problem laid = c.make(layout);
        expect_same(laid, c.name + " layout " + std::to_string(static_cast<int>(layout)));
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(index, 0U);
  }
};

TEST_F(CudaConsumers, CrossEntropyOfTheList) { run_list({Op::cross_entropy, Op::cross_entropy_backward}); }
TEST_F(CudaConsumers, EntropyOfTheList) { run_list({Op::entropy, Op::entropy_backward}); }
TEST_F(CudaConsumers, TopkOfTheList) { run_list({Op::topk}); }
TEST_F(CudaConsumers, SampleOfTheList) { run_list({Op::sample}); }

double value(std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row * n + i) * 0x9E3779B97F4A7C15ULL + 5).next();
  const double u = static_cast<double>(h >> 11) * 0x1p-53;
  if (row % 11 == 5) return 400. * (u - 0.5);
  if (row % 11 == 7 && i % 3 == 0) return -std::numeric_limits<double>::infinity();
  if (row % 11 == 9 && i == n / 2) return std::numeric_limits<double>::quiet_NaN();
  return 10. * (u - 0.5) + static_cast<double>(h & 0xFF) / 256.;
}

Array logits(DType t, std::int64_t rows, std::int64_t n) {
  Array x(t, {rows, n});
  for (std::int64_t k = 0; k < rows * n; ++k) x.set_value(k, value(k / n, k % n, n));
  return x;
}

/// x, targets, dloss, [weight] -> loss, log-probability, states, dx.
Problem loss_problem(DType t, std::int64_t rows, std::int64_t n, const CrossEntropyOptions& o, bool weighted) {
  Problem p;
  p.op = Op::cross_entropy;
  p.own = o;
  p.scale = 0.75;
  p.inputs.push_back(logits(t, rows, n));
  p.inputs.emplace_back(DType::int64, Shape{rows});
  for (std::int64_t r = 0; r < rows; ++r)
    p.inputs[1].set_value(r, r % 5 == 4 ? -100. : static_cast<double>((r * 7919 + 13) % n));
  const Shape loss = o.reduction == Reduction::none ? Shape{rows} : Shape{};
  p.inputs.emplace_back(DType::float32, loss);
  for (std::int64_t r = 0; r < p.inputs[2].count(); ++r) p.inputs[2].set_value(r, 0.5 + static_cast<double>(r % 7));
  if (weighted) {
    p.inputs.emplace_back(DType::float32, Shape{n});
    for (std::int64_t i = 0; i < n; ++i) p.inputs[3].set_value(i, 0.25 * static_cast<double>(i % 9));
  }
  p.outputs.emplace_back(DType::float32, loss);
  p.outputs.emplace_back(DType::float32, Shape{rows});
  p.outputs.emplace_back(DType::float64, Shape{rows, 4});
  p.outputs.emplace_back(t, Shape{rows, n});
  return p;
}

TEST_F(CudaConsumers, CrossEntropyOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{2500, 128},
                                {700, 1000},
                                {300, 1024},
                                {90, 4096},
                                {40, 16385},
                                {24, 50257},
                                {12, 128256},
                                {7, 262144},
                                {3, 1000001}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const int bits : {0, 1, 6, 7}) {
        if (index++ % step() != 0) continue;
        CrossEntropyOptions o;
        o.reduction = static_cast<Reduction>((bits + static_cast<int>(rows)) % 3);
        o.label_smoothing = (bits & 1) != 0 ? 0.1 : 0;
        o.z_loss = (bits & 2) != 0 ? 1e-4 : 0;
        Problem p = loss_problem(t, rows, n, o, (bits & 4) != 0);
        expect_same(p, std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) + " options " +
                           std::to_string(bits));
        if (HasFatalFailure()) return;
      }
}

TEST_F(CudaConsumers, EntropyOfModelsShapes) {
  std::size_t index = 0;
  for (const auto& [rows, n] :
       {std::pair<std::int64_t, std::int64_t>{700, 1000}, {90, 4096}, {24, 50257}, {12, 128256}, {3, 1000001}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const double scale : {1., -1.25, 0.}) {
        if (index++ % step() != 0) continue;
        Problem p;
        p.op = Op::entropy;
        p.own = softfold::EntropyOptions{};
        p.scale = scale;
        p.inputs.push_back(logits(t, rows, n));
        p.inputs.emplace_back(DType::float32, Shape{rows});
        for (std::int64_t r = 0; r < rows; ++r) p.inputs[1].set_value(r, 0.5 - static_cast<double>(r % 3));
        p.outputs.emplace_back(DType::float32, Shape{rows});
        p.outputs.emplace_back(DType::float64, Shape{rows, 4});
        p.outputs.emplace_back(t, Shape{rows, n});
        expect_same(p, std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) + " scale " +
                           std::to_string(scale));
        if (HasFatalFailure()) return;
      }
}

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
      }
}

enum class Order { random, few, ascending, descending, equal, count };

double ordered(Order order, std::int64_t row, std::int64_t i, std::int64_t n) {
  const auto at = static_cast<double>(i) / static_cast<double>(n);
  switch (order) {
    case Order::few: return std::floor(value(row, i, n) / 3.);
    case Order::ascending: return 30. * at - 10.;
    case Order::descending: return i % 1024 == 77 ? -0. : -40. * at;
    case Order::equal: return 1.5;
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

TEST_F(CudaConsumers, ATargetThatIsNoClassIsCountedAndItsRowIsNaN) {
  constexpr std::int64_t rows = 40, n = 3000;
  CrossEntropyOptions o;
  o.reduction = Reduction::none;
  for (const bool weighted : {false, true}) {
    Problem good = loss_problem(DType::float32, rows, n, o, weighted);
    Problem bad = loss_problem(DType::float32, rows, n, o, weighted);
    for (const auto& [row, target] : {std::pair<std::int64_t, double>{3, 3000}, {11, -1}, {12, 9e15}, {20, -9e15}})
      bad.inputs[1].set_value(row, target);
    plan_of(bind(good), good.op, false).run();
    OnDevice device(bad);
    const std::vector<unsigned char> poison(4, 0xA5);
    const DeviceBytes status(poison);
    const Shape one{};
    auto& own = std::get<CrossEntropyOptions>(device.bound.own);
    own.status = View(static_cast<void*>(status.data()), DType::int32, one, {}, kCuda);
    run_on_device(bad, device.bound);
    std::int32_t count = 0;
    std::memcpy(&count, status.download().data(), 4);
    EXPECT_EQ(count, 4);
    for (const std::size_t out : {0U, 1U, 3U}) {
      Array got = bad.outputs[out];
      got.bytes() = device.memory[bad.inputs.size() + out]->download();
      EXPECT_TRUE(got.only_elements_written());
      const std::int64_t per_row = got.count() / rows;
      for (std::int64_t k = 0; k < got.count(); ++k) {
        const std::int64_t r = k / per_row;
        const float v = got.get<float>(k);
        if (r == 3 || r == 11 || r == 12 || r == 20) {
          // An element of logit -inf exists as well.
          EXPECT_TRUE(std::isnan(v)) << out << " " << k;
        } else {
          EXPECT_EQ(std::memcmp(&v, &good.outputs[out].bytes()[64 + 4 * static_cast<std::size_t>(k)], 4), 0)
              << out << " " << k;
        }
      }
    }
  }
}

TEST_F(CudaConsumers, InPlaceAndReplayedInAGraph) {
  CrossEntropyOptions o;
  o.reduction = Reduction::mean;
  Problem p = loss_problem(DType::bfloat16, 60, 5000, o, false);
  OnDevice device(p);
  const Bound cpu = bind(p);
  plan_of(cpu, p.op, false).run();
  auto& own = std::get<CrossEntropyOptions>(device.bound.own);
  own.rows = device.bound.rows;
  own.dx = device.bound.inputs[0];
  const std::span<const View> in(device.bound.inputs), out(device.bound.outputs);
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  softfold::Context context;
  context.stream = stream;
  const std::size_t bytes = softfold::plan(p.op, in.first(2), out.first(1), own, context).workspace_bytes();
  const DeviceBytes memory(std::vector<unsigned char>(bytes, 0));
  softfold::Workspace lent{memory.data(), bytes};
  context.workspace = &lent;
  const auto plan = softfold::plan(p.op, in.first(2), out.first(1), own, context);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  plan.run();
  cuda_check(cudaStreamEndCapture(stream, &graph));
  cuda_check(cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 2; ++i) {
    cuda_check(cudaMemcpy(device.memory[0]->data(), p.inputs[0].bytes().data(), p.inputs[0].bytes().size(),
                          cudaMemcpyHostToDevice));
    cuda_check(cudaGraphLaunch(replay, stream));
    cuda_check(cudaStreamSynchronize(stream));
    std::vector<float> loss(1);
    cuda_check(cudaMemcpy(loss.data(), out[0].data, 4, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::memcmp(loss.data(), &p.outputs[0].bytes()[p.outputs[0].origin()], 4), 0);
  }
  cuda_check(cudaGraphExecDestroy(replay));
  cuda_check(cudaGraphDestroy(graph));
  cuda_check(cudaStreamDestroy(stream));
  // dloss was not given: it is 1.
  own.dloss = {};
  CrossEntropyOptions again = std::get<CrossEntropyOptions>(cpu.own);
  again.rows = cpu.rows;
  again.dx = cpu.outputs[3];
  softfold::plan(p.op, std::span<const View>(cpu.inputs).first(2), std::span<const View>(cpu.outputs).first(1), again)
      .run();
  EXPECT_EQ(device.memory[0]->download(), p.outputs[3].bytes());
}

}  // namespace
}  // namespace softfold_test
