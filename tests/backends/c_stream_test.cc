// The C face of Stream: a row in pieces gives the whole row's bits, and refusals come as codes with a message.
#include "softfold/softfold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

softfold_tensor tensor_of(float* data, int64_t* shape) {
  softfold_tensor t{};
  t.data = data;
  t.device = {1, 0};
  t.ndim = 1;
  t.dtype = {2, 32, 1};
  t.shape = shape;
  return t;
}

TEST(CStream, PiecesGiveTheWholeRowsBits) {
  std::vector<float> x(5000), whole(x.size()), pieces(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 10.F * std::sin(static_cast<float>(i));
  auto n = static_cast<int64_t>(x.size());
  const softfold_tensor all = tensor_of(x.data(), &n), out = tensor_of(whole.data(), &n);
  ASSERT_EQ(softfold_softmax(&all, &out, nullptr, nullptr), SOFTFOLD_OK);

  softfold_stream* stream = nullptr;
  ASSERT_EQ(softfold_stream_create(2, 32, 1., 0, nullptr, &stream), SOFTFOLD_OK);
  for (const bool second : {false, true}) {
    for (int64_t at = 0, step = 1; at < n; at += step, step = 3 * step + 1) {
      int64_t size = std::min(step, n - at);
      const softfold_tensor piece = tensor_of(x.data() + at, &size), y = tensor_of(pieces.data() + at, &size);
      ASSERT_EQ(second ? softfold_stream_softmax(stream, &piece, &y, 0) : softfold_stream_push(stream, &piece),
                SOFTFOLD_OK);
    }
  }
  EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)), 0);

  double lse = 0, state[4] = {};
  ASSERT_EQ(softfold_stream_logsumexp(stream, &lse), SOFTFOLD_OK);
  ASSERT_EQ(softfold_stream_state(stream, state), SOFTFOLD_OK);
  EXPECT_NEAR(lse, state[0] * std::log(2.) + std::log(state[1]), 1e-5);
  EXPECT_EQ(state[3], 24.);
  softfold_stream_destroy(stream);
}

/// A stream of x[begin, end), as another process would have it.
softfold_stream* shard(std::vector<float>& x, int64_t begin, int64_t end) {
  softfold_stream* stream = nullptr;
  EXPECT_EQ(softfold_stream_create(2, 32, 0.7, begin, nullptr, &stream), SOFTFOLD_OK);
  int64_t size = end - begin;
  const softfold_tensor piece = tensor_of(x.data() + begin, &size);
  EXPECT_EQ(softfold_stream_push(stream, &piece), SOFTFOLD_OK);
  return stream;
}

std::vector<double> partial_of(const softfold_stream* stream) {
  std::vector<double> numbers(SOFTFOLD_PARTIAL_DOUBLES);
  std::size_t count = 0;
  EXPECT_EQ(softfold_stream_get_partial(stream, numbers.data(), numbers.size(), &count), SOFTFOLD_OK);
  numbers.resize(count);
  return numbers;
}

TEST(CStream, ShardsJoinToTheWholeRowsBits) {
  std::vector<float> x(300'000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 20.F * std::sin(static_cast<float>(i) * 1.7F);
  x[7000] = x[7001] = -INFINITY;
  softfold_stream* whole = shard(x, 0, std::ssize(x));
  const std::vector<double> want = partial_of(whole);
  const int64_t cuts[] = {0, 1, 1023, 1024, 5000, 5000, 70'000, 131'072, 299'999, 300'000};
  softfold_stream* joined = shard(x, 0, 0);
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
    softfold_stream* next = shard(x, cuts[i], cuts[i + 1]);
    const std::vector<double> partial = partial_of(next);
    softfold_stream_destroy(next);
    ASSERT_EQ(softfold_stream_push_partial(joined, partial.data(), partial.size()), SOFTFOLD_OK)
        << softfold_last_error();
  }
  EXPECT_EQ(partial_of(joined), want);
  double states[2][4];
  ASSERT_EQ(softfold_stream_state(whole, states[0]), SOFTFOLD_OK);
  ASSERT_EQ(softfold_stream_state(joined, states[1]), SOFTFOLD_OK);
  EXPECT_EQ(std::memcmp(states[0], states[1], sizeof states[0]), 0);
  softfold_stream_destroy(whole);
  softfold_stream_destroy(joined);
}

