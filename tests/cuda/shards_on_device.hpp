// Rows, their shards and partials on both sides, for the tests of shards on the GPU.
#pragma once

#include "cuda/soil.hpp"
#include "support/shard_rows.hpp"

#include "softfold/softfold.hpp"

#include <cuda_runtime.h>
#include <array>
#include <memory>
#include <tuple>

namespace softfold_test {

using softfold::CrossEntropyOptions;
using softfold::Reduction;
using softfold::TopkOptions;

inline constexpr softfold::Device kGpu{softfold::DeviceKind::cuda, 0};

inline void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// The first element in which two copies differ, in words; empty if none does.
inline std::string difference(const Bytes& cpu, const Bytes& gpu, std::size_t size) {
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
inline std::unique_ptr<DeviceOwned> folded_on_device(BothRows& rows, const Sizes& cuts, std::int64_t k, bool targets,
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

struct ShardCase {
  DType dtype;
  std::int64_t n;
  Sizes cuts;
  double scale;
  bool masked;
  std::int64_t k;
};

inline std::string name(const ShardCase& c) {
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
        const ShardCase c{
            t, n, cuts, scales[which % 7 == 6 ? 3 : which % 3], which % 4 == 3, std::min(n, ks[which % 5])};
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
    soil_workspaces();
  }
};

}  // namespace softfold_test
