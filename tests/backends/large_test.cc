// Rows and tensors of more than 2^31 elements. Their memory is 64 MiB mapped again and again, and one page of its own
// at the end, so that the test needs addresses and no memory.
#include "softfold/fold/float16.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

using namespace softfold;
using fold::BFloat16;

constexpr std::size_t kPage = 4096, kPiece = std::size_t{64} << 20;

/// At least `bytes` of zeros: every 64 MiB the same memory, the last page by itself.
class Repeated {
 public:
  explicit Repeated(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    const int file = ::memfd_create("repeated", 0);
    void* const base = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (file < 0 || base == MAP_FAILED || ::ftruncate(file, kPiece) != 0) return;
    data_ = static_cast<std::byte*>(base);
    for (std::size_t at = 0; at < bytes_; at += kPiece) map(at, std::min(kPiece, bytes_ - at), MAP_SHARED, file);
    map(bytes_ - kPage, kPage, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    ::close(file);
  }
  ~Repeated() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  std::byte* data() const { return data_; }

 private:
  void map(std::size_t at, std::size_t bytes, int flags, int file) {
    ASSERT_NE(::mmap(data_ + at, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file, 0), MAP_FAILED);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

constexpr std::int64_t kRow = (std::int64_t{1} << 31) + 1030;

BFloat16 at(const Repeated& memory, std::int64_t i) {
  BFloat16 value;
  std::memcpy(&value, memory.data() + i * 2, 2);
  return value;
}

// 2^31 + 1029 zeros and one ln(2^31 + 1029): it weighs as much as all the others. An index of 32 bits finds neither it
// nor the end of the row.
TEST(Large, ARowOfMoreThanTwoToThe31) {
  const Repeated x(kRow * 2), y(kRow * 2);
  ASSERT_NE(x.data(), nullptr);
  ASSERT_NE(y.data(), nullptr);
  const auto last = fold::narrow<BFloat16>(std::log(2147484677.));  // 21.4876 is 21.5 in bfloat16
  std::memcpy(x.data() + (kRow - 1) * 2, &last, 2);
  const std::int64_t shape[] = {kRow}, one[] = {1};
  const double sum = 2147484677. + std::exp(fold::widen(last));

  float lse = 0;
  logsumexp({x.data(), DType::bfloat16, shape}, {&lse, DType::float32, std::span(one).first(0)});
  EXPECT_NEAR(lse, std::log(sum), 1e-5);

  softmax({x.data(), DType::bfloat16, shape}, {y.data(), DType::bfloat16, shape});
  const double p = std::exp(fold::widen(last)) / sum;
  EXPECT_NEAR(fold::widen(at(y, kRow - 1)), p, p / 250);
  for (const std::int64_t i : {std::int64_t{0}, kRow / 2, kRow - 2})
    EXPECT_NEAR(fold::widen(at(y, i)), 1 / sum, 1 / sum / 250) << i;
}

// Three rows that begin, in elements, at 0, 2^30 + 515 and 2^31 + 1030.
TEST(Large, ATensorOfMoreThanTwoToThe31) {
  const std::int64_t n = kRow / 2, shape[] = {3, n}, rows[] = {3};
  const Repeated x(static_cast<std::size_t>(3 * n) * 2);
  ASSERT_NE(x.data(), nullptr);
  const auto last = fold::narrow<BFloat16>(40.);
  std::memcpy(x.data() + (3 * n - 1) * 2, &last, 2);
  float lse[3] = {};
  logsumexp({x.data(), DType::bfloat16, shape}, {lse, DType::float32, rows});
  EXPECT_NEAR(lse[0], std::log(static_cast<double>(n)), 1e-5);
  EXPECT_EQ(lse[1], lse[0]);
  EXPECT_NEAR(lse[2], 40, 1e-5);
}

// Five sequences, heads or tokens of k and v, 2^29 elements apart: the last lies beyond 2^31.
TEST(Large, AttentionOverMoreThanTwoToThe31) {
  constexpr std::int64_t d = 32, step = (std::int64_t{1} << 29) + 64;
  const Repeated memory((4 * step + d) * 2);
  ASSERT_NE(memory.data(), nullptr);
  std::vector<BFloat16> compact(5 * d), query(5 * 5 * 9 * d);
  for (std::size_t i = 0; i < query.size(); ++i) query[i] = fold::narrow<BFloat16>(std::sin(static_cast<double>(i)));
  for (std::size_t i = 0; i < compact.size(); ++i)
    compact[i] = fold::narrow<BFloat16>(std::cos(static_cast<double>(i * i)));
  for (std::int64_t n = 0; n < 5; ++n) std::memcpy(memory.data() + n * step * 2, compact.data() + n * d, d * 2);
  for (const std::size_t axis : {0u, 1u, 2u})
    for (const std::int64_t queries : {2, 9}) {
      std::int64_t shape[] = {1, 1, 1, d}, strides[] = {d, d, d, 1};
      shape[axis] = 5, strides[axis] = step;
      const std::int64_t q_shape[] = {shape[0], shape[1], queries, d};
      std::vector<float> near(query.size()), far(query.size());
      const View q(query.data(), DType::bfloat16, q_shape), k(compact.data(), DType::bfloat16, shape),
          far_k(memory.data(), DType::bfloat16, shape, strides);
      attention(q, k, k, {near.data(), DType::float32, q_shape});
      attention(q, far_k, far_k, {far.data(), DType::float32, q_shape});
      EXPECT_EQ(near, far) << axis << " " << queries;
      EXPECT_NE(near[0], 0);
    }
}

}  // namespace
