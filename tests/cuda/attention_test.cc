// Attention on the device against materialised float64: every option, every kernel; what a schedule must not change;
// what lies outside the sequences must not be seen.
#include "support/attention.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

namespace softfold_test {
namespace {

void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// A case's tensors on the device.
class OnDevice {
 public:
  explicit OnDevice(AttentionData& a) : a_(a), options_(a.options()) {
    const softfold::Device device{softfold::DeviceKind::cuda, 0};
    const auto move = [&](Array& array, View& view) {
      unsigned char* base = nullptr;
      cuda_check(cudaMalloc(&base, array.bytes().size()));
      cuda_check(cudaMemcpy(base, array.bytes().data(), array.bytes().size(), cudaMemcpyHostToDevice));
      memory_.push_back(base);
      view = array.view_at(base, device);
    };
    const auto move_given = [&](Array& array, View& view) {
      if (view.given()) move(array, view);
    };
    move(a.q, q_), move(a.k, k_), move(a.v, v_), move(a.out, out_);
    move_given(a.lse, options_.lse), move_given(a.state, options_.state), move_given(a.sink, options_.sink);
    move_given(a.slopes, options_.slopes), move_given(a.mask, options_.mask), move_given(a.bias, options_.bias);
    move_given(a.lengths, options_.kv_lengths), move_given(a.starts, options_.kv_starts);
    move_given(a.index, options_.kv_index);
    if (auto* varlen = std::get_if<softfold::Varlen>(&options_.kv)) {
      move(a.q_offsets, varlen->q_offsets), move(a.kv_offsets, varlen->kv_offsets);
      varlen->max_q = a.c.queries, varlen->max_kv = a.c.keys;
    }
  }
  ~OnDevice() {
    for (unsigned char* m : memory_) cudaFree(m);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  softfold::AttentionOptions& options() { return options_; }
  /// Moves q or out to memory that begins two bytes behind a multiple of 16, there with nothing in it.
  void shift(bool of_out) {
    View& view = of_out ? out_ : q_;
    std::int64_t count = 1;
    for (const std::int64_t n : view.shape) count *= n;
    unsigned char* base = nullptr;
    cuda_check(cudaMalloc(&base, static_cast<std::size_t>(2 * count + 16)));
    cuda_check(cudaMemset(base, 0, static_cast<std::size_t>(2 * count + 16)));
    memory_.push_back(base);
    view = View(static_cast<void*>(base + 2), view.dtype, view.shape, {}, view.device);
  }
  softfold::Plan plan(const softfold::Context& context = {}) {
    const View inputs[] = {q_, k_, v_};
    return softfold::plan(softfold::Op::attention, inputs, {&out_, 1}, options_, context);
  }
  /// Brings the results back.
  void download() {
    cuda_check(cudaDeviceSynchronize());
    const auto back = [](Array& array, const View& view) {
      if (!view.given()) return;
      cuda_check(cudaMemcpy(array.bytes().data(), static_cast<unsigned char*>(view.data) - array.origin(),
                            array.bytes().size(), cudaMemcpyDeviceToHost));
    };
    back(a_.out, out_), back(a_.lse, options_.lse), back(a_.state, options_.state);
  }

 private:
  AttentionData& a_;
  softfold::AttentionOptions options_;
  View q_, k_, v_, out_;
  std::vector<unsigned char*> memory_;
};

/// 16-bit units: of the output, and of the weights where tensor cores multiply them.
double half_unit(DType t) { return t == DType::bfloat16 ? 0x1p-8 : t == DType::float16 ? 0x1p-11 : 0; }

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no CUDA device";
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, 0));
    hopper_ = properties.major == 9;
  }

  /// Runs a case and compares every `stride`-th row. Without a state the tensor cores may take it.
  void check(const AttentionCase& c, bool with_state, std::int64_t stride = 1) {
    AttentionData a(c);
    check(a, with_state, stride);
  }
  void check(AttentionData& a, bool with_state, std::int64_t stride = 1) {
    const AttentionCase& c = a.c;
    OnDevice device(a);
    if (!with_state) device.options().state = View();
    const auto plan = device.plan();
    plan.run();
    device.download();
    const bool tensor_cores = plan.kernel() == "attention_forward_sm90";
    ran_on_tensor_cores_ += tensor_cores;
    const double infinity = std::numeric_limits<double>::infinity();
    const double u = c.dtype == DType::float64 ? 0x1p-53 : 0x1p-24, half = half_unit(c.dtype);
    for (std::int64_t b = 0, n = 0; b < a.c.batch; ++b)
      for (std::int64_t h = 0; h < a.c.heads; ++h)
        for (std::int64_t i = 0; i < a.queries_of(b); ++i, ++n) {
          if (n % stride != 0) continue;
          const auto row = a.reference(b, h, i);
          const double lse = AttentionData::value(a.lse, a.row_at(b, h, i));
          const double lse_bound = u * (4 * row.error + 2 * std::abs(row.lse) + 40);
          if (row.lse == -infinity) {
            ASSERT_EQ(lse, -infinity) << describe(a, plan);
          } else {
            ASSERT_LE(std::abs(lse - row.lse), lse_bound) << describe(a, plan) << ": row " << b << " " << h << " " << i;
          }
          for (int x = 0; x < c.dv; ++x) {
            const auto at = static_cast<std::size_t>(x);
            const double got = AttentionData::value(a.out, a.at(a.out, b, h, i) + x), right = row.out[at];
            const double bound = u * (4 * row.error * row.spread[at] + 4 * std::abs(right)) +
                                 1.01 * half * (std::abs(right) + (tensor_cores ? row.spread[at] : 0)) + 0x1p-24 * half;
            ASSERT_LE(std::abs(got - right), bound + 1e-37)
                << describe(a, plan) << ": row " << b << " " << h << " " << i << " " << x;
          }
        }
    EXPECT_TRUE(a.out.only_elements_written());
  }
  /// A case on the portable kernel and, where it can, on the tensor cores.
  void check_both(const AttentionCase& c, std::int64_t stride = 1) { check(c, true, stride), check(c, false, stride); }

  static std::string describe(const AttentionData& a, const softfold::Plan& plan) {
    std::string s = std::string(plan.kernel()) + " " + std::string(softfold::name_of(a.c.dtype));
    for (const auto n :
         {a.c.batch, a.c.heads, a.c.kv_heads, a.c.queries, a.c.keys, std::int64_t{a.c.d}, std::int64_t{a.c.dv}})
      s += " " + std::to_string(n);
    return s;
  }

  bool hopper_ = false;
  int ran_on_tensor_cores_ = 0;
};

