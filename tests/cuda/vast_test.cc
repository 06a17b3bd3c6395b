// More than 2^31 elements in a call: rows that 32-bit counts of elements would miss, and rows beside them, have the
// bits that the CPU gives the same rows in a small batch.
#include "cuda/both.hpp"

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Op;
using softfold::View;

constexpr softfold::Device kGpu{softfold::DeviceKind::cuda, 0};
constexpr std::int64_t kLooked = 6;

class CudaVast : public Cuda {};

struct Vast {
  std::int64_t rows, n;
  std::int64_t shape[2] = {rows, n};

  Vast(std::int64_t rows_, std::int64_t n_) : rows(rows_), n(n_) {}
  std::size_t bytes() const { return static_cast<std::size_t>(rows * n) * 2; }
  /// The rows that are compared: the first, the one with element 2^31, the last, and one beside each of them.
  std::int64_t looked(std::int64_t i) const {
    const std::int64_t at = (std::int64_t{1} << 31) / n;
    const std::int64_t rows_of[kLooked] = {0, 1, at, at + 1, rows - 1, rows - 2};
    return rows_of[i];
  }
  /// The others are zeros, those beside these too.
  static bool filled(std::int64_t i) { return i % 2 == 0; }
  std::string name() const { return std::to_string(rows) + "x" + std::to_string(n); }
};
const Vast kVast[] = {{2200000, 1000}, {40000, 55000}};

/// bfloat16 numbers of as many rows on the device, and of those that are compared in a small batch on the host.
struct Both {
  const Vast& vast;
  Memory memory;
  Tensor few;

  /// f(i, k): element k of the i-th row that is filled.
  template <class F>
  Both(const Vast& v, const F& f) : vast(v), memory(v.bytes()), few(DType::bfloat16, {kLooked, v.n}) {
    few.fill([&](std::int64_t at) { return Vast::filled(at / v.n) ? f(at / v.n, at % v.n) : 0.; });
    if (memory.data == nullptr) return;
    cuda_check(cudaMemset(memory.data, 0, v.bytes()));
    const std::size_t row = static_cast<std::size_t>(v.n) * 2;
    for (std::int64_t i = 0; i < kLooked; ++i)
      cuda_check(cudaMemcpy(static_cast<char*>(memory.data) + static_cast<std::size_t>(v.looked(i)) * row,
                            few.host().data() + static_cast<std::size_t>(i) * row, row, cudaMemcpyHostToDevice));
  }
  View many() const { return {memory.data, DType::bfloat16, vast.shape, {}, kGpu}; }
};

/// Logits, each filled row of another kind of value.
double logit(std::int64_t i, std::int64_t k, std::int64_t n) {
  constexpr Values kinds[] = {Values::normal, Values::wide, Values::masked_tail};
  return value_of(kinds[i / 2], 5, k, n);
}

/// Rows in memory on the device against the rows of a small batch, which the CPU has written.
void expect_rows(const Vast& v, const void* device, const Tensor& few, const std::string& what) {
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << v.name() << " " << what;
  const std::size_t row = static_cast<std::size_t>(few.count() / kLooked) * few.size();
  std::vector<unsigned char> got(row);
  for (std::int64_t i = 0; i < kLooked; ++i) {
    cuda_check(cudaMemcpy(got.data(), static_cast<const char*>(device) + static_cast<std::size_t>(v.looked(i)) * row,
                          row, cudaMemcpyDeviceToHost));
    const auto first = few.host().begin() + i * static_cast<std::ptrdiff_t>(row);
    const std::vector<unsigned char> expected(first, first + static_cast<std::ptrdiff_t>(row));
    ASSERT_EQ(difference(expected, got, few.size()), "") << v.name() << " " << what << " row " << v.looked(i);
  }
}

std::string too_little(const Vast& v) { return "too little memory on the device for " + v.name(); }

