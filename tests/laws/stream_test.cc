// Streams: in whatever pieces a row arrives, the state, the logsumexp and the second pass have the whole row's bits.
#include "support/bits.hpp"
#include "support/generators.hpp"
#include "support/reference.hpp"

#include "softfold/softfold.hpp"
#include "softfold/stream.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <span>
#include <vector>

namespace softfold_test {
namespace {

using softfold::Code;
using softfold::DType;
using softfold::Partial;
using softfold::Stream;
using softfold::View;

template <class T>
constexpr DType kDType = sizeof(T) == 4 ? DType::float32 : DType::float64;

template <class T>
class Streams : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Streams, Precisions);

/// Pushes x[begin, end) as single elements, spans, strided views and other streams' partials.
template <class T>
void feed(Stream& stream, const std::vector<T>& x, std::int64_t begin, std::int64_t end, Random& random) {
  while (begin < end) {
    const std::int64_t most = random.below(2) == 0 ? 6000 : 5;
    const std::int64_t take = std::min(end - begin, 1 + random.below(most));
    const auto piece = std::span(x).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(take));
    switch (random.below(4)) {
      case 0:
        for (const T v : piece) stream.push(v);
        break;
      case 1: stream.push(piece); break;
      case 2: {
        std::vector<T> spread(3 * piece.size());
        for (std::size_t i = 0; i < piece.size(); ++i) spread[3 * i] = piece[i];
        const std::int64_t shape[] = {take}, strides[] = {3};
        stream.push(View(static_cast<const void*>(spread.data()), kDType<T>, shape, strides));
        break;
      }
      default: {
        Stream other(kDType<T>, stream.scale(), stream.end());
        other.push(piece);
        stream.push(other.partial<T>());
      }
    }
    begin += take;
  }
}

template <class T>
bool is_state_of(const std::array<double, 4>& s, const reference::State<T>& want, double scale) {
  return same(s[0], want.m) && same(s[1], static_cast<double>(want.d)) && s[2] == scale &&
         s[3] == fold::Real<T>::kDigits;
}

TYPED_TEST(Streams, AnyPiecesGiveTheWholeRowsBits) {
  using T = TypeParam;
  EXPECT_TRUE(rc::check([] {
    const auto x = *any_row<T>(12000);
    const double scale = *any_scale();
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const auto n = static_cast<std::int64_t>(x.size());
    const auto want = reference::reduce<T>(x, scale);
    Stream stream(kDType<T>, scale);
    feed(stream, x, 0, n, random);
    RC_ASSERT(stream.length() == n);
    RC_ASSERT(is_state_of<T>(stream.state(), want, scale));
    RC_ASSERT(same(stream.logsumexp(), fold::canonical(static_cast<double>(reference::logsumexp<T>(want, scale)))));

    std::vector<T> y(x.size()), log_y(x.size());
    for (std::int64_t begin = 0; begin < n;) {
      const std::int64_t take = std::min(n - begin, 1 + random.below(4000)), shape[] = {take};
      const auto view = [&](const T* a) { return View(static_cast<const void*>(a + begin), kDType<T>, shape); };
      stream.softmax(view(x.data()), view(y.data()));
      stream.log_softmax(view(x.data()), view(log_y.data()));
      begin += take;
    }
    const auto want_y = reference::softmax<T>(x, want, scale), want_log_y = reference::log_softmax<T>(x, want, scale);
    for (std::size_t i = 0; i < x.size(); ++i) {
      RC_ASSERT(same(y[i], want_y[i]));
      RC_ASSERT(same(log_y[i], want_log_y[i]));
    }
  }));
}

