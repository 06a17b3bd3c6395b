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