TEST_F(CudaVast, LogsumexpAndLogSoftmax) {
  for (const Vast& v : kVast) {
    ASSERT_GT(v.rows * v.n, std::int64_t{1} << 31);
    Both x(v, [&](std::int64_t i, std::int64_t k) { return logit(i, k, v.n); });
    const Memory lse(static_cast<std::size_t>(v.rows) * 4);
    if (x.memory.data == nullptr || lse.data == nullptr) GTEST_SKIP() << too_little(v);
    Tensor y(DType::bfloat16, {kLooked, v.n}), few_lse(DType::float32, {kLooked});
    softfold::logsumexp(x.few.cpu(), few_lse.cpu());
    softfold::log_softmax(x.few.cpu(), y.cpu());
    cuda_check(cudaMemset(lse.data, 0xA5, static_cast<std::size_t>(v.rows) * 4));
    const std::int64_t rows[] = {v.rows};
    softfold::logsumexp(x.many(), View(lse.data, DType::float32, rows, {}, kGpu));
    expect_rows(v, lse.data, few_lse, "logsumexp");
    softfold::log_softmax(x.many(), x.many());
    expect_rows(v, x.memory.data, y, "log_softmax");
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaVast, CrossEntropyAndItsGradient) {
  for (const Vast& v : kVast) {
    Both x(v, [&](std::int64_t i, std::int64_t k) { return logit(i, k, v.n); });
    const Memory targets(static_cast<std::size_t>(v.rows) * 8), loss(static_cast<std::size_t>(v.rows) * 4);
    if (x.memory.data == nullptr || targets.data == nullptr || loss.data == nullptr) GTEST_SKIP() << too_little(v);
    Tensor few_targets(DType::int64, {kLooked}), few_loss(DType::float32, {kLooked}),
        dx(DType::bfloat16, {kLooked, v.n});
    few_targets.fill([&](std::int64_t i) { return Vast::filled(i) ? static_cast<double>(v.n / 2 + i) : 0.; });
    cuda_check(cudaMemset(targets.data, 0, static_cast<std::size_t>(v.rows) * 8));
    cuda_check(cudaMemset(loss.data, 0xA5, static_cast<std::size_t>(v.rows) * 4));
    for (std::int64_t i = 0; i < kLooked; ++i)
      cuda_check(cudaMemcpy(static_cast<std::int64_t*>(targets.data) + v.looked(i), few_targets.host().data() + 8 * i,
                            8, cudaMemcpyHostToDevice));
    softfold::CrossEntropyOptions cpu, cuda;
    cpu.reduction = cuda.reduction = softfold::Reduction::none;
    cpu.dx = dx.cpu(), cuda.dx = x.many();
    softfold::cross_entropy(x.few.cpu(), few_targets.cpu(), few_loss.cpu(), cpu);
    const std::int64_t rows[] = {v.rows};
    softfold::cross_entropy(x.many(), View(targets.data, DType::int64, rows, {}, kGpu),
                            View(loss.data, DType::float32, rows, {}, kGpu), cuda);
    expect_rows(v, loss.data, few_loss, "cross_entropy");
    expect_rows(v, x.memory.data, dx, "its gradient");
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaVast, SoftmaxBackward) {
  for (const Vast& v : kVast) {
    Both y(v, [&](std::int64_t i, std::int64_t k) {
      return std::abs(value_of(Values::normal, i, k, v.n)) / static_cast<double>(v.n);
    });
    Both dy(v, [&](std::int64_t i, std::int64_t k) { return value_of(Values::normal, 77 + i, k, v.n); });
    if (y.memory.data == nullptr || dy.memory.data == nullptr) GTEST_SKIP() << too_little(v);
    Tensor dx(DType::bfloat16, {kLooked, v.n});
    softfold::softmax_backward(y.few.cpu(), dy.few.cpu(), dx.cpu());
    softfold::softmax_backward(y.many(), dy.many(), dy.many());
    expect_rows(v, dy.memory.data, dx, "softmax_backward");
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace softfold_test
