// Attention on the device against materialised float64: every option, every kernel; what a schedule must not change.
#include "cuda/attention_on_device.hpp"

namespace softfold_test {
namespace {

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
  AttentionCase packed = shape(1500, 1500, 128, 128, DType::bfloat16);  // most of its tiles are past a sequence's end
  packed.causal = true;
  for (int n = 0; n < 200; ++n) packed.q_lengths.push_back(n == 150 ? 1500 : n % 5 * 40);
  packed.kv_lengths = packed.q_lengths;
  check(packed, false, 61);
  EXPECT_EQ(ran_on_tensor_cores_, hopper_ ? 3 : 0);
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

// A thousand replays of each, all compared; packed sequences are scheduled on the device, so that a graph has them too.
TEST_F(CudaAttention, GraphReplaysAndRepeatsGiveTheSameBits) {
  AttentionCase dense = shape(700, 900, 64, 64, DType::bfloat16);
  dense.batch = 6, dense.heads = 4, dense.causal = true;
  AttentionCase packed = shape(300, 400, 128, 128, DType::bfloat16);
  packed.q_lengths = {5, 0, 290, 130, 1}, packed.kv_lengths = {9, 4, 390, 0, 70}, packed.causal = true;
  for (const AttentionCase& c : {dense, packed})
    for (const bool lent : {false, true}) replay(c, lent, 500);
}

// The keys cut at any place, each part by itself, and the parts merged: the whole, but for the roundings of either.
TEST_F(CudaAttention, SplitAnywhereAndMergedIsTheWhole) {
  constexpr std::int64_t rows = 150, keys = 700, heads = 2;
  for (const auto& [t, d] : {std::pair{DType::bfloat16, 64}, {DType::bfloat16, 128}, {DType::float32, 64}}) {
    AttentionData a(shape(rows, keys, d, d, t));
    OnDevice device(a);
    const std::int64_t size = rows * heads * d, each = size + rows * heads;  // out, then lse
    float* memory = nullptr;
    cuda_check(cudaMalloc(&memory, static_cast<std::size_t>(3 * each) * sizeof(float)));
    const std::int64_t value_shape[] = {1, heads, rows, d}, lse_shape[] = {1, heads, rows};
    const softfold::Device on{softfold::DeviceKind::cuda, 0};
    const auto value = [&](int n) { return View(memory + n * each, DType::float32, value_shape, {}, on); };
    const auto lse = [&](int n) { return View(memory + n * each + size, DType::float32, lse_shape, {}, on); };
    std::vector<float> whole(static_cast<std::size_t>(each)), merged = whole;
    const auto read = [&](std::vector<float>& to, int n) {
      cuda_check(cudaMemcpy(to.data(), memory + n * each, to.size() * sizeof(float), cudaMemcpyDeviceToHost));
    };
    device.attend_keys(0, keys, value(0), lse(0));
    read(whole, 0);
    for (const std::int64_t cut : {0, 1, 63, 64, 65, 350, 699, 700}) {
      device.attend_keys(0, cut, value(0), lse(0)), device.attend_keys(cut, keys, value(1), lse(1));
      const View parts[] = {value(0), lse(0), value(1), lse(1)};
      softfold::merge_attention(parts, value(2), lse(2));
      read(merged, 2);
      // In 16 bits either one's weights are rounded.
      const double bound = t == DType::float32 ? 1e-5 : 0x1p-6;
      for (std::size_t i = 0; i < whole.size(); ++i)
        ASSERT_NEAR(merged[i], whole[i], i < static_cast<std::size_t>(size) ? bound : 1e-5) << cut << " " << i;
    }
    cudaFree(memory);
  }
}

}  // namespace
}  // namespace softfold_test
