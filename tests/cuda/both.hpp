// One call on both backends: tensors that exist twice, and a comparison of every byte, padding included.
#pragma once

#include "cuda/small_kernels.hpp"
#include "cuda/soil.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/softfold.hpp"
#include "support/bits.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <initializer_list>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace softfold_test {

inline void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

inline bool has_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

/// Skips plainly where there is no GPU.
class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
    leave_out_small_kernels();
    soil_workspaces();
  }
};

/// Device memory that may be refused: then data is null, and no call after it finds the error.
struct Memory {
  explicit Memory(std::size_t bytes) {
    if (cudaMalloc(&data, bytes) == cudaSuccess) return;
    data = nullptr;
    cudaGetLastError();
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data = nullptr;
};

/// A tensor with the same bytes on the host and on the device. Elements lie at `offset` elements from a 256-byte
/// boundary, with the given strides (contiguous if none); everything starts as the poison 0xA5.
class Tensor {
 public:
  /// slack: elements of memory behind the last one.
  Tensor(softfold::DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {},
         std::int64_t offset = 0, std::int64_t slack = 16)
      : dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)) {
    if (strides_.empty()) {
      strides_.assign(shape_.size(), 1);
      for (std::size_t i = shape_.size(); i-- > 1;) strides_[i - 1] = strides_[i] * shape_[i];
    }
    std::int64_t low = 0, high = 0;
    bool empty = false;
    for (std::size_t i = 0; i < shape_.size(); ++i) {
      empty |= shape_[i] == 0;
      const std::int64_t reach = (shape_[i] - 1) * strides_[i];
      (reach < 0 ? low : high) += reach;
    }
    first_ = offset - (empty ? 0 : low);
    const std::int64_t elements = empty ? offset + 1 : first_ + high + 1;
    host_.assign(static_cast<std::size_t>(elements + slack) * size(), 0xA5);
    cuda_check(cudaMalloc(&device_, host_.size()));
    upload();
  }
  ~Tensor() { cudaFree(device_); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  softfold::View cpu() { return {at(host_.data()), dtype_, shape_, strides_, {softfold::DeviceKind::cpu, 0}}; }
  softfold::View cuda() {
    return {at(static_cast<unsigned char*>(device_)), dtype_, shape_, strides_, {softfold::DeviceKind::cuda, 0}};
  }
  softfold::View view(bool on_gpu) { return on_gpu ? cuda() : cpu(); }

  std::int64_t count() const {
    return std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>());
  }
  std::size_t size() const { return softfold::size_of(dtype_); }
  softfold::DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::vector<std::int64_t>& strides() const { return strides_; }

  /// Sets element i (in row-major order) to f(i), rounded to the dtype; then uploads.
  template <class F>
  void fill(const F& f) {
    const std::int64_t n = count();
    for (std::int64_t i = 0; i < n; ++i) set(i, f(i));
    upload();
  }
  /// The same by as many of the machine's threads as have something to do.
  template <class F>
  void fill_by_threads(const F& f) {
    const std::int64_t n = count(), most = std::max(1U, std::thread::hardware_concurrency());
    const std::int64_t parts = std::min(most, n / (1 << 20) + 1);
    std::vector<std::thread> threads;
    for (std::int64_t part = 0; part < parts; ++part)
      threads.emplace_back([&, part] {
        for (std::int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) set(i, f(i));
      });
    for (std::thread& t : threads) t.join();
    upload();
  }
  void upload() {
    cuda_check(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
    // It may return before all has arrived, and streams that do not wait for this one would overtake the rest.
    cuda_check(cudaStreamSynchronize(nullptr));
  }
  void poison(unsigned char byte) {
    std::fill(host_.begin(), host_.end(), byte);
    upload();
  }
  std::vector<unsigned char> download() const {
    std::vector<unsigned char> r(host_.size());
    cuda_check(cudaMemcpy(r.data(), device_, r.size(), cudaMemcpyDeviceToHost));
    return r;
  }
  const std::vector<unsigned char>& host() const { return host_; }
  void* device_data() { return at(static_cast<unsigned char*>(device_)); }

 private:
  unsigned char* at(unsigned char* base) const { return base + first_ * static_cast<std::int64_t>(size()); }

  void set(std::int64_t i, double value) {
    std::int64_t where = 0;
    for (std::size_t d = shape_.size(); d-- > 0; i /= shape_[d]) where += i % shape_[d] * strides_[d];
    unsigned char* to = at(host_.data()) + where * static_cast<std::int64_t>(size());
    const auto put = [to](auto v) { std::memcpy(to, &v, sizeof v); };
    using namespace softfold;
    switch (dtype_) {
      case DType::float32: return put(static_cast<float>(value));
      case DType::float64: return put(value);
      case DType::float16: return put(fold::narrow<fold::Float16>(value));
      case DType::bfloat16: return put(fold::narrow<fold::BFloat16>(value));
      case DType::boolean: return put(static_cast<std::uint8_t>(value != 0));
      case DType::int32: return put(static_cast<std::int32_t>(value));
      case DType::int64: return put(static_cast<std::int64_t>(value));
    }
  }

  softfold::DType dtype_;
  std::vector<std::int64_t> shape_, strides_;
  std::int64_t first_ = 0;
  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

/// The first byte in which two copies differ, in words; empty if none does.
inline std::string difference(const std::vector<unsigned char>& cpu, const std::vector<unsigned char>& gpu,
                              std::size_t size) {
  if (cpu == gpu) return {};
  std::size_t first = cpu.size(), count = 0;
  for (std::size_t i = 0; i < cpu.size() / size; ++i)
    if (std::memcmp(&cpu[i * size], &gpu[i * size], size) != 0) {
      if (first == cpu.size()) first = i;
      ++count;
    }
  const auto hex = [&](const std::vector<unsigned char>& v) {
    std::string s;
    char buffer[8];
    for (std::size_t b = size; b-- > 0;) {
      std::snprintf(buffer, sizeof buffer, "%02x", v[first * size + b]);
      s += buffer;
    }
    return s;
  };
  return std::to_string(count) + " elements differ, the first at " + std::to_string(first) + ": cpu " + hex(cpu) +
         ", cuda " + hex(gpu);
}

/// What the elements of a row look like.
enum class Values { normal, wide, huge, specials, uniform, ramp, tiny, masked_tail, bits, apart, drift, count };

/// An operation of rows on both backends, with options(whether on the GPU). The CUDA backend's kernel.
template <class Options>
std::string run_on_both(softfold::Op op, std::initializer_list<Tensor*> in, Tensor& out, const Options& options) {
  std::string kernel;
  for (const bool gpu : {false, true}) {
    std::vector<softfold::View> views;
    for (Tensor* tensor : in) views.push_back(tensor->view(gpu));
    const softfold::View to = out.view(gpu);
    const auto plan = softfold::plan(op, views, {&to, 1}, options(gpu));
    plan.run();
    kernel = plan.kernel();
  }
  return kernel;
}

inline double value_of(Values kind, std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ULL +
                                 static_cast<std::uint64_t>(i) * 0xD1B54A32D192ED03ULL + 17)
                              .next();
  const double u = static_cast<double>(h >> 11) * 0x1p-53;  // [0, 1)
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  switch (kind) {
    case Values::normal: return 8. * (u - 0.5) + 4. * (static_cast<double>(h & 0x7FF) / 2048. - 0.5);
    case Values::wide: return 400. * (u - 0.5);
    case Values::huge: return row % 2 == 0 ? 6e6 * (u - 0.3) : 3e38 * (u - 0.5);
    case Values::specials: {
      // Row by row another mixture: clean, -inf, NaN, +inf, all -inf, lowest finite.
      const std::int64_t kind_of_row = row % 7;
      if (kind_of_row == 4) return -inf;
      if (kind_of_row == 5) return -3.4028234663852886e38;
      if (kind_of_row == 6 && i >= n / 2) return -inf;
      if (kind_of_row != 0 && i == static_cast<std::int64_t>(static_cast<double>(n) * 0.7)) {
        if (kind_of_row == 1) return -inf;
        if (kind_of_row == 2) return nan;
        if (kind_of_row == 3) return inf;
      }
      return 20. * (u - 0.5);
    }
    case Values::uniform: return 0.25 * static_cast<double>(row);
    case Values::ramp: return (row % 2 == 0 ? 1. : -1.) * static_cast<double>(i) * 0.01;
    case Values::tiny: return 1e-40 * (u - 0.5);
    case Values::masked_tail: return i > n * 3 / 4 ? -inf : 10. * (u - 0.5);
    case Values::bits: return std::ldexp(u - 0.5, static_cast<int>(h & 0x3F) - 32);
    case Values::apart: {
      // Chunks lie some binades apart, the last one further than a sum reaches, or it is absent; of either sign.
      const double sign = row % 4 < 2 ? 1. : -1.;
      if (i / 1024 == (n - 1) / 1024) return row % 4 == 0 ? -inf : sign * (u - 150.);
      return sign * (6. * static_cast<double>((i / 1024 * 7 + row) % 5) + u);
    }
    case Values::drift: {
      // Each row lies elsewhere, near or far from the one before; some have elements that are absent, or few far below,
      // or a last chunk that is, by every distance at which a frame guessed from another row ceases to hold them.
      Random of_row(static_cast<std::uint64_t>(row) * 0xA0761D6478BD642FULL + 5);
      const auto draw = [&of_row] { return of_row.uniform(); };
      const double where = draw(), level = where < 0.1 ? 4000. * (draw() - 0.5) : 90. * (where - 0.55), below = draw();
      const auto how = static_cast<int>(5. * draw());
      if (how == 1 && i / 1024 == (n - 1) / 1024) return level + u - 90. * below;
      if (how == 2 && h % 512 == 0) return level - 110. * below;
      if (how == 3 && (below < 0.5 ? h % 16 == 0 : i > n * 2 / 3)) return -inf;
      return level + 8. * (u - 0.5);
    }
    case Values::count: break;
  }
  return 0;
}

/// The i-th choice of case `at`, one of n: whatever a test's loops have for periods, no two choices go together.
inline std::size_t pick(std::size_t at, std::size_t i, std::size_t n) {
  return static_cast<std::size_t>(Random(at * 0x9E3779B97F4A7C15ULL + i * 0xD1B54A32D192ED03ULL + 1).next() >> 33) % n;
}

/// What tests of rows of any content choose from.
inline constexpr Values kAnyValues[] = {Values::normal, Values::masked_tail, Values::specials, Values::normal,
                                        Values::huge,   Values::tiny,        Values::drift,    Values::wide};

/// dy: anything that a gradient may be, -0 and numbers that are none in a few rows.
inline double gradient_of(std::int64_t row, std::int64_t i) {
  Random r(static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(i) * 77 + 3);
  if (row % 11 == 4 && i % 9 == 2) return std::numeric_limits<double>::quiet_NaN();
  if (row % 13 == 5 && i % 7 == 3) return std::numeric_limits<double>::infinity();
  if (row % 5 == 1) return -0.;
  return 4. * r.uniform() - 2.;
}

}  // namespace softfold_test
