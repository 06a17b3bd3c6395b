// Attention on the device at its limits: what lies outside the sequences, huge scores and biases, operands that the
// tensor cores do not take.
#include "cuda/attention_on_device.hpp"

namespace softfold_test {
namespace {

/// NaN in token j of k or v.
void poison(AttentionData& a, Array& x, std::int64_t b, std::int64_t j) {
  for (std::int64_t h = 0; h < a.c.kv_heads; ++h)
    for (int i = 0; i < x.shape().back(); ++i)
      x.set_value(a.at(x, b, h, j) + i, std::numeric_limits<double>::quiet_NaN());
}

/// Both give the same results on the device; asked for its state, a problem is the portable kernel's.
void expect_same(AttentionData& clean, AttentionData& dirty, bool with_state) {
  for (AttentionData* a : {&clean, &dirty}) {
    OnDevice device(*a);
    if (!with_state) device.options().state = View();
    device.plan().run();
    device.download();
  }
  EXPECT_EQ(clean.out.elements(), dirty.out.elements());
  EXPECT_EQ(clean.lse.elements(), dirty.lse.elements());
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
          poison(dirty, dirty.k, b, j), poison(dirty, dirty.v, b, j);
        }
      expect_same(clean, dirty, with_state);
    }
}

// NaN in keys that causal and window hide within tiles that are seen, and in keys and values of tiles that they leave
// out.
TEST_F(CudaAttention, HiddenKeysAndTilesThatAreLeftOutMayHoldNaN) {
  for (const bool with_state : {false, true}) {
    AttentionCase c = shape(300, 1500, 64, 64, DType::bfloat16);
    c.causal = true, c.window = {40, -1};  // queries 0 .. 299 see keys 1160 .. 1499
    AttentionData clean(c), dirty(c);
    for (std::int64_t j = 0; j < 1160; ++j) {
      poison(dirty, dirty.k, 0, j);
      if (j < 900) poison(dirty, dirty.v, 0, j);
    }
    expect_same(clean, dirty, with_state);
  }
}

// NaN in keys that a boolean mask, or a bias of -inf, hides from every query, in each of the portable kernel's dtypes.
TEST_F(CudaAttention, KeysThatAMaskHidesMayHoldNaN) {
  for (const DType t : {DType::bfloat16, DType::float16, DType::float32, DType::float64})
    for (const bool by_bias : {false, true}) {
      AttentionCase c = shape(40, 150, 64, 64, t);
      c.mask = !by_bias, c.bias = by_bias;
      AttentionData clean(c);
      for (std::int64_t j = 5; j < c.keys; j += 11) {
        for (std::int64_t row = 0; !by_bias && row < c.heads * c.queries; ++row)
          clean.mask.set(row * c.keys + j, std::uint8_t{0});
        for (std::int64_t row = 0; by_bias && row < c.batch * c.queries; ++row)
          clean.bias.set_value(row * c.keys + j, -std::numeric_limits<double>::infinity());
      }
      AttentionData dirty = clean;
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t j = 5; j < c.keys; j += 11) poison(dirty, dirty.k, b, j);
      SCOPED_TRACE(std::string(softfold::name_of(t)) + (by_bias ? " bias" : " mask"));
      expect_same(clean, dirty, true);
      for (std::int64_t i = 0; i < clean.lse.count(); ++i) ASSERT_FALSE(std::isnan(AttentionData::value(clean.lse, i)));
    }
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

// Sequences, heads or keys so far apart that the last lies more than 2^31 elements behind the first.
TEST_F(CudaAttention, KeysBeyondTwoToThe31Elements) {
  constexpr std::int64_t d = 64, step = (std::int64_t{1} << 29) + 64, count = 5, queries = 9;
  constexpr std::int64_t most = count * queries * d;
  constexpr std::size_t bytes = static_cast<std::size_t>((count - 1) * step + d) * 2;
  std::size_t available = 0, total = 0;
  cuda_check(cudaMemGetInfo(&available, &total));
  if (available < bytes + (std::size_t{64} << 20)) GTEST_SKIP() << "needs " << bytes << " bytes on the device";
  AttentionData a(shape(count * queries, count, d, d, DType::bfloat16));
  unsigned char *near = nullptr, *far = nullptr;
  float *out = nullptr, *state = nullptr;
  cuda_check(cudaMalloc(&far, bytes));
  cuda_check(cudaMalloc(&near, 2 * most));
  cuda_check(cudaMalloc(&out, most * sizeof(float)));
  cuda_check(cudaMalloc(&state, 2 * most * sizeof(float)));
  cuda_check(cudaMemcpy(near, a.q.bytes().data() + a.q.origin(), 2 * most, cudaMemcpyHostToDevice));
  for (std::int64_t n = 0; n < count; ++n)
    cuda_check(cudaMemcpy(far + n * step * 2, near + n * d * 2, d * 2, cudaMemcpyDeviceToDevice));
  const softfold::Device on{softfold::DeviceKind::cuda, 0};
  for (const std::size_t axis : {0U, 1U, 2U})
    for (const bool with_state : {false, true}) {
      std::int64_t shape[] = {1, 1, 1, d}, strides[] = {d, d, d, 1};
      shape[axis] = count, strides[axis] = step;
      const std::int64_t q_shape[] = {shape[0], shape[1], queries, d}, rows = shape[0] * shape[1] * queries;
      const std::int64_t state_shape[] = {shape[0], shape[1], queries, d + 2};
      std::vector<float> results[2];
      for (const bool is_far : {false, true}) {
        const View q(near, DType::bfloat16, q_shape, {}, on);
        const View k =
            is_far ? View(far, DType::bfloat16, shape, strides, on) : View(near, DType::bfloat16, shape, {}, on);
        softfold::AttentionOptions options;
        if (with_state) options.state = View(state, DType::float32, state_shape, {}, on);
        softfold::attention(q, k, k, View(out, DType::float32, q_shape, {}, on), options);
        results[is_far].resize(static_cast<std::size_t>(rows * d));
        cuda_check(
            cudaMemcpy(results[is_far].data(), out, results[is_far].size() * sizeof(float), cudaMemcpyDeviceToHost));
      }
      EXPECT_EQ(results[0], results[1]) << "axis " << axis;
      EXPECT_NE(results[0][0], 0);
    }
  for (void* memory :
       {static_cast<void*>(out), static_cast<void*>(state), static_cast<void*>(near), static_cast<void*>(far)})
    cudaFree(memory);
}

}  // namespace
}  // namespace softfold_test