TEST(CStream, PartialsThatDoNotBelongOrLieAreRefused) {
  std::vector<float> x(9000, 0.5F);
  softfold_stream* first = shard(x, 0, 700);
  softfold_stream* next = shard(x, 700, 9000);
  const std::vector<double> good = partial_of(next);
  std::size_t count = 0;
  std::vector<double> few(good.size() - 1);
  EXPECT_EQ(softfold_stream_get_partial(next, few.data(), few.size(), &count), SOFTFOLD_SHAPE);
  EXPECT_EQ(count, good.size());
  EXPECT_EQ(softfold_stream_get_partial(next, nullptr, 9999, &count), SOFTFOLD_SHAPE);

  const std::vector<double> before = partial_of(first);
  const auto status = [&](std::size_t at, double value) {
    auto spoilt = good;
    spoilt[at] = value;
    return softfold_stream_push_partial(first, spoilt.data(), spoilt.size());
  };
  const std::size_t node = 7 + 324;  // behind the fields and the head, 700 .. 1024
  EXPECT_EQ(status(0, 99), SOFTFOLD_STATE) << "bits";
  EXPECT_EQ(status(1, 25), SOFTFOLD_STATE) << "digits";
  EXPECT_EQ(status(1, 53), SOFTFOLD_DTYPE) << "digits";
  EXPECT_EQ(status(2, 0.71), SOFTFOLD_STATE) << "scale";
  for (const double value : {-1., 0.5, 701., 1e300, static_cast<double>(NAN)}) {
    EXPECT_NE(status(3, value), SOFTFOLD_OK) << "offset " << value;
    for (const std::size_t field : {4U, 5U, 6U})
      EXPECT_EQ(status(field, value), SOFTFOLD_STATE) << field << " " << value;
    EXPECT_EQ(status(node, value), SOFTFOLD_STATE) << "level " << value;
  }
  EXPECT_EQ(status(7, 1. / 3), SOFTFOLD_STATE) << "an element that is no float";
  EXPECT_EQ(status(7, 1e300), SOFTFOLD_STATE) << "an element that is no float";
  EXPECT_EQ(status(node, 2), SOFTFOLD_STATE) << "a node out of place";
  EXPECT_EQ(status(node + 1, 0.5), SOFTFOLD_STATE) << "m is whole";
  EXPECT_EQ(status(node + 2, 0.5), SOFTFOLD_STATE) << "no d is that small";
  EXPECT_EQ(softfold_stream_push_partial(first, good.data(), good.size() - 1), SOFTFOLD_STATE);
  EXPECT_EQ(softfold_stream_push_partial(first, good.data(), 3), SOFTFOLD_STATE);
  EXPECT_EQ(softfold_stream_push_partial(first, nullptr, 0), SOFTFOLD_SHAPE);
  EXPECT_EQ(partial_of(first), before) << "a refusal takes nothing";
  EXPECT_EQ(softfold_stream_push_partial(first, good.data(), good.size()), SOFTFOLD_OK) << softfold_last_error();
  softfold_stream_destroy(first);
  softfold_stream_destroy(next);
}

TEST(CStream, RefusesWithACodeAndAMessage) {
  softfold_stream* stream = nullptr;
  EXPECT_EQ(softfold_stream_create(0, 32, 1., 0, nullptr, &stream), SOFTFOLD_DTYPE);
  EXPECT_NE(std::strstr(softfold_last_error(), "int32"), nullptr);
  EXPECT_EQ(softfold_stream_create(2, 32, INFINITY, 0, nullptr, &stream), SOFTFOLD_OPTION);
  EXPECT_EQ(softfold_stream_create(2, 32, 1., 0, nullptr, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(softfold_stream_push(nullptr, nullptr), SOFTFOLD_SHAPE);
}

}  // namespace
