// Shards on the GPU: partials that are the CPU's, byte for byte, and joins of the same results.
#include "support/shard_rows.hpp"

#include "softfold/softfold.hpp"

#include <cuda_runtime.h>
#include <array>
#include <memory>
#include <tuple>

namespace softfold_test {
namespace {

using softfold::CrossEntropyOptions;
using softfold::Reduction;
using softfold::TopkOptions;

constexpr softfold::Device kGpu{softfold::DeviceKind::cuda, 0};

void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// The first element in which two copies differ, in words; empty if none does.
std::string difference(const Bytes& cpu, const Bytes& gpu, std::size_t size) {
  if (cpu == gpu) return {};
  const auto at =
      static_cast<std::size_t>(std::mismatch(cpu.begin(), cpu.end(), gpu.begin()).first - cpu.begin()) / size;
  std::string s = "element " + std::to_string(at) + " of " + std::to_string(cpu.size() / size) + ": cpu";
  char digits[4];
  for (const Bytes* bytes : {&cpu, &gpu}) {
    for (std::size_t b = (at + 1) * size; b-- > at * size && b < bytes->size();) {
      std::snprintf(digits, sizeof digits, "%02x", (*bytes)[b]);
      s += (b + 1 == (at + 1) * size ? " " : "") + std::string(digits);
    }
    if (bytes == &cpu) s += ", cuda";
  }
  return s;
}

/// A copy of a tensor on the device, poison behind it included.
class DeviceOwned {
 public:
  explicit DeviceOwned(const Owned& from) : shape_(from.shape), dtype_(from.dtype), size_(from.bytes.size()) {
    cuda_check(cudaMalloc(&data_, size_));
    upload(from.bytes);
  }
  ~DeviceOwned() { cudaFree(data_); }
  DeviceOwned(const DeviceOwned&) = delete;
  DeviceOwned& operator=(const DeviceOwned&) = delete;

  void upload(const Bytes& bytes) { cuda_check(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice)); }
  Bytes download() const {
    Bytes to(size_);
    cuda_check(cudaMemcpy(to.data(), data_, size_, cudaMemcpyDeviceToHost));
    return to;
  }
  View view() const { return {data_, dtype_, shape_, {}, kGpu}; }
  /// Of another shape, from an element on.
  View view(std::int64_t first, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides = {}) const {
    return {static_cast<char*>(data_) + first * static_cast<std::int64_t>(size_of(dtype_)), dtype_, shape, strides,
            kGpu};
  }

 private:
  Sizes shape_;
  DType dtype_;
  std::size_t size_;
  void* data_ = nullptr;
};

/// Rows on both sides.
struct BothRows {
  Rows host;
  DeviceOwned x{host.x}, targets{host.targets}, mask{host.mask}, weight{host.weight};

  BothRows(DType t, std::int64_t n, double scale, bool masked, std::uint64_t seed) : host(t, n, scale, masked, seed) {}

  /// One shard into a partial on the device.
  void fold(std::int64_t begin, std::int64_t end, std::int64_t k, bool with_targets, const View& to,
            const softfold::Context& context = {}) const {
    const Sizes shape{kRows, end - begin};
    ShardOptions o;
    o.rows.scale = host.options.scale;
    if (host.options.mask.given()) o.rows.mask = mask.view(begin, shape, host.wide);
    o.shard = {begin, host.n};
    o.k = k;
    if (with_targets) o.targets = targets.view();
    softfold::fold_shard(x.view(begin, shape, host.wide), to, o, context);
  }
};

/// The partials of the shards between cuts, as folded() has them, on the device: equal to those of the CPU.
std::unique_ptr<DeviceOwned> folded_on_device(BothRows& rows, const Sizes& cuts, std::int64_t k, bool targets,
                                              const Owned& expected) {
  Owned poison(DType::float64, expected.shape);
  auto all = std::make_unique<DeviceOwned>(poison);
  const std::int64_t width = expected.shape[2];
  const Sizes one{kRows, width};
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto first = static_cast<std::int64_t>(cuts.size() - 2 - i) * kRows * width;
    rows.fold(cuts[i], cuts[i + 1], k, targets, all->view(first, one));
  }
  cuda_check(cudaDeviceSynchronize());
  EXPECT_EQ(difference(expected.bytes, all->download(), sizeof(double)), "");
  return all;
}