AttentionCase shape(std::int64_t queries, std::int64_t keys, int d, int dv, DType t) {
  AttentionCase c;
  c.dtype = t;
  c.heads = 2, c.kv_heads = 1;
  c.queries = queries, c.keys = keys;
  c.d = d, c.dv = dv;
  c.seed = static_cast<unsigned>(queries * 7 + keys);
  return c;
}

TEST_F(CudaAttention, OddShapesAndHeadSizes) {
  for (const DType t : {DType::bfloat16, DType::float16}) {
    for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {256, 256}, {192, 128}, {96, 96}, {40, 24}, {8, 256}})
      for (const auto& [queries, keys] : {std::pair{113, 203}, {799, 3}, {239, 1}, {3, 1023}, {300, 300}})
        for (const bool causal : {false, true}) {
          AttentionCase c = shape(queries, keys, d, dv, t);
          c.causal = causal;
          check(c, false, 11);
        }
    for (const auto& [d, dv] : {std::pair{512, 512}, {17, 33}, {1, 1}}) check(shape(77, 130, d, dv, t), false, 5);
  }
  for (const DType t : {DType::float32, DType::float64})
    for (const auto& [d, dv] : {std::pair{64, 64}, {300, 128}, {512, 512}, {5, 3}})
      check(shape(65, 70, d, dv, t), true);
  EXPECT_EQ(ran_on_tensor_cores_, hopper_ ? 140 : 0);
}

TEST_F(CudaAttention, LongSequences) {
  AttentionCase square = shape(4224, 4224, 64, 64, DType::bfloat16);
  square.causal = true;
  check(square, false, 397);
  check(shape(1, std::int64_t{1} << 17, 64, 64, DType::bfloat16), false);
  EXPECT_EQ(ran_on_tensor_cores_, hopper_ ? 2 : 0);
}

