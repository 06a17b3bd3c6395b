// Every way in which attention is asked for what it cannot do, refused by name before anything is written.
#include "support/attention.hpp"
#include "refuse/refusal.hpp"

#include "softfold/softfold.h"

#include <gtest/gtest.h>

#include <functional>

namespace softfold_test {
namespace {

using softfold::AttentionOptions;
using softfold::Layout;

/// The operands of one call, to be spoilt.
struct Call {
  View q, k, v, out;
  AttentionOptions options;
};

class RefuseAttention : public testing::Test {
 protected:
  static AttentionCase small() {
    AttentionCase c;
    c.batch = 2, c.heads = 4, c.kv_heads = 2, c.queries = 5, c.keys = 7;
    c.d = 8, c.dv = 6;
    return c;
  }

  void expect(const AttentionCase& c, const std::string& what, Code code, const Words& words,
              const std::function<void(Call&)>& spoil) {
    AttentionData a(c);
    Call call{a.q.view(), a.k.view(), a.v.view(), a.out.view(), a.options()};
    attention(call);  // nothing is wrong yet
    spoil(call);
    const auto before = std::tuple(a.out.bytes(), a.lse.bytes(), a.state.bytes(), a.q.bytes());
    expect_refused(what, code, words, [&] { attention(call); });
    EXPECT_EQ(std::tuple(a.out.bytes(), a.lse.bytes(), a.state.bytes(), a.q.bytes()), before) << what;
  }
  void expect(const std::string& what, Code code, const Words& words, const std::function<void(Call&)>& spoil) {
    expect(small(), what, code, words, spoil);
  }
  static void attention(const Call& c) { softfold::attention(c.q, c.k, c.v, c.out, c.options); }
};

/// A tensor that lives as long as the test.
struct Kept {
  Array array;
  Kept(DType t, Shape s, double value = 0) : array(t, std::move(s)) {
    for (std::int64_t i = 0; i < array.count(); ++i) array.set_value(i, value);
  }
  View view() { return array.view(); }
};

TEST_F(RefuseAttention, TensorsThatDoNotFit) {
  Kept wide(DType::float32, {2, 4, 5, 9}), half(DType::float16, {2, 2, 7, 8}), ints(DType::int32, {2, 4, 5, 8}),
      heads(DType::float32, {2, 3, 7, 8}), values(DType::float32, {2, 2, 6, 6}), batch(DType::float32, {3, 2, 7, 8}),
      batch_values(DType::float32, {3, 2, 7, 6}), flat(DType::float32, {8}), deep(DType::float32, {1, 2, 4, 5, 8}),
      odd(DType::float32, {2, 3, 7, 6}), out(DType::float32, {2, 4, 5, 7}), large(DType::float32, {1, 1, 1, 513}),
      empty(DType::float32, {2, 4, 5, 0}), empty_keys(DType::float32, {2, 2, 7, 0});
  expect("D of q and k", Code::shape, {"[2, 4, 5, 9]", "one D"}, [&](Call& c) { c.q = wide.view(); });
  expect("another dtype", Code::dtype, {"float16", "one dtype", "convert"}, [&](Call& c) { c.k = half.view(); });
  expect("integers", Code::dtype, {"q of dtype int32", "float32"}, [&](Call& c) { c.q = ints.view(); });
  expect("heads that do not divide", Code::shape, {"[2, 3, 7, 8]", "multiple", "layout"},
         [&](Call& c) { c.k = heads.view(), c.v = odd.view(); });
  expect("k and v", Code::shape, {"[2, 2, 6, 6]", "one B, H and T"}, [&](Call& c) { c.v = values.view(); });
  expect("another batch", Code::shape, {"[3, 2, 7, 8]", "one B", "kv_index"},
         [&](Call& c) { c.k = batch.view(), c.v = batch_values.view(); });
  expect("rank 1", Code::shape, {"q of shape [8]", "(B, H, T, D)"}, [&](Call& c) { c.q = flat.view(); });
  expect("rank 5", Code::shape, {"[1, 2, 4, 5, 8]", "(T, D)"}, [&](Call& c) { c.q = deep.view(); });
  expect("out's shape", Code::shape, {"[2, 4, 5, 7]", "v's D"}, [&](Call& c) { c.out = out.view(); });
  expect("D beyond the limit", Code::shape, {"D = 513", "512"}, [&](Call& c) { c.q = c.k = large.view(); });
  expect("a v beyond the limit", Code::shape, {"Dv = 513", "512", "split v"}, [&](Call& c) { c.v = large.view(); });
  expect("no D", Code::shape, {"D = 0", "1 .. 512"}, [&](Call& c) { c.q = empty.view(), c.k = empty_keys.view(); });
  expect("no k", Code::shape, {"no k"}, [&](Call& c) { c.k = {}; });
  expect("a null q", Code::shape, {"null pointer"}, [&](Call& c) { c.q.data = nullptr; });
}

TEST_F(RefuseAttention, MemoryThatCannotWork) {
  const std::int64_t strides[] = {320, 80, 16, 2}, shared[] = {0, 30, 6, 1};
  Kept spread(DType::float32, {2, 4, 5, 16}), narrow(DType::float64, {2, 4, 5, 6});
  expect("strides along D", Code::strides, {"stride of 2", "contiguous last axis"},
         [&](Call& c) { c.q = View(spread.view().data, DType::float32, c.q.shape, strides); });
  expect("an out that shares memory with itself", Code::strides, {"share memory"},
         [&](Call& c) { c.out.strides = shared; });
  expect("out over q", Code::strides, {"overlaps", "memory of its own"}, [](Call& c) { c.out.data = c.q.data; });
  expect("lse over out", Code::strides, {"lse overlaps out"}, [](Call& c) { c.options.lse.data = c.out.data; });
  expect("out wider than q", Code::dtype, {"float64", "q's dtype"}, [&](Call& c) { c.out = narrow.view(); });
  expect("another device", Code::device, {"k on another device"}, [](Call& c) {
    c.k.device = {softfold::DeviceKind::cuda, 0};
  });
  expect("offsets on another device", Code::device, {"kv_lengths on another device"}, [](Call& c) {
    c.options.kv_lengths = c.q;
    c.options.kv_lengths.device = {softfold::DeviceKind::cuda, 0};
  });
}

TEST_F(RefuseAttention, NumbersThatMeanNothing) {
  const double infinity = std::numeric_limits<double>::infinity();
  expect("an infinite scale", Code::option, {"scale"}, [&](Call& c) { c.options.scale = infinity; });
  expect("a negative softcap", Code::option, {"softcap"}, [](Call& c) { c.options.softcap = -1; });
  expect("a NaN softcap", Code::option, {"softcap"}, [](Call& c) { c.options.softcap = std::nanf(""); });
  expect("a window of -2", Code::option, {"-2", "-1"}, [](Call& c) { c.options.window.left = -2; });
  expect("causal and beyond", Code::option, {"window.right = 3", "0 or -1", "causal off"}, [](Call& c) {
    c.options.causal = true;
    c.options.window.right = 3;
  });
  expect("pages", Code::unsupported, {"Paged"}, [](Call& c) { c.options.kv = softfold::Paged{}; });
  expect("positions", Code::unsupported, {"positions"}, [](Call& c) { c.options.q_positions = c.q; });
  expect("a softcap too small", Code::option, {"softcap 1e-30", "2^-60"}, [](Call& c) { c.options.softcap = 1e-30F; });
  expect("a softcap too large", Code::option, {"softcap 3e+38", "2^60"}, [](Call& c) { c.options.softcap = 3e38F; });
  expect("a layout", Code::option, {"layout 9", "bthd"}, [](Call& c) { c.options.layout = static_cast<Layout>(9); });
  expect("a rung", Code::option, {"rung 77"}, [](Call& c) { c.options.rung = static_cast<softfold::Rung>(77); });
}

TEST_F(RefuseAttention, OptionsOfAnotherShapeOrDtype) {
  Kept three(DType::float32, {3}), whole(DType::int32, {4}), mask(DType::boolean, {2, 4, 5, 6}),
      floats(DType::float32, {5, 7}), lengths(DType::float32, {2}), four(DType::int32, {4}),
      lse(DType::float32, {2, 4, 6}), half(DType::float16, {2, 4, 5}), state(DType::float32, {2, 4, 5, 7}),
      doubles(DType::float64, {2, 4, 5, 8});
  expect("sink", Code::shape, {"sink of shape [3]", "[4]"}, [&](Call& c) { c.options.sink = three.view(); });
  expect("sink's dtype", Code::dtype, {"sink", "float32"}, [&](Call& c) { c.options.sink = whole.view(); });
  expect("slopes", Code::shape, {"slopes of shape [3]", "[B, H]"}, [&](Call& c) { c.options.slopes = three.view(); });
  expect("slopes' dtype", Code::dtype, {"slopes", "float32"}, [&](Call& c) { c.options.slopes = whole.view(); });
  expect("mask", Code::shape, {"mask of shape", "[2, 4, 5, 7]"}, [&](Call& c) { c.options.mask = mask.view(); });
  expect("mask's dtype", Code::dtype, {"mask", "bool", "bias"}, [&](Call& c) { c.options.mask = floats.view(); });
  expect("bias", Code::shape, {"bias of shape [3]", "broadcasts"}, [&](Call& c) { c.options.bias = three.view(); });
  expect("lengths' dtype", Code::dtype, {"kv_lengths", "int32"},
         [&](Call& c) { c.options.kv_lengths = lengths.view(); });
  expect("lengths", Code::shape, {"kv_lengths of shape [4]", "[2]"},
         [&](Call& c) { c.options.kv_lengths = four.view(); });
  expect("lse", Code::shape, {"lse of shape [2, 4, 6]", "[2, 4, 5]"}, [&](Call& c) { c.options.lse = lse.view(); });
  expect("lse's dtype", Code::dtype, {"lse", "float32, float64"}, [&](Call& c) { c.options.lse = half.view(); });
  expect("state", Code::shape, {"state of shape", "[8]"}, [&](Call& c) { c.options.state = state.view(); });
  expect("state's dtype", Code::dtype, {"state", "float32"}, [&](Call& c) { c.options.state = doubles.view(); });
}

TEST_F(RefuseAttention, DataThatLies) {
  Kept long_ones(DType::int32, {2}, 8), negative(DType::int64, {2}, -1), late(DType::int32, {2}, 6),
      early(DType::int32, {2}, 4);
  expect("a length", Code::data, {"kv_lengths[0] = 8", "0 .. 7"},
         [&](Call& c) { c.options.kv_lengths = long_ones.view(); });
  expect("a negative length", Code::data, {"-1"}, [&](Call& c) { c.options.kv_lengths = negative.view(); });
  expect("a start behind the end", Code::data, {"kv_starts[0] = 6", "0 .. 4"}, [&](Call& c) {
    c.options.kv_lengths = early.view();
    c.options.kv_starts = late.view();
  });
  expect("an index", Code::data, {"kv_index[0] = 4", "0 .. 1"}, [&](Call& c) { c.options.kv_index = early.view(); });
  AttentionCase packed = small();
  packed.q_lengths = {3, 4}, packed.kv_lengths = {5, 2};
  Kept falling(DType::int32, {3}), four(DType::int32, {4}), index(DType::int32, {2});
  falling.array.set_value(1, 5), falling.array.set_value(2, 3);
  const auto varlen = [](Call& c) -> softfold::Varlen& { return std::get<softfold::Varlen>(c.options.kv); };
  expect(packed, "falling offsets", Code::data, {"q_offsets[2] = 3", "ascending"},
         [&](Call& c) { varlen(c).q_offsets = falling.view(); });
  expect(packed, "offsets of another B", Code::shape, {"[3]", "one length"},
         [&](Call& c) { varlen(c).kv_offsets = four.view(); });
  expect(packed, "max_q too small", Code::data, {"4 tokens", "max_q = 2"}, [&](Call& c) { varlen(c).max_q = 2; });
  expect(packed, "kv_index", Code::option, {"kv_index with Varlen"},
         [&](Call& c) { c.options.kv_index = index.view(); });
  expect(packed, "no offsets", Code::shape, {"no q_offsets"}, [&](Call& c) { varlen(c).q_offsets = {}; });
}

TEST(RefuseAttentionC, ThroughTheCInterface) {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {};
  std::int64_t shape[] = {2, 4}, short_shape[] = {2, 3};
  const softfold_tensor in{x, {1, 0}, 2, {2, 32, 1}, shape, nullptr, 0};
  softfold_tensor out{y, {1, 0}, 2, {2, 32, 1}, shape, nullptr, 0};
  softfold_attention_options o;
  softfold_attention_options_init(&o);
  o.causal = 1;
  EXPECT_EQ(softfold_attention(&in, &in, &in, &out, &o, nullptr), SOFTFOLD_OK) << softfold_last_error();
  EXPECT_EQ(y[0], x[0]);  // the first query sees the first key alone
  o.page_table = &in;
  EXPECT_EQ(softfold_attention(&in, &in, &in, &out, &o, nullptr), SOFTFOLD_UNSUPPORTED);
  softfold_attention_options_init(&o);
  o.layout = 2;
  EXPECT_EQ(softfold_attention(&in, &in, &in, &out, &o, nullptr), SOFTFOLD_OPTION);
  o.layout = 0, o.struct_size = sizeof o + 8;
  EXPECT_EQ(softfold_attention(&in, &in, &in, &out, &o, nullptr), SOFTFOLD_OPTION);
  out.shape = short_shape;
  softfold_plan plan;
  const softfold_tensor inputs[] = {in, in, in};
  EXPECT_EQ(softfold_plan_attention(&plan, inputs, 3, &out, 1, nullptr, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_plan_run(&plan), SOFTFOLD_OPTION);
  out.shape = shape;
  EXPECT_EQ(softfold_plan_attention(&plan, inputs, 3, &out, 1, nullptr, nullptr), SOFTFOLD_OK);
  EXPECT_STREQ(softfold_plan_kernel(&plan), "attention_fused");
  EXPECT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK);
  EXPECT_EQ(softfold_attention(&in, nullptr, &in, &out, nullptr, nullptr), SOFTFOLD_SHAPE);
}

}  // namespace
}  // namespace softfold_test
