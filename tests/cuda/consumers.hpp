// The operations on logits with options of their own on both backends: operands copied to the device, every byte that
// comes back compared, workspaces of exactly the bytes that were asked for.
#pragma once

#include "cuda/small_kernels.hpp"
#include "cuda/soil.hpp"
#include "own_plan.hpp"

#include "softfold/softfold.hpp"
#include "support/bits.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>

namespace softfold_test {
inline constexpr softfold::Device kCuda{softfold::DeviceKind::cuda, 0};

/// What names a case of rows.
inline std::string shape_of(std::int64_t rows, std::int64_t n, softfold::DType t) {
  return std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(softfold::name_of(t));
}

inline void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

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

/// Copies of arrays on the device, each made when it is first asked for.
class DeviceCopies {
 public:
  softfold::View operator()(Array& a) {
    auto& held = memory_[&a];
    if (held == nullptr) held = std::make_unique<DeviceBytes>(a.bytes());
    return a.view_at(held->data(), kCuda);
  }
  bool has(const Array& a) const { return memory_.contains(&a); }
  std::vector<unsigned char> download(const Array& a) const { return memory_.at(&a)->download(); }

 private:
  std::map<const Array*, std::unique_ptr<DeviceBytes>> memory_;
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
inline std::string run_on_device(const Problem& p, const Bound& bound) {
  constexpr std::size_t guard = 256;
  const softfold::Plan sizes = plan_of(bound, p.op, p.is_merge());
  const std::size_t bytes = sizes.workspace_bytes();
  DeviceBytes memory(soiled(bytes, guard, 0xA5));
  softfold::Workspace lent{memory.data(), bytes};
  softfold::Context context;
  if (bytes != 0) context.workspace = &lent;
  const softfold::Plan plan = plan_of(bound, p.op, p.is_merge(), context);
  plan.run();
  cuda_check(cudaDeviceSynchronize());
  const auto after = memory.download();
  for (std::size_t i = bytes; i < after.size(); ++i) EXPECT_EQ(after[i], 0xA5) << "behind the workspace";
  return std::string(plan.kernel());
}

/// Every byte of every output, padding included; outputs begin as poison. `p` is taken twice: the CPU works in the
/// arrays themselves. What the CPU does the GPU may not refuse.
inline void expect_same(Problem& p, const std::string& what) {
  OnDevice device(p);
  const Bound bound = bind(p);
  plan_of(bound, p.op, p.is_merge()).run();
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

/// A case's operation, with which its name begins.
inline Op op_of(const Case& c) {
  for (int i = 0; i <= static_cast<int>(softfold::kLastOp); ++i)
    if (c.name.substr(0, c.name.find('.')) == name_of(static_cast<Op>(i))) return static_cast<Op>(i);
  ADD_FAILURE() << c.name << " names no operation";
  return Op::softmax;
}

class CudaConsumers : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no CUDA device";
    leave_out_small_kernels();
    soil_workspaces();
  }
  /// Under a sanitizer every so many cases.
  static std::size_t step() {
    const char* s = std::getenv("SOFTFOLD_TEST_STEP");
    return s == nullptr ? 1 : static_cast<std::size_t>(std::atoi(s));
  }
  /// The cases of these operations, each contiguous and in another layout, or in every one.
  static void run_list(const std::vector<Op>& ops, bool every_layout = false) {
    std::size_t index = 0;
    for (const Case& c : cases()) {
      if (std::find(ops.begin(), ops.end(), op_of(c)) == ops.end() || index++ % step() != 0) continue;
      for (const Layout layout : kLayouts) {
        const bool in_turn = index % std::size(kLayouts) == static_cast<std::size_t>(layout);
        if (!every_layout && !in_turn && layout != Layout::contiguous) continue;
        Problem laid = c.make(layout);
        expect_same(laid, c.name + " layout " + std::to_string(static_cast<int>(layout)));
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(index, 0U);
  }
};

/// Gradients of rows: finite ones, NaN, infinity.
inline double gradient_of_row(std::int64_t row) {
  if (row % 7 == 1) return std::numeric_limits<double>::quiet_NaN();
  if (row % 7 == 2) return std::numeric_limits<double>::infinity();
  return 0.5 - static_cast<double>(row % 3);
}

inline double value(std::int64_t row, std::int64_t i, std::int64_t n) {
  const std::uint64_t h = Random(static_cast<std::uint64_t>(row * n + i) * 0x9E3779B97F4A7C15ULL + 5).next();
  const double u = static_cast<double>(h >> 11) * 0x1p-53;
  if (row % 11 == 5) return 400. * (u - 0.5);
  if (row % 11 == 7 && i % 3 == 0) return -std::numeric_limits<double>::infinity();
  if (row % 11 == 9 && i == n / 2) return std::numeric_limits<double>::quiet_NaN();
  return 10. * (u - 0.5) + static_cast<double>(h & 0xFF) / 256.;
}

inline Array logits(DType t, std::int64_t rows, std::int64_t n) {
  Array x(t, {rows, n});
  for (std::int64_t k = 0; k < rows * n; ++k) x.set_value(k, value(k / n, k % n, n));
  return x;
}

}  // namespace softfold_test