TYPED_TEST(Streams, PartialsJoinInAnyOrder) {
  using T = TypeParam;
  EXPECT_TRUE(rc::check([] {
    const auto x = *any_row<T>(12000);
    const double scale = *any_scale();
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    std::vector<Partial<T>> parts;
    const auto n = static_cast<std::int64_t>(x.size());
    std::int64_t begin = 0;
    do {
      const std::int64_t end = std::min(n, begin + random.below(3000));
      Stream shard(kDType<T>, scale, begin);
      feed(shard, x, begin, end, random);
      parts.push_back(shard.partial<T>());
      begin = end;
    } while (begin < n);
    for (std::size_t i = parts.size(); i > 1; --i)
      std::swap(parts[i - 1], parts[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
    const auto all = softfold::join(std::span<const Partial<T>>(parts));
    RC_ASSERT(all.offset() == 0);
    RC_ASSERT(all.length() == n);
    RC_ASSERT(same(all.state(), reference::reduce<T>(x, scale)));
  }));
}

TEST(Stream, HalfTypesAreThatOfTheirFloats) {
  Random random(5);
  std::vector<fold::BFloat16> stored(9001);
  std::vector<float> x;
  for (auto& v : stored) {
    v = fold::narrow<fold::BFloat16>(random.uniform(-9., 9.));
    x.push_back(fold::widen(v));
  }
  Stream stream(DType::bfloat16, 0.7), floats(DType::float32, 0.7);
  for (std::int64_t begin = 0; begin < 9001;) {
    const std::int64_t take = std::min<std::int64_t>(9001 - begin, 1 + random.below(3000)), shape[] = {take};
    stream.push(View(static_cast<const void*>(stored.data() + begin), DType::bfloat16, shape));
    begin += take;
  }
  floats.push(x);
  EXPECT_EQ(stream.state(), floats.state());
  EXPECT_TRUE(is_state_of<float>(stream.state(), reference::reduce<float>(x, 0.7), 0.7));
}

TEST(Stream, ALongPieceOnSeveralThreads) {
  Random random(7);
  std::vector<float> x(700001);
  for (auto& v : x) v = static_cast<float>(random.uniform(-30., 30.));
  const auto want = reference::reduce<float>(x, 1.);
  for (const int threads : {1, 2, 3, 8}) {
    const auto executor = softfold::make_thread_executor(threads);
    Stream stream(DType::float32, 1., 0, {executor.get(), nullptr, nullptr});
    stream.push(std::span(x).first(333));
    stream.push(std::span(x).subspan(333));
    EXPECT_TRUE(is_state_of<float>(stream.state(), want, 1.)) << threads;
  }
}

TEST(Stream, TheCallersEnvironmentIsNoMatter) {
  Random random(11);
  std::vector<double> x(5000);
  for (auto& v : x) v = random.uniform(-5., 5.);
  const auto row = [&] {
    Stream stream(DType::float64, 1. / 3);
    for (const double v : x) stream.push(v);
    auto s = stream.state();
    return std::pair(s, stream.logsumexp());
  };
  const auto want = row();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const auto got = row();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(got, want);
  }
}

TEST(Stream, NothingAndNothingButMinusInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  Stream stream;
  EXPECT_EQ(stream.length(), 0);
  EXPECT_EQ(stream.logsumexp(), -infinity);
  EXPECT_EQ(stream.state(), (std::array<double, 4>{-infinity, 0., 1., 24.}));
  stream.push(std::span<const float>());
  for (int i = 0; i < 1500; ++i) stream.push(static_cast<float>(-infinity));
  EXPECT_EQ(stream.logsumexp(), -infinity);
  float x = static_cast<float>(-infinity), y = -7;
  const std::int64_t shape[] = {1};
  stream.softmax(View(&x, DType::float32, shape), View(&y, DType::float32, shape));
  EXPECT_TRUE(same(y, 0.F));
  stream.softmax(View(&x, DType::float32, shape), View(&y, DType::float32, shape), softfold::Empty::nan);
  EXPECT_EQ(bits(y), 0x7FC00000U);
}

template <class F>
softfold::Error refusal(F&& f) {
  try {
    f();
  } catch (const softfold::Error& e) {
    return e;
  }
  return softfold::Error(Code::ok, "nothing refused", "");
}

TEST(StreamRefusals, WhatDoesNotFit) {
  EXPECT_EQ(refusal([] { (void)Stream(DType::int32); }).code, Code::dtype);
  EXPECT_EQ(refusal([] { (void)Stream(DType::float32, 1e39); }).code, Code::option);
  EXPECT_EQ(refusal([] { (void)Stream(DType::float32, std::nan("")); }).code, Code::option);
  EXPECT_EQ(refusal([] { (void)Stream(DType::float32, 1., -1); }).code, Code::shape);
  Stream narrow, wide(DType::float64);
  const std::vector<float> x(6);
  const std::int64_t square[] = {2, 3}, row[] = {6};
  EXPECT_EQ(refusal([&] { narrow.push(1.); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { wide.push(1.F); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { wide.push(std::span<const float>(x)); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { narrow.push(View(x.data(), DType::float32, square)); }).code, Code::shape);
  EXPECT_EQ(refusal([&] { narrow.push(View(x.data(), DType::int32, row)); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { narrow.push(wide.partial<double>()); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { (void)narrow.partial<double>(); }).code, Code::dtype);
  EXPECT_EQ(refusal([&] { narrow.push(Partial<float>(0.5, 0)); }).code, Code::state);
  EXPECT_EQ(refusal([&] { narrow.push(Partial<float>(1., 5)); }).code, Code::state);
  EXPECT_EQ(narrow.length(), 0);
  EXPECT_EQ(wide.length(), 0);
}

// What plan() refuses, a stream does not take first and refuse later.
TEST(StreamRefusals, AScaleBelowTheFoldsPrecision) {
  for (const double tiny : {1e-60, 1e-42, -8e-39}) {
    const auto e = refusal([&] { (void)Stream(DType::float32, tiny); });
    EXPECT_EQ(e.code, Code::option);
    EXPECT_NE(e.allowed.find("at least 8.2e-39"), std::string::npos) << e.what();
  }
  EXPECT_EQ(refusal([] { (void)Stream(DType::float64, -1e-308); }).code, Code::option);
  EXPECT_EQ(refusal([] { (void)Stream(DType::float64, 1e-60); }).code, Code::ok);
}

TEST(StreamRefusals, APieceThatCannotBeFoldedLeavesTheStreamAsItWas) {
  struct Broken final : softfold::Executor {
    int concurrency() const override { return 0; }
    void run(std::int64_t, Task, void*) override {}
  } broken;
  Stream stream(DType::float32, 1., 0, {&broken, nullptr, nullptr});
  const std::vector<float> x(3000, 1.F);
  stream.push(std::span(x).first(500));
  const auto before = stream.state();
  EXPECT_EQ(refusal([&] { stream.push(x); }).code, Code::option);
  EXPECT_EQ(stream.length(), 500);
  EXPECT_EQ(stream.state(), before);

  constexpr std::int64_t most = Partial<float>::kLargestOffset;
  Stream last(DType::float32, 1., most - 600);
  EXPECT_EQ(refusal([&] { last.push(std::span(x).first(601)); }).code, Code::shape);
  EXPECT_EQ(refusal([&] { last.push(x); }).code, Code::shape);
  EXPECT_EQ(last.length(), 0);
  last.push(std::span(x).first(600));
  EXPECT_EQ(refusal([&] { last.push(1.F); }).code, Code::shape);
  EXPECT_EQ(last.end(), most);
}

TEST(StreamRefusals, GapsAndOverlapsWhenJoining) {
  const std::vector<float> x(2000, 1.F);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    Partial<float> p(1., begin);
    p.append(std::span(x).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    return p;
  };
  const auto join = [](std::vector<Partial<float>> parts) {
    return refusal([&] { softfold::join(std::span<const Partial<float>>(parts)); });
  };
  EXPECT_EQ(join({}).code, Code::state);
  const auto gap = join({part(1200, 2000), part(0, 1100)});
  EXPECT_EQ(gap.code, Code::state);
  EXPECT_NE(gap.fix.find("elements 1100 to 1200"), std::string::npos) << gap.what();
  const auto overlap = join({part(1000, 2000), part(0, 1100)});
  EXPECT_EQ(overlap.code, Code::state);
  EXPECT_NE(overlap.fix.find("elements 1000 to 1100 are held twice"), std::string::npos) << overlap.what();
  EXPECT_EQ(join({part(0, 1100), Partial<float>(0.5, 1100)}).code, Code::state);
  EXPECT_EQ(join({part(1000, 2000), part(0, 1000), part(1000, 1000), part(0, 0)}).code, Code::ok);
}

}  // namespace
}  // namespace softfold_test