TEST_F(CudaAttention, EveryOptionAlone) {
  for (const DType t : {DType::float32, DType::bfloat16, DType::float64}) {
    AttentionCase base = shape(150, 290, 64, 32, t);
    base.batch = 3, base.heads = 4, base.kv_heads = 2;
    const auto with = [&](auto&& set) {
      AttentionCase c = base;
      set(c);
      check_both(c, 7);
    };
    with([](AttentionCase& c) { c.layout = softfold::Layout::bthd; });
    with([](AttentionCase& c) { c.causal = true, std::swap(c.queries, c.keys); });
    with([](AttentionCase& c) { c.window = {20, -1}; });
    with([](AttentionCase& c) { c.window = {-1, 3}; });
    with([](AttentionCase& c) { c.window = {0, 0}; });
    with([](AttentionCase& c) { c.window = {30, -1}, c.causal = true; });
    with([](AttentionCase& c) { c.softcap = 0.7F; });
    with([](AttentionCase& c) { c.scale = 0; });
    with([](AttentionCase& c) { c.scale = -0.5; });
    with([](AttentionCase& c) { c.sink = true; });
    with([](AttentionCase& c) { c.slopes = true; });
    with([](AttentionCase& c) { c.slopes_batched = true; });
    with([](AttentionCase& c) { c.mask = true; });
    with([](AttentionCase& c) { c.bias = true; });
    with([](AttentionCase& c) { c.lengths = true; });
    with([](AttentionCase& c) { c.starts = true; });
    with([](AttentionCase& c) { c.index = true; });
    with([](AttentionCase& c) { c.q_lengths = {5, 0, 130, 1}, c.kv_lengths = {9, 4, 270, 0}; });
  }
}

TEST_F(CudaAttention, CombinationsOfOptions) {
  std::mt19937 random(20261122);
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<unsigned>(most - least + 1));
  };
  const auto sometimes = [&] { return random() % 3 == 0; };
  for (int n = 0; n < 150 && !HasFatalFailure(); ++n) {
    AttentionCase c;
    c.dtype = random() % 4 == 0 ? DType::float32 : random() % 2 == 0 ? DType::float16 : DType::bfloat16;
    c.layout = random() % 2 == 0 ? softfold::Layout::bhtd : softfold::Layout::bthd;
    c.batch = pick(1, 3), c.kv_heads = pick(1, 2), c.heads = c.kv_heads * pick(1, 3);
    c.queries = pick(0, 200), c.keys = random() % 4 == 0 ? pick(900, 1200) : pick(0, 300);
    c.d = static_cast<int>(pick(1, 32)) * 8, c.dv = static_cast<int>(pick(1, 32)) * 8;
    c.causal = sometimes();
    if (sometimes()) c.window = {pick(-1, 80), c.causal ? -1 : pick(-1, 20)};
    if (sometimes()) c.softcap = static_cast<float>(pick(1, 30));
    c.sink = sometimes(), c.lengths = sometimes(), c.starts = sometimes(), c.index = sometimes();
    if (sometimes()) c.slopes = sometimes(), c.mask = sometimes(), c.bias = sometimes();
    if (sometimes()) {
      c.index = false;
      for (std::int64_t b = 0; b < c.batch; ++b) {
        c.q_lengths.push_back(pick(0, 200));
        c.kv_lengths.push_back(pick(0, 300));
      }
    }
    c.seed = static_cast<unsigned>(random());
    check(c, sometimes(), 13);
  }
  EXPECT_GT(ran_on_tensor_cores_, hopper_ ? 40 : -1);
}

