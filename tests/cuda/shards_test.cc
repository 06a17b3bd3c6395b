// Shards on the GPU: partials that are the CPU's, byte for byte, and joins of the same results.
#include "cuda/shards_on_device.hpp"

namespace softfold_test {
namespace {

TEST_F(CudaShards, PartialsAndStates) {
  for_cases([](const ShardCase& c, int which) {
    BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
    Owned partials = folded(rows.host, c.cuts, c.k, true), states(DType::float64, {kRows, 4});
    const DeviceOwned joined(states);
    const auto on_device = folded_on_device(rows, c.cuts, c.k, true, partials);
    softfold::join_states(partials.view(), states.view());
    softfold::join_states(on_device->view(), joined.view());
    ASSERT_EQ(difference(states.bytes, joined.download(), 8), "") << name(c);
  });
}

/// As many chunks as the kernels for many rows want; rows that begin inside vectors.
TEST_F(CudaShards, PartialsOfManyChunks) {
  constexpr std::int64_t n = 1'200'123;
  std::uint64_t which = 0;
  for (const DType t : {DType::bfloat16, DType::float16, DType::float32})
    for (const Sizes& cuts : {Sizes{0, 601, 600'000, n}, Sizes{0, 1 << 19, n}}) {
      BothRows rows(t, n, which % 2 == 0 ? 0.75 : -0.5, false, which);
      const Owned expected = folded(rows.host, cuts, 3, true);
      folded_on_device(rows, cuts, 3, true, expected);
      ++which;
    }
}

TEST_F(CudaShards, CrossEntropy) {
  for_cases([](const ShardCase& c, int which) {
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

/// Each shard's own part of the gradient, from joined states.
TEST_F(CudaShards, GradientsOfShards) {
  for_cases([](const ShardCase& c, int which) {
    if (c.n == 0 || c.cuts.size() > 10) return;
    BothRows rows(c.dtype, c.n, c.scale, c.masked, static_cast<std::uint64_t>(which));
    Owned partials = folded(rows.host, c.cuts), states(DType::float64, {kRows, 4}), dloss(DType::float32, {});
    softfold::join_states(partials.view(), states.view());
    const float comes_in = 0.5F;
    std::memcpy(dloss.bytes.data(), &comes_in, sizeof comes_in);
    Owned status(DType::int32, {});
    const DeviceOwned gpu_states(states), gpu_dloss(dloss), gpu_status(status);
    CrossEntropyOptions o;
    o.reduction = which % 2 == 0 ? Reduction::mean : Reduction::sum;
    o.z_loss = which % 3 == 0 ? 0.01 : 0;
    o.rows.scale = c.scale;
    CrossEntropyOptions gpu = o;
    gpu.status = gpu_status.view();
    if (which % 5 < 3) o.weight = rows.host.weight.view(), gpu.weight = rows.weight.view();
    for (std::size_t i = 0; i + 1 < c.cuts.size(); ++i) {
      const std::int64_t begin = c.cuts[i], n = c.cuts[i + 1] - begin;
      const Sizes shape{kRows, n};
      Owned dx(c.dtype, shape);
      const DeviceOwned gpu_dx(dx);
      o.shard = gpu.shard = {begin, c.n};
      if (c.masked) o.rows.mask = View(rows.host.mask.bytes.data() + begin, DType::boolean, shape, rows.host.wide);
      if (c.masked) gpu.rows.mask = rows.mask.view(begin, shape, rows.host.wide);
      const View x = rows.host.cut(rows.host.x, begin, begin + n);
      softfold::cross_entropy_backward(x, rows.host.targets.view(), states.view(), dloss.view(), dx.view(), o);
      const View gpu_x = rows.x.view(begin, shape, rows.host.wide);
      softfold::cross_entropy_backward(gpu_x, rows.targets.view(), gpu_states.view(), gpu_dloss.view(), gpu_dx.view(),
                                       gpu);
      ASSERT_EQ(difference(dx.bytes, gpu_dx.download(), size_of(c.dtype)), "") << name(c) << " shard " << i;
      std::int32_t lost = -1;
      std::memcpy(&lost, gpu_status.download().data(), sizeof lost);
      ASSERT_EQ(lost, 0);
    }
  });
}

TEST_F(CudaShards, Topk) {
  for_cases([](const ShardCase& c, int which) {
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

}  // namespace
}  // namespace softfold_test
