// What lies at the edges: rows of 134 M elements and views of more than 2^31, large vocabularies whole, sharded and
// streamed, NaN in hidden places, and errors after which the library works on.
#include "cuda/both.hpp"

#include "softfold/stream.hpp"

namespace softfold_test {
namespace {

using softfold::Code;
using softfold::Device;
using softfold::DeviceKind;
using softfold::DType;
using softfold::Op;
using softfold::View;

constexpr Device kGpu{DeviceKind::cuda, 0};

class CudaLimits : public Cuda {
 protected:
  static Code code_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const softfold::Error& e) {
      return e.code;
    }
    return Code::ok;
  }
  static void expect_working() {
    Tensor x(DType::float32, {3, 2000}), y(DType::float32, {3, 2000});
    x.fill([](std::int64_t i) { return value_of(Values::normal, i / 2000, i % 2000, 2000); });
    softfold::softmax(x.cpu(), y.cpu());
    softfold::softmax(x.cuda(), y.cuda());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(difference(y.host(), y.download(), 4), "");
  }
};

TEST_F(CudaLimits, VocabulariesWholeShardedAndStreamed) {
  for (const std::int64_t n : {50257, 128256, 151936, 200064, 256000, 262144}) {
    Tensor x(DType::float32, {2, n}), y(DType::float32, {2, n}), pieces(DType::float32, {2, n});
    x.fill([&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); });
    softfold::softmax(x.cpu(), y.cpu());
    softfold::softmax(x.cuda(), y.cuda());
    cuda_check(cudaDeviceSynchronize());
    ASSERT_EQ(difference(y.host(), y.download(), 4), "") << n;
    // Row 1 as a stream on the host, cut anywhere; its pieces finished on the device.
    const auto* row = static_cast<const float*>(x.cpu().data) + n;
    softfold::Stream stream(DType::float32);
    const std::int64_t cut = n / 3 + 1;
    stream.push(std::span(row, static_cast<std::size_t>(cut)));
    stream.push(std::span(row + cut, static_cast<std::size_t>(n - cut)));
    Tensor states(DType::float64, {4});
    const auto s = stream.state();
    states.fill([&](std::int64_t i) { return s[static_cast<std::size_t>(i)]; });
    pieces.poison(0xA5);
    for (const auto& ends : {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, n}}) {
      const std::int64_t from = ends.first, to = ends.second;
      const std::int64_t shape[] = {to - from};
      const auto part = [&](Tensor& t) {
        return View(static_cast<void*>(static_cast<float*>(t.device_data()) + n + from), DType::float32, shape, {},
                    kGpu);
      };
      softfold::finish_softmax(part(x), states.cuda(), part(pieces));
    }
    cuda_check(cudaDeviceSynchronize());
    const auto whole = y.download(), streamed = pieces.download();
    EXPECT_EQ(std::memcmp(&whole[static_cast<std::size_t>(n) * 4], &streamed[static_cast<std::size_t>(n) * 4],
                          static_cast<std::size_t>(n) * 4),
              0)
        << n;
  }
}