struct Case {
  DType dtype;
  std::int64_t n;
  Sizes cuts;
  double scale;
  bool masked;
  std::int64_t k;
};

std::string name(const Case& c) {
  std::string s = std::string(name_of(c.dtype)) + ", scale " + std::to_string(c.scale) + ", k " + std::to_string(c.k) +
                  ", n " + std::to_string(c.n) + ", cuts";
  for (const auto cut : c.cuts) s += " " + std::to_string(cut);
  return s;
}

template <class Check>
void for_cases(const Check& check) {
  const std::int64_t ks[] = {0, 1, 50, 3, 300};
  const double scales[] = {0.75, -0.5, 1, 0};
  int which = 0;
  for (const DType t : kFloating)
    for (const std::int64_t n : {0, 1, 7, 1024, 3000, 9300, 70000, 300001}) {
      std::vector<Sizes> all{{0, n}, {0, 0, n, n}};
      if (n > 5) all.push_back({0, 1, 2, 2, 5, n - 1, n});
      if (n > 2100) all.push_back({0, 1023, 1024, 1025, 2047, 2049, n});
      if (n > 2100) all.push_back({0, 1024, 2048, n});
      if (n > 2100) all.push_back({0, n / 3, 2 * n / 3, n - 3, n});
      if (n > 2100) all.push_back({0, n / 2 / 1024 * 1024, n});
      if (n > 9300) all = {{0, n}, {0, 3 * 1024, 36000, 36001, n}, {0, 65536, n}};
      if (n == 9300 && t == DType::float32) {
        Sizes many;  // more parts than a warp has lanes
        for (std::int64_t i = 0; i <= n; i += 150) many.push_back(i);
        all.push_back(many);
      }
      for (const Sizes& cuts : all) {
        if (n > 9300 && (t == DType::float16 || (n > 70000 && t == DType::float64))) continue;
        ++which;
        const Case c{t, n, cuts, scales[which % 7 == 6 ? 3 : which % 3], which % 4 == 3, std::min(n, ks[which % 5])};
        check(c, which);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
}

/// Skips plainly where there is no GPU.
class CudaShards : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CudaShards, PartialsAndStates) {
  for_cases([](const Case& c, int which) {
    BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
    Owned partials = folded(rows.host, c.cuts, c.k, true), states(DType::float64, {kRows, 4});
    const DeviceOwned joined(states);
    const auto on_device = folded_on_device(rows, c.cuts, c.k, true, partials);
    softfold::join_states(partials.view(), states.view());
    softfold::join_states(on_device->view(), joined.view());
    ASSERT_EQ(difference(states.bytes, joined.download(), 8), "") << name(c);
  });
}

TEST_F(CudaShards, CrossEntropy) {
  for_cases([](const Case& c, int which) {
    BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
    const auto reduction = static_cast<Reduction>(which % 3);
    const Sizes of_loss = reduction == Reduction::none ? Sizes{kRows} : Sizes{};
    Owned loss(c.dtype, of_loss), lp(DType::float64, {kRows}), states(DType::float64, {kRows, 4});
    Owned status(DType::int32, {});
    const DeviceOwned gpu_loss(loss), gpu_lp(lp), gpu_states(states), gpu_status(status);
    CrossEntropyOptions o;
    o.reduction = reduction;
    o.z_loss = which % 2 == 0 ? 0.01 : 0;
    o.rows.empty = which % 7 == 0 ? softfold::Empty::nan : softfold::Empty::zero;
    CrossEntropyOptions gpu = o;
    if (which % 5 < 3) o.weight = rows.host.weight.view(), gpu.weight = rows.weight.view();
    if (which % 4 < 3) o.states = states.view(), gpu.states = gpu_states.view();
    o.log_probability = lp.view(), gpu.log_probability = gpu_lp.view();
    o.status = status.view(), gpu.status = gpu_status.view();
    Owned partials = folded(rows.host, c.cuts, c.k, true);
    const DeviceOwned on_device(partials);
    softfold::join_cross_entropy(partials.view(), rows.host.targets.view(), loss.view(), o);
    softfold::join_cross_entropy(on_device.view(), rows.targets.view(), gpu_loss.view(), gpu);
    ASSERT_EQ(difference(loss.bytes, gpu_loss.download(), size_of(c.dtype)), "") << name(c);
    ASSERT_EQ(difference(lp.bytes, gpu_lp.download(), 8), "") << name(c);
    ASSERT_EQ(difference(states.bytes, gpu_states.download(), 8), "") << name(c);
    ASSERT_EQ(difference(status.bytes, gpu_status.download(), 4), "") << name(c);
  });
}

TEST_F(CudaShards, Topk) {
  for_cases([](const Case& c, int which) {
    BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
    const std::int64_t k = which % 3 == 0 ? c.k / 2 : c.k;
    std::vector<Owned> host{{c.dtype, {kRows, k}},
                            {which % 2 == 0 ? DType::int64 : DType::int32, {kRows, k}},
                            {DType::float32, {kRows, k}},
                            {DType::float64, {kRows, k}},
                            {c.dtype, {kRows}}};
    std::vector<std::unique_ptr<DeviceOwned>> device;
    for (const Owned& t : host) device.push_back(std::make_unique<DeviceOwned>(t));
    Owned partials = folded(rows.host, c.cuts, c.k);
    const DeviceOwned on_device(partials);
    const auto run = [&](const View& from, const std::array<View, 5>& to) {
      TopkOptions o;
      o.sorted = which % 3 != 1;
      o.rows.empty = which % 7 == 0 ? softfold::Empty::nan : softfold::Empty::zero;
      if (which % 5 != 0) o.probabilities = to[2], o.log_probabilities = to[3], o.lse = to[4];
      softfold::join_topk(from, to[0], to[1], o);
    };
    run(partials.view(), {host[0].view(), host[1].view(), host[2].view(), host[3].view(), host[4].view()});
    run(on_device.view(),
        {device[0]->view(), device[1]->view(), device[2]->view(), device[3]->view(), device[4]->view()});
    for (std::size_t i = 0; i < host.size(); ++i)
      ASSERT_EQ(difference(host[i].bytes, device[i]->download(), size_of(host[i].dtype)), "")
          << name(c) << " result " << i;
  });
}

/// An axis that is not the last, lengths and scales of rows, NaN and infinity among the scales.
TEST_F(CudaShards, StridedRowsWithLengthsAndScalesOfTheirOwn) {
  constexpr std::int64_t n = 5000, rows = 6, width = 2200;
  const Rows random(DType::bfloat16, 2 * n * rows / kRows + 1, 1, false, 17);
  Owned x(DType::bfloat16, {n, 2 * rows}), lengths(DType::int32, {rows}), scales(DType::float32, {rows});
  std::copy_n(random.x.bytes.begin(), 4 * n * rows, x.bytes.begin());
  const float of_rows[] = {1, 0.25F, -2, std::numeric_limits<float>::quiet_NaN(), static_cast<float>(kInfinity), 0};
  std::memcpy(scales.bytes.data(), of_rows, sizeof of_rows);
  const DeviceOwned gpu_x(x), gpu_scales(scales);
  for (const auto& [begin, end] : {std::pair{0, 700}, {700, 2048}, {2048, 3000}, {3000, 5000}}) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto length = static_cast<std::int32_t>(std::clamp<std::int64_t>(1000 * r - begin, 0, end - begin));
      std::memcpy(lengths.bytes.data() + 4 * r, &length, sizeof length);
    }
    Owned partials(DType::float64, {rows, width});
    const DeviceOwned gpu_lengths(lengths), gpu_partials(partials);
    const Sizes cut{end - begin, rows}, strides{2 * rows, 2};
    const auto fold = [&](const View& from, const View& to, const View& length, const View& scale,
                          std::int64_t offset) {
      ShardOptions o;
      o.rows.axis = 0, o.rows.scale = 0.5, o.k = 20;
      o.rows.scales = scale, o.rows.length = length;
      o.shard = {offset, n};
      softfold::fold_shard(from, to, o);
    };
    const View host(x.bytes.data() + 4 * rows * begin, x.dtype, cut, strides);
    fold(host, partials.view(), lengths.view(), scales.view(), begin);
    fold(gpu_x.view(2 * rows * begin, cut, strides), gpu_partials.view(), gpu_lengths.view(), gpu_scales.view(), begin);
    ASSERT_EQ(difference(partials.bytes, gpu_partials.download(), 8), "") << begin;
  }
}

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
