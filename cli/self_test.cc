#include "self_test.hpp"

#include "elements.hpp"

#include "cpu/targets.hpp"
#include "softfold/softfold.hpp"

#include <array>
#include <cmath>

namespace softfold::cli {
namespace {

constexpr std::int64_t kRows = 4, kColumns = 2500;
constexpr Op kOps[] = {Op::softmax, Op::log_softmax, Op::logsumexp, Op::state};
constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};

// Of the definition of the bits that SOFTFOLD_BITS_VERSION names; one row per operation, one column per dtype.
static_assert(SOFTFOLD_BITS_VERSION == 1);
constexpr std::uint64_t kExpected[4][4] = {
    {0xF4F605853924D6BA, 0x2F5478708198F882, 0xF9536C900FBAFCA8, 0x0B958360C2B60874},
    {0x3BEC515E0730ECD7, 0xC84263C022D1A830, 0x3B40615417CA1DCC, 0x1F389785AA55559F},
    {0x49B3F23FBD68D066, 0x09B3AFED1FEE767D, 0xC26CA789F75C0B9B, 0xBC68CA3EB4DFACD1},
    {0xAC0EDE4AF37D93C5, 0x3DCC4BD8A1CCE883, 0xFBCE471C1CBAE12D, 0xBD8C5E919092EC2B}};

/// Row 0 within +-16, row 1 all -inf, row 2 up to +-16000 with -inf among them, row 3 within +-16 and one +inf.
std::vector<double> inputs() {
  std::vector<double> x(kRows * kColumns);
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    state = state * 1664525U + 1013904223U;
    const double value = static_cast<double>(state >> 18) / 512. - 16.;
    const std::int64_t row = i / kColumns, column = i % kColumns;
    const bool gone = row == 1 || (row == 2 && column % 7 == 0);
    x[static_cast<std::size_t>(i)] = gone ? -INFINITY : row == 2 ? 1000. * value : value;
  }
  x[static_cast<std::size_t>(3 * kColumns + 1234)] = INFINITY;
  return x;
}

std::uint64_t hash_of(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3U;
  return hash;
}

/// `run` runs an operation on one input and one output.
template <class Run>
std::uint64_t hash_of(Op op, DType dtype, const std::vector<double>& x, const Run& run) {
  return with_floating(dtype, [&]<class S>(S) {
    std::vector<S> narrow;
    narrow.reserve(x.size());
    for (const double value : x) narrow.push_back(fold::narrow<S>(value));
    const std::int64_t full[] = {kRows, kColumns}, states[] = {kRows, 4};
    const bool each = op == Op::softmax || op == Op::log_softmax;
    const DType out = op == Op::state ? DType::float64 : dtype;
    const std::span<const std::int64_t> shape =
        op == Op::state ? std::span(states) : std::span(full).first(each ? 2 : 1);
    const auto count = static_cast<std::size_t>(kRows * (each ? kColumns : op == Op::state ? 4 : 1));
    std::vector<std::byte> y(count * size_of(out));
    const View in(static_cast<const void*>(narrow.data()), dtype, full), result(y.data(), out, shape);
    run(op, in, result);
    return hash_of(y);
  });
}

template <class Run>
void test_all(std::string_view target, const Run& run, std::vector<SelfTest>& results) {
  const std::vector<double> x = inputs();
  for (std::size_t o = 0; o < std::size(kOps); ++o)
    for (std::size_t t = 0; t < std::size(kDTypes); ++t)
      results.push_back({target, std::string(name_of(kOps[o])) + " " + std::string(name_of(kDTypes[t])),
                         hash_of(kOps[o], kDTypes[t], x, run), kExpected[o][t]});
}

}  // namespace

std::vector<SelfTest> self_test() {
  const std::string_view used = cpu::current_target();
  std::vector<SelfTest> results;
  for (const std::string_view target : cpu::targets()) {
    cpu::use_target(target);
    test_all(
        target,
        [](Op op, const View& in, const View& out) {
          plan(op, {&in, 1}, {&out, 1}, RowOptions{}, Context{&serial_executor(), nullptr, nullptr}).run();
        },
        results);
  }
  cpu::use_target(used);
  return results;
}

std::vector<SelfTest> self_test_on(CudaDevice& device) {
  std::vector<SelfTest> results;
  test_all(
      "cuda",
      [&](Op op, const View& in, const View& out) {
        device.run(op, {&in, 1}, {&out, 1}, RowOptions{});
      },
      results);
  return results;
}

}  // namespace softfold::cli