// NaN in every key and value that no sequence has: before starts, beyond lengths, in the rest of the tensor.
TEST_F(CudaAttention, NothingLeaksFromOutsideTheSequences) {
  for (const bool with_state : {false, true})
    for (const bool causal : {false, true}) {
      AttentionCase c = shape(100, 300, 64, 64, DType::bfloat16);
      c.batch = 4, c.lengths = c.starts = true, c.causal = causal;
      AttentionData clean(c), dirty(c);
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t j = 0; j < c.keys; ++j) {
          if (j >= dirty.start_of(b) && j < dirty.end_of(b)) continue;
          for (Array* a : {&dirty.k, &dirty.v})
            for (int x = 0; x < 64; ++x)
              a->set_value(dirty.at(*a, b, 0, j) + x, std::numeric_limits<double>::quiet_NaN());
        }
      for (AttentionData* a : {&clean, &dirty}) {
        OnDevice device(*a);
        if (!with_state) device.options().state = View();
        device.plan().run();
        device.download();
      }
      EXPECT_EQ(clean.out.elements(), dirty.out.elements());
      EXPECT_EQ(clean.lse.elements(), dirty.lse.elements());
    }
}

// NaN in keys that causal and window hide within tiles that are seen, and in keys and values of tiles that they leave
// out.
TEST_F(CudaAttention, HiddenKeysAndTilesThatAreLeftOutMayHoldNaN) {
  for (const bool with_state : {false, true}) {
    AttentionCase c = shape(300, 1500, 64, 64, DType::bfloat16);
    c.causal = true, c.window = {40, -1};  // queries 0 .. 299 see keys 1160 .. 1499
    AttentionData clean(c), dirty(c);
    for (std::int64_t j = 0; j < 1160; ++j)
      for (int x = 0; x < 64; ++x) {
        dirty.k.set_value(dirty.at(dirty.k, 0, 0, j) + x, std::numeric_limits<double>::quiet_NaN());
        if (j < 900) dirty.v.set_value(dirty.at(dirty.v, 0, 0, j) + x, std::numeric_limits<double>::quiet_NaN());
      }
    for (AttentionData* a : {&clean, &dirty}) {
      OnDevice device(*a);
      if (!with_state) device.options().state = View();
      device.plan().run();
      device.download();
    }
    EXPECT_EQ(clean.out.elements(), dirty.out.elements());
    EXPECT_EQ(clean.lse.elements(), dirty.lse.elements());
  }
}

TEST_F(CudaAttention, ASequenceAloneIsTheSequenceInABatch) {
  for (const bool with_state : {false, true})
    for (const bool causal : {false, true}) {
      AttentionCase c = shape(200, 500, 128, 128, DType::bfloat16), one = c;
      c.batch = 5, c.causal = one.causal = causal;
      AttentionData all(c), alone(one);
      const auto copy = [&](Array& to, const Array& from, std::int64_t begin, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) to.set(i, from.get<std::uint16_t>(begin + i));
      };
      copy(alone.q, all.q, 3 * alone.q.count(), alone.q.count());
      copy(alone.k, all.k, 3 * alone.k.count(), alone.k.count());
      copy(alone.v, all.v, 3 * alone.v.count(), alone.v.count());
      for (AttentionData* a : {&all, &alone}) {
        OnDevice device(*a);
        if (!with_state) device.options().state = View();
        device.plan().run();
        device.download();
      }
      for (std::int64_t i = 0; i < alone.out.count(); ++i)
        ASSERT_EQ(alone.out.get<std::uint16_t>(i), all.out.get<std::uint16_t>(3 * alone.out.count() + i)) << i;
    }
}