TEST_F(CudaLimits, ARowOf134MillionHasTheCpusBits) {
  const std::int64_t n = std::int64_t{1} << 27, shape[] = {n};
  std::vector<float> x(static_cast<std::size_t>(n)), y(x.size()), got(x.size());
  std::uint32_t state = 1;
  for (float& v : x) v = static_cast<float>((state = state * 1664525U + 1013904223U) >> 8) * 0x1p-20F - 8.F;
  const Memory on_gpu(x.size() * 4), result(x.size() * 4);
  ASSERT_NE(result.data, nullptr);
  softfold::softmax(View(static_cast<const void*>(x.data()), DType::float32, shape),
                    View(static_cast<void*>(y.data()), DType::float32, shape));
  cuda_check(cudaMemcpy(on_gpu.data, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
  cuda_check(cudaMemset(result.data, 0xA5, x.size() * 4));
  softfold::softmax(View(on_gpu.data, DType::float32, shape, {}, kGpu),
                    View(result.data, DType::float32, shape, {}, kGpu));
  cuda_check(cudaMemcpy(got.data(), result.data, x.size() * 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(got.data(), y.data(), x.size() * 4), 0);
}

TEST_F(CudaLimits, MoreThanTwoToThe31Elements) {
  // Whole rows, and rows that the 32-bit count of an element would miss: the last one against the row alone.
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{2200000, 1000}, {40000, 55000}}) {
    const std::int64_t shape[] = {rows, n}, one[] = {n};
    ASSERT_GT(rows * n, std::int64_t{1} << 31);
    const auto bytes = static_cast<std::size_t>(rows * n) * 2, row_bytes = static_cast<std::size_t>(n) * 2;
    const Memory memory(bytes), alone(row_bytes);
    if (memory.data == nullptr) GTEST_SKIP() << "less than " << bytes << " bytes free on the device";
    std::vector<std::uint16_t> row(static_cast<std::size_t>(n)), last(row.size()), expected(row.size());
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = softfold::fold::narrow<softfold::fold::BFloat16>(
                   static_cast<float>(value_of(Values::normal, 5, static_cast<std::int64_t>(i), n)))
                   .bits;
    cuda_check(cudaMemset(memory.data, 0, bytes));
    auto* const at = static_cast<std::uint16_t*>(memory.data) + (rows - 1) * n;
    cuda_check(cudaMemcpy(at, row.data(), row_bytes, cudaMemcpyHostToDevice));
    cuda_check(cudaMemcpy(alone.data, row.data(), row_bytes, cudaMemcpyHostToDevice));
    const View x(memory.data, DType::bfloat16, shape, {}, kGpu), r(alone.data, DType::bfloat16, one, {}, kGpu);
    softfold::softmax(x, x);
    softfold::softmax(r, r);
    cuda_check(cudaMemcpy(last.data(), at, row_bytes, cudaMemcpyDeviceToHost));
    cuda_check(cudaMemcpy(expected.data(), alone.data, row_bytes, cudaMemcpyDeviceToHost));
    EXPECT_EQ(last, expected) << rows << "x" << n;
  }
}

// K and V of more than 2^31 elements: heads and keys that 32-bit offsets would miss, against the same keys by
// themselves.
TEST_F(CudaLimits, AttentionOfKeysBeyondTwoToThe31Elements) {
  constexpr std::int64_t kHeads = 3, kKeys = 5800000, kWindow = 1000, kDim = 128, kQueries = 16;
  constexpr std::int64_t kCount = kHeads * kKeys * kDim, kRow = kQueries * kDim, kPart = kWindow * kDim;
  static_assert(kCount > std::int64_t{1} << 31);
  const Memory k(kCount * 2), v(kCount * 2), q(kHeads * kRow * 2), out(kHeads * kRow * 2), alone(kRow * 2);
  if (k.data == nullptr || v.data == nullptr) GTEST_SKIP() << "less than " << kCount * 4 << " bytes free on the device";
  cuda_check(cudaMemset(k.data, 0xFF, kCount * 2));  // NaN
  cuda_check(cudaMemset(v.data, 0xFF, kCount * 2));
  const auto fill = [](void* to, std::int64_t count, std::uint64_t seed) {
    std::vector<softfold::fold::BFloat16> x(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      x[static_cast<std::size_t>(i)] = softfold::fold::narrow<softfold::fold::BFloat16>(
          static_cast<float>(value_of(Values::normal, static_cast<std::int64_t>(seed), i, count)));
    cuda_check(cudaMemcpy(to, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
  };
  const auto at = [](const Memory& m, std::int64_t element) {
    return static_cast<void*>(static_cast<std::uint16_t*>(m.data) + element);
  };
  fill(q.data, kHeads * kRow, 1);
  // Of each head only its last keys exist.
  const std::int64_t first = kKeys - kWindow;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    fill(at(k, (h * kKeys + first) * kDim), kPart, 10 + static_cast<std::uint64_t>(h));
    fill(at(v, (h * kKeys + first) * kDim), kPart, 20 + static_cast<std::uint64_t>(h));
  }
  Tensor starts(DType::int64, {1});
  starts.fill([&](std::int64_t) { return static_cast<double>(first); });
  const std::int64_t q_shape[] = {1, kHeads, kQueries, kDim}, kv_shape[] = {1, kHeads, kKeys, kDim};
  softfold::AttentionOptions options;
  options.kv_starts = starts.cuda();
  const auto on_gpu = [](void* data, std::span<const std::int64_t> shape) {
    return View(data, DType::bfloat16, shape, {}, kGpu);
  };
  softfold::attention(on_gpu(q.data, q_shape), on_gpu(k.data, kv_shape), on_gpu(v.data, kv_shape),
                      on_gpu(out.data, q_shape), options);
  const std::int64_t one[] = {1, 1, kQueries, kDim}, part[] = {1, 1, kWindow, kDim};
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const std::int64_t element = (h * kKeys + first) * kDim;
    softfold::attention(on_gpu(at(q, h * kRow), one), on_gpu(at(k, element), part), on_gpu(at(v, element), part),
                        on_gpu(alone.data, one));
    std::vector<softfold::fold::BFloat16> got(kRow), expected(kRow);
    cuda_check(cudaMemcpy(got.data(), at(out, h * kRow), kRow * 2, cudaMemcpyDeviceToHost));
    cuda_check(cudaMemcpy(expected.data(), alone.data, kRow * 2, cudaMemcpyDeviceToHost));
    for (std::int64_t i = 0; i < kRow; ++i) {
      const float a = softfold::fold::widen(got[static_cast<std::size_t>(i)]),
                  b = softfold::fold::widen(expected[static_cast<std::size_t>(i)]);
      ASSERT_NEAR(a, b, 0x1p-7 * std::abs(b) + 0x1p-10) << h << ", " << i;
    }
  }
}

TEST_F(CudaLimits, NaNInHiddenPlacesChangesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType t : {DType::float32, DType::bfloat16, DType::float64})
    for (const std::int64_t n : {5, 1000, 3000, 40000})
      for (const bool by_length : {false, true}) {
        const std::int64_t rows = 4, stride = n + 9;
        Tensor clean(t, {rows, n}, {stride, 1}), dirty(t, {rows, n}, {stride, 1});
        Tensor a(t, {rows, n}), b(t, {rows, n}), mask(DType::boolean, {rows, n}), length(DType::int64, {rows});
        const auto hidden = [&](std::int64_t i) { return by_length ? i % n >= n - 2 : i % n % 3 == 1; };
        const auto value = [&](std::int64_t i) { return value_of(Values::normal, i / n, i % n, n); };
        clean.fill(value);
        dirty.poison(0xFF);  // NaN between the rows too
        dirty.fill([&](std::int64_t i) { return hidden(i) ? nan : value(i); });
        mask.fill([&](std::int64_t i) { return hidden(i) ? 0. : 1.; });
        length.fill([&](std::int64_t) { return static_cast<double>(n - 2); });
        softfold::RowOptions options;
        if (by_length) {
          options.length = length.cuda();
        } else {
          options.mask = mask.cuda();
        }
        for (const Op op : {Op::softmax, Op::log_softmax}) {
          for (auto* pair : {&a, &b}) {
            const View in = (pair == &a ? clean : dirty).cuda(), out = pair->cuda();
            softfold::plan(op, {&in, 1}, {&out, 1}, options).run();
          }
          cuda_check(cudaDeviceSynchronize());
          ASSERT_EQ(difference(a.download(), b.download(), a.size()), "") << name_of(t) << n << by_length;
        }
      }
}

TEST_F(CudaLimits, WrongPointersAreRefusedAndTheLibraryWorksOn) {
  Tensor x(DType::float32, {4, 100}), y(DType::float32, {4, 100}), lse(DType::float32, {4});
  std::vector<float> host(400);
  const std::int64_t shape[] = {4, 100};
  const View wrong(static_cast<void*>(host.data()), DType::float32, shape, {}, kGpu);
  EXPECT_EQ(code_of([&] { softfold::softmax(wrong, y.cuda()); }), Code::device);
  EXPECT_EQ(code_of([&] { softfold::softmax(x.cuda(), wrong); }), Code::device);
  EXPECT_EQ(code_of([&] { softfold::softmax_backward(x.cuda(), wrong, y.cuda()); }), Code::device);
  // Device 0's memory in tensors said to be on device 1.
  View elsewhere_x = x.cuda(), elsewhere_y = y.cuda();
  elsewhere_x.device.id = elsewhere_y.device.id = 1;
  EXPECT_EQ(code_of([&] { softfold::softmax(elsewhere_x, elsewhere_y); }), Code::device);
  const View parts[] = {wrong, lse.cuda()};
  EXPECT_EQ(code_of([&] { softfold::merge_attention(parts, y.cuda(), lse.cuda()); }), Code::device);
  expect_working();
}

TEST_F(CudaLimits, OutOfMemoryLeavesTheLibraryUsable) {
  // Nearly everything is taken, so a workspace of 1.4 GB cannot be had.
  const std::int64_t rows = 100000000, n = 1;
  Tensor x(DType::float64, {n}), y(DType::float64, {n});
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  {
    const Memory most(free - (std::size_t{768} << 20));
    ASSERT_NE(most.data, nullptr);
    const std::int64_t shape[] = {rows, n}, strides[] = {0, 1}, out_shape[] = {rows};
    const Memory out(static_cast<std::size_t>(rows) * 4);
    ASSERT_NE(out.data, nullptr);
    const View in(x.device_data(), DType::float64, shape, strides, kGpu);
    const View lse(out.data, DType::float32, out_shape, {}, kGpu);
    EXPECT_EQ(code_of([&] { softfold::logsumexp(in, lse); }), Code::out_of_memory);
  }
  expect_working();
}

using CudaLimitsDeathTest = CudaLimits;

/// In a process of its own: a view that lies about its size makes the device stop, for good.
TEST_F(CudaLimitsDeathTest, AnErrorThatStaysIsNamedAsSuch) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto break_the_device = [] {
    const Memory small(1024);
    const std::int64_t shape[] = {1 << 20, 4096};
    const View lie(small.data, DType::float32, shape, {}, kGpu);
    softfold::softmax(lie, lie);
    cudaDeviceSynchronize();
    try {
      softfold::softmax(lie, lie);
    } catch (const softfold::Error& e) {
      std::fprintf(stderr, "%s", e.what());
      std::_Exit(e.code == Code::device ? 12 : 1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(break_the_device(), testing::ExitedWithCode(12), "start the process anew");
}

}  // namespace
}  // namespace softfold_test
