// Shards on the GPU: draws, what the CPU would refuse, captured graphs.
#include "cuda/shards_on_device.hpp"

namespace softfold_test {
namespace {

/// What the CPU refuses is NaN, counted, and of its own row alone.
TEST_F(CudaShards, RowsWhosePartialsAreNotSound) {
  BothRows rows(DType::float32, 3000, 1, false, 5);
  const Sizes cuts{0, 1000, 2500, 3000};
  const Owned good = folded(rows.host, cuts, 2, true);
  const auto width = static_cast<std::size_t>(good.shape[2]);
  const auto row_of = [&](const Bytes& bytes, std::int64_t row, std::size_t size) {
    return Bytes(bytes.begin() + row * static_cast<std::int64_t>(size),
                 bytes.begin() + (row + 1) * static_cast<std::int64_t>(size));
  };
  Owned states(DType::float64, {kRows, 4}), loss(DType::float32, {kRows}), status(DType::int32, {});
  Owned values(DType::float32, {kRows, 2}), indices(DType::int32, {kRows, 2});
  const auto join = [&](const Owned& partials, std::int32_t expected, std::int64_t bad_row) {
    const DeviceOwned from(partials), to_states(states), to_loss(loss), to_status(status), to_values(values),
        to_indices(indices);
    CrossEntropyOptions o;
    o.reduction = Reduction::none, o.status = to_status.view();
    softfold::join_states(from.view(), to_states.view());
    softfold::join_cross_entropy(from.view(), rows.targets.view(), to_loss.view(), o);
    softfold::join_topk(from.view(), to_values.view(), to_indices.view());
    std::int32_t count = -1;
    std::memcpy(&count, to_status.download().data(), sizeof count);
    EXPECT_EQ(count, expected);
    std::array<Bytes, 4> got{to_states.download(), to_loss.download(), to_values.download(), to_indices.download()};
    if (bad_row >= 0) {
      double state[4];
      float number = 0;
      std::int32_t index[2];
      std::memcpy(state, got[0].data() + bad_row * 32, sizeof state);
      EXPECT_TRUE(state[0] == kInfinity && std::isnan(state[1]) && std::isnan(state[2]) && state[3] == 24);
      std::memcpy(&number, got[1].data() + bad_row * 4, sizeof number);
      EXPECT_TRUE(std::isnan(number));
      std::memcpy(&number, got[2].data() + bad_row * 8, sizeof number);
      EXPECT_TRUE(std::isnan(number));
      std::memcpy(index, got[3].data() + bad_row * 8, sizeof index);
      EXPECT_TRUE(index[0] == -1 && index[1] == -1);
    }
    return got;
  };
  const auto expected = join(good, 0, -1);
  const std::tuple<std::size_t, std::size_t, double> wrong[] = {
      {1, 0, 99},  {1, 1, 12},     {0, 1, 53},  {0, 2, 2},     {0, 3, 3001}, {0, 5, 501},   {0, 5, NAN},  {2, 6, 1},
      {2, 6, 0.5}, {2, 6, 100000}, {2, 7, 2},   {2, 7, 0},     {1, 9, 3000}, {0, 11, 7},    {0, 4, 2499}, {0, 4, 1e300},
      {1, 4, -1},  {1, 5, 0},      {1, 5, 1e9}, {0, 10, 1e30}, {1, 3, 1e15}, {0, 6, -0.25}, {1, 4, NAN},  {2, 3, 1e18}};
  for (const auto& [part, word, value] : wrong) {
    Owned bad = good;
    const std::int64_t row = kRows - 1;
    std::memcpy(bad.bytes.data() + ((part * kRows + static_cast<std::size_t>(row)) * width + word) * sizeof value,
                &value, sizeof value);
    // A largest element that is larger than it was is still in order.
    const bool sound = word == 10;
    const auto got = join(bad, sound ? 0 : 1, sound ? -1 : row);
    const std::size_t sizes[] = {32, 4, 8, 8};
    for (std::size_t i = 0; i < 4; ++i)
      for (std::int64_t r = 0; r < row; ++r)
        EXPECT_EQ(row_of(expected[i], r, sizes[i]), row_of(got[i], r, sizes[i])) << part << " " << word << " " << value;
  }
  Owned node = good;  // of the second shard, behind 24 single elements
  const double no_node[] = {1e300, 1};
  std::memcpy(node.bytes.data() + ((1 * kRows + kRows - 1) * width + 14 + 24) * 8, no_node, sizeof no_node);
  join(node, 1, kRows - 1);
}

/// Two of three shards; more than were folded; no targets; weights of other classes.
TEST_F(CudaShards, JoinsOfWhatWasNotFolded) {
  BothRows rows(DType::float32, 3000, 1, false, 5);
  const Owned all = folded(rows.host, {0, 1000, 2500, 3000}, 2, true), none = folded(rows.host, {0, 1000, 3000}, 2);
  const DeviceOwned good(all), without(none), short_weight(Owned(DType::float32, {2999}));
  const auto lost = [&](const View& partials, const softfold::View& weight, std::int32_t expected) {
    const DeviceOwned loss(Owned(DType::float32, {})), status(Owned(DType::int32, {}));
    CrossEntropyOptions o;
    o.status = status.view(), o.weight = weight;
    softfold::join_cross_entropy(partials, rows.targets.view(), loss.view(), o);
    std::int32_t count = -1;
    std::memcpy(&count, status.download().data(), sizeof count);
    EXPECT_EQ(count, expected);
  };
  const Sizes two{2, kRows, all.shape[2]};
  lost(good.view(), {}, 0);
  lost(good.view(0, two), {}, kRows);
  lost(without.view(), {}, kRows);
  lost(good.view(), short_weight.view(), kRows);
  const DeviceOwned values(Owned(DType::float32, {kRows, 3})), indices(Owned(DType::int32, {kRows, 3}));
  softfold::join_topk(good.view(), values.view(), indices.view());
  const Bytes places = indices.download();
  EXPECT_TRUE(std::all_of(places.begin(), places.begin() + kRows * 3 * 4, [](unsigned char b) { return b == 0xFF; }));
}

/// Every rank's tokens, of several seeds; how many calls have drawn any.
int expect_same_draws(const ShardCase& c, int which) {
  BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
  Owned partials = folded(rows.host, c.cuts, c.k), tokens(which % 2 == 0 ? DType::int64 : DType::int32, {kRows});
  const DeviceOwned on_device(partials), gpu_tokens(tokens);
  const Bytes nothing(tokens.bytes.size() - 8, 0xFF);
  int drawn = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (std::size_t i = 0; i + 1 < c.cuts.size(); ++i) {
      const std::int64_t begin = c.cuts[i], n = c.cuts[i + 1] - begin;
      const Sizes shape{kRows, n};
      softfold::SampleOptions o;
      o.seed = seed, o.offset = 3;
      o.rows.scale = c.scale;
      if (c.masked) o.rows.mask = View(rows.host.mask.bytes.data() + begin, DType::boolean, shape, rows.host.wide);
      const View x = rows.host.cut(rows.host.x, begin, begin + n);
      softfold::sample_shard(x, partials.view(), tokens.view(), {begin, c.n}, o);
      if (c.masked) o.rows.mask = rows.mask.view(begin, shape, rows.host.wide);
      const View gpu_x = rows.x.view(begin, shape, rows.host.wide);
      softfold::sample_shard(gpu_x, on_device.view(), gpu_tokens.view(), {begin, c.n}, o);
      const std::string wrong = difference(tokens.bytes, gpu_tokens.download(), size_of(tokens.dtype));
      EXPECT_EQ(wrong, "") << name(c) << " seed " << seed;
      drawn += std::equal(nothing.begin(), nothing.end(), tokens.bytes.begin()) ? 0 : 1;
    }
  return drawn;
}

TEST_F(CudaShards, Sample) {
  int drawn = 0;
  for_cases([&](const ShardCase& c, int which) {
    if (c.dtype == DType::float64 || !(c.scale > 0) || c.cuts.size() > 10) return;
    drawn += expect_same_draws(c, which);
  });
  for (const std::int64_t n : {1 << 20, 1 << 21}) {  // the second one's tree does not fit in shared memory
    drawn += expect_same_draws({DType::bfloat16, n + 5000, {0, n + 5000}, 0.75, false, 0}, 2);
    drawn += expect_same_draws({DType::bfloat16, n + 5000, {0, 2000, n, n + 5000}, 0.75, false, 0}, 2);
  }
  EXPECT_GT(drawn, 100);
}

/// So many rows that a block has several: the same ones again and again, each with a draw of its own.
TEST_F(CudaShards, SampleOfManyRows) {
  constexpr std::int64_t n = 9300;
  BothRows rows(DType::float32, n, 1, false, 5);
  const Sizes cuts{0, 3000, n}, again{300, kRows};
  Owned partials = folded(rows.host, cuts), tokens(DType::int64, again);
  const DeviceOwned on_device(partials), gpu_tokens(tokens);
  const std::int64_t width = partials.shape[2];
  const Sizes gathered{2, 300, kRows, width}, steps{kRows * width, 0, width, 1}, wide{0, n, 1};
  softfold::SampleOptions o;
  o.seed = 7;
  for (const std::size_t i : {0, 1}) {
    const std::int64_t begin = cuts[i];
    const Sizes shape{300, kRows, cuts[i + 1] - begin};
    const View x(rows.host.x.bytes.data() + 4 * begin, DType::float32, shape, wide);
    const View all(partials.bytes.data(), DType::float64, gathered, steps);
    softfold::sample_shard(x, all, tokens.view(), {begin, n}, o);
    const View gpu_x = rows.x.view(begin, shape, wide), gpu_all = on_device.view(0, gathered, steps);
    softfold::sample_shard(gpu_x, gpu_all, gpu_tokens.view(), {begin, n}, o);
    ASSERT_EQ(difference(tokens.bytes, gpu_tokens.download(), 8), "") << i;
  }
}

/// What the CPU refuses draws nothing.
TEST_F(CudaShards, DrawsThatAreNone) {
  BothRows rows(DType::float32, 3000, 1, false, 5);
  const Owned good = folded(rows.host, {0, 1000, 2500, 3000});
  const DeviceOwned partials(good), tokens(Owned(DType::int64, {kRows}));
  const auto draw = [&](std::int64_t begin, std::int64_t end, std::int64_t size, double scale) {
    const Sizes shape{kRows, end - begin};
    softfold::SampleOptions o;
    o.rows.scale = scale;
    const View x = rows.x.view(begin, shape, rows.host.wide);
    softfold::sample_shard(x, partials.view(), tokens.view(), {begin, size}, o);
    const Bytes got = tokens.download();
    return std::any_of(got.begin(), got.begin() + kRows * 8, [](unsigned char b) { return b != 0xFF; });
  };
  EXPECT_TRUE(draw(1000, 2500, 3000, 1));
  EXPECT_FALSE(draw(1000, 2500, 3000, 2));  // another scale
  EXPECT_FALSE(draw(1000, 2400, 3000, 1));  // another shard
  EXPECT_FALSE(draw(1000, 2500, 3001, 1));  // other rows
}

/// A step of training in a captured graph, a stream and a workspace of its own.
TEST_F(CudaShards, CapturedInAGraph) {
  BothRows rows(DType::bfloat16, 9300, 0.75, false, 3);
  const Sizes cuts{0, 4096, 9300};
  const Owned expected = folded(rows.host, cuts, 4, true);
  const std::int64_t width = expected.shape[2];
  const Sizes one{kRows, width};
  Owned loss(DType::float32, {}), host = loss, values(DType::float32, {kRows, 4}), indices(DType::int64, {kRows, 4});
  Owned partials = expected;
  softfold::join_cross_entropy(partials.view(), rows.host.targets.view(), host.view());
  const DeviceOwned all(Owned(DType::float64, expected.shape)), to(loss), to_values(values), to_indices(indices);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cuda_check(cudaStreamCreate(&stream));
  for (const bool overlap : {false, true}) {
    softfold::Context context;
    context.stream = stream, context.overlap = overlap;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    rows.fold(4096, 9300, 4, true, all.view(0, one), context);
    rows.fold(0, 4096, 4, true, all.view(kRows * width, one), context);
    softfold::join_cross_entropy(all.view(), rows.targets.view(), to.view(), {}, context);
    softfold::join_topk(all.view(), to_values.view(), to_indices.view(), {}, context);
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < 20; ++i) {
      cuda_check(cudaGraphLaunch(ready, stream));
      cuda_check(cudaStreamSynchronize(stream));
      ASSERT_EQ(difference(expected.bytes, all.download(), 8), "");
      ASSERT_EQ(difference(host.bytes, to.download(), 4), "");
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace softfold_test