TEST_F(CudaAttention, GraphReplaysAndRepeatsGiveTheSameBits) {
  AttentionCase c = shape(700, 900, 64, 64, DType::bfloat16);
  c.batch = 6, c.heads = 4, c.causal = true;
  AttentionData a(c);
  OnDevice device(a);
  device.options().state = View();
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  softfold::Context context;
  context.stream = stream;
  softfold::Workspace workspace{nullptr, device.plan(context).workspace_bytes()};
  if (workspace.bytes > 0) cuda_check(cudaMalloc(&workspace.data, workspace.bytes));
  for (const bool lent : {false, true}) {
    context.workspace = lent ? &workspace : nullptr;
    const auto plan = device.plan(context);
    plan.run();
    device.download();
    const auto expected = a.out.elements();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    plan.run();
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < 500; ++i) {
      cuda_check(cudaGraphLaunch(ready, stream));
      if (i % 50 != 49) continue;
      device.download();
      ASSERT_EQ(a.out.elements(), expected) << "replay " << i;
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
  cudaFree(workspace.data);
  cudaStreamDestroy(stream);
}

// Keys far above those seen before: rows leave their first block's shift behind, each for itself.
TEST_F(CudaAttention, ScoresThatGrowFromBlockToBlock) {
  for (const DType t : {DType::bfloat16, DType::float16})
    for (const int d : {64, 128, 192, 256})
      for (const double growth : {2., 30., 300.}) {
        AttentionCase c = shape(150, 700, d, d == 192 ? 128 : d, t);
        AttentionData a(c);
        for (std::int64_t b = 0; b < c.keys; ++b)
          for (int x = 0; x < d; ++x) {
            const std::int64_t at = a.at(a.k, 0, 0, b) + x;
            // Blocks are walked from the last to the first; some rows of q see the keys grow, others shrink.
            a.k.set_value(
                at, x == 0 ? growth * static_cast<double>((c.keys - b) / 64) : 0.01 * AttentionData::value(a.k, at));
          }
        check(a, false, 3);
      }
}

// One key takes all, however large the scores; the tensor cores' sum of products is a float.
TEST_F(CudaAttention, HugeScores) {
  for (const double scale : {1e4, 1e12, 1e30}) {
    AttentionCase c = shape(3, 300, 64, 64, DType::float16);
    c.scale = scale;
    AttentionData a(c);
    OnDevice device(a);
    device.options().state = View();
    device.plan().run();
    device.download();
    for (std::int64_t i = 0; i < a.out.count(); ++i) {
      const double got = AttentionData::value(a.out, i);
      ASSERT_LE(std::abs(got), 8) << scale << " " << i;
      ASSERT_NE(got, 0);
    }
  }
}

// A mask of the lowest finite numbers hides nothing where nothing is above them; -inf hides.
TEST_F(CudaAttention, HugeBiases) {
  for (const auto& [t, bias, tolerance] :
       {std::tuple{DType::float64, DType::float64, 1e-13}, std::tuple{DType::float32, DType::float32, 1e-5},
        std::tuple{DType::float32, DType::float64, 1e-5}, std::tuple{DType::bfloat16, DType::float32, 0.01}}) {
    AttentionCase c = shape(20, 150, 32, 32, t);
    c.heads = 1;
    c.bias = true;
    AttentionData a(c);
    give_huge_biases(a, bias);
    OnDevice device(a);
    device.plan().run();
    device.download();
    EXPECT_LE(huge_bias_error(a), tolerance) << softfold::name_of(t) << " " << softfold::name_of(bias);
    for (std::int64_t i = 0; i < c.queries; ++i) EXPECT_TRUE(std::isfinite(AttentionData::value(a.lse, i)));
  }
}

TEST_F(CudaAttention, WhatTheTensorCoresCannotTakeIsPortable) {
  AttentionCase c = shape(20, 30, 64, 64, DType::bfloat16);
  c.mask = true;
  AttentionData a(c);
  OnDevice device(a);
  device.options().state = View();
  const auto plan = device.plan();
  EXPECT_EQ(plan.kernel(), "attention_portable");
  const auto rejected = plan.rejected();
  ASSERT_FALSE(rejected.empty());
  EXPECT_EQ(rejected[0].first, "attention_forward_sm90");
  EXPECT_FALSE(rejected[0].second.empty());
}

// The copy engine takes rows that lie on 16 bytes; others are the portable kernel's, and the plan says why.
TEST_F(CudaAttention, RowsThatAreNotAlignedArePortable) {
  for (const bool of_out : {false, true}) {
    AttentionData a(shape(70, 130, 64, 64, DType::bfloat16));
    OnDevice device(a);
    device.options().state = View();
    device.shift(of_out);
    const auto plan = device.plan();
    EXPECT_EQ(plan.kernel(), "attention_portable");
    ASSERT_FALSE(plan.rejected().empty());
    if (hopper_) {
      EXPECT_NE(std::string(plan.rejected()[0].second).find("16 bytes"), std::string::npos)
          << plan.rejected()[0].second;
    }
    plan.run();
    cuda_check(cudaDeviceSynchronize());
  }
}

}  // namespace
}  // namespace softfold_test
