// Every operand of every operation, spoilt in every way: dtype, rank, sizes, strides, pointer, alignment, device,
// overlap, and how many there are.
#include "refuse/refusal.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

constexpr Op kRowOps[] = {Op::softmax,
                          Op::log_softmax,
                          Op::logsumexp,
                          Op::state,
                          Op::softmax_backward,
                          Op::log_softmax_backward,
                          Op::logsumexp_backward,
                          Op::finish_softmax,
                          Op::finish_log_softmax,
                          Op::finish_logsumexp};

RowCase small(Op op) {
  RowCase c;
  c.op = op;
  c.shape = {3, 5, 4};
  c.kind = Kind::gaussian;
  return c;
}

Problem merge_problem(const std::string& name) {
  for (const Case& c : cases())
    if (c.name == name) return c.make();
  throw std::out_of_range(name);
}

std::vector<Problem> one_of_each() {
  std::vector<Problem> all;
  for (const Op op : kRowOps) all.push_back(make_problem(small(op)));
  all.push_back(merge_problem("merge_states.float32.3"));
  all.push_back(merge_problem("merge_attention.float32.2"));
  all.push_back(merge_problem("merge_blocks.float32.2"));
  return all;
}

const Shape kNine(9, 1), kNegative{3, -5, 4}, kBeyond{std::int64_t{1} << 31, std::int64_t{1} << 31, 8}, kOther{3, 7, 4},
    kTwo{1, 1}, kFar{std::int64_t{1} << 62, 1, 1}, kFour{4}, kEleven{11};

/// Ways to spoil one view, the code they must give, and what got must name.
struct Way {
  const char* what;
  Code code;
  Words words;
  void (*spoil)(View&);
};

const Way kWays[] = {
    {"missing", Code::shape, {"no ", "a view"}, [](View& v) { v = View(); }},
    {"an unknown dtype", Code::dtype, {"17", "float32"}, [](View& v) { v.dtype = static_cast<DType>(17); }},
    {"bool", Code::dtype, {"bool", "float64"}, [](View& v) { v.dtype = DType::boolean; }},
    {"int32", Code::dtype, {"int32", "float64"}, [](View& v) { v.dtype = DType::int32; }},
    {"rank 9", Code::shape, {"rank 9", "8", "merge axes"}, [](View& v) { v.shape = kNine, v.strides = {}; }},
    {"a negative size", Code::shape, {"-5", ">= 0"}, [](View& v) { v.shape = kNegative, v.strides = {}; }},
    {"more than 2^63 elements",
     Code::shape,
     {"2147483648", "2^63"},
     [](View& v) { v.shape = kBeyond, v.strides = {}; }},
    {"too few strides",
     Code::strides,
     {"2 strides", "one stride per axis"},
     [](View& v) { v.shape = kOther, v.strides = kTwo; }},
    {"strides beyond memory",
     Code::strides,
     {"2^63 bytes", "within memory"},
     [](View& v) { v.shape = kOther, v.strides = kFar; }},
    {"a null pointer", Code::shape, {"null pointer", "elements"}, [](View& v) { v.data = nullptr; }},
    {"a misaligned pointer",
     Code::strides,
     {"not a multiple", "aligned"},
     [](View& v) { v.data = static_cast<char*>(v.data) + 1; }},
};

TEST(RefuseOperands, EveryOperandOfEveryOperation) {
  for (Problem& p : one_of_each()) {
    Spoilt s(p);
    const std::size_t inputs = p.inputs.size(), all = inputs + p.outputs.size();
    for (std::size_t k = 0; k < all; ++k)
      for (const Way& way : kWays) {
        const std::string what =
            (k < inputs ? "input " + std::to_string(k) : "output " + std::to_string(k - inputs)) + " with " + way.what;
        s.expect(what, way.code, way.words,
                 [&](Bound& b) { way.spoil(k < inputs ? b.inputs[k] : b.outputs[k - inputs]); });
      }
  }
}

TEST(RefuseOperands, AnotherDeviceThanTheFirst) {
  for (Problem& p : one_of_each()) {
    Spoilt s(p);
    const softfold::Device other{softfold::DeviceKind::cuda, 3};
    for (std::size_t k = 1; k < p.inputs.size() + p.outputs.size(); ++k)
      s.expect("operand " + std::to_string(k) + " elsewhere", Code::device, {"device", "one device", "copy"},
               [&](Bound& b) { (k < b.inputs.size() ? b.inputs[k] : b.outputs[k - b.inputs.size()]).device = other; });
  }
}

TEST(RefuseOperands, ADeviceThatThisBuildDoesNotHave) {
  for (Problem& p : one_of_each()) {
    Bound b = bind(p);
    for (auto* views : {&b.inputs, &b.outputs})
      for (View& v : *views) v.device = {static_cast<softfold::DeviceKind>(8), 0};
    expect_refused("device kind 8", Code::unsupported, {"8", ""}, [&] { plan_of(b, p.op, p.is_merge()); });
  }
}

TEST(RefuseOperands, AnotherNumberOfThem) {
  for (Problem& p : one_of_each()) {
    Spoilt s(p);
    const Words words{" inputs and ", "input"};
    s.expect("no inputs", Code::shape, {"no inputs"}, [](Bound& b) { b.inputs.clear(); });
    s.expect("no outputs", Code::shape, words, [](Bound& b) { b.outputs.clear(); });
    s.expect("an output too many", Code::shape, words, [](Bound& b) { b.outputs.push_back(b.outputs[0]); });
    if (p.op == Op::merge_states) continue;  // takes any number up to 16
    s.expect("an input too many", Code::shape, words, [](Bound& b) { b.inputs.push_back(b.inputs[0]); });
  }
  Spoilt s(merge_problem("merge_states.float32.3"));
  s.expect("17 parts", Code::shape, {"17 inputs", "16", "several calls"},
           [](Bound& b) { b.inputs.assign(17, b.inputs[0]); });
}

TEST(RefuseOperands, AnotherShapeThanTheFirst) {
  for (Problem& p : one_of_each()) {
    Spoilt s(p);
    for (std::size_t k = 1; k < p.inputs.size() + p.outputs.size(); ++k)
      for (const Shape* shape : {&kOther, &kFour, &kEleven}) {
        std::vector<double> room(4096);
        s.expect("operand " + std::to_string(k), Code::shape, {std::to_string(shape->back())}, [&](Bound& b) {
          View& v = k < b.inputs.size() ? b.inputs[k] : b.outputs[k - b.inputs.size()];
          v = View(static_cast<void*>(room.data()), v.dtype, *shape);
        });
      }
  }
}

// An output may be exactly an input where the operation can work in place; anything else that shares memory is refused.
TEST(RefuseOperands, OutputsThatShareMemory) {
  for (Problem& p : one_of_each()) {
    Spoilt s(p);
    for (std::size_t o = 0; o < p.outputs.size(); ++o) {
      for (std::size_t k = 0; k < p.inputs.size(); ++k) {
        s.expect("output inside input " + std::to_string(k), Code::strides, {"overlaps", "memory of its own", "buffer"},
                 [&](Bound& b) {
                   // One element on, whatever the element's size: not the very same view.
                   b.outputs[o].data = static_cast<char*>(b.inputs[k].data) + size_of(b.outputs[o].dtype);
                 });
      }
      if (p.outputs[o].count() < 2 || p.op == Op::state || p.is_merge()) continue;
      const Shape zeros(p.outputs[o].shape().size(), 0);
      s.expect("an output of one element seen many times", Code::strides, {"share memory", "distinct", "contiguous"},
               [&](Bound& b) { b.outputs[o].strides = zeros; });
    }
  }
}

TEST(RefuseOperands, ResultsOfAMergeThatShareMemory) {
  Spoilt attention(merge_problem("merge_attention.float32.2"));
  attention.expect("lse inside out", Code::strides, {"overlaps"},
                   [](Bound& b) { b.outputs[1].data = static_cast<char*>(b.outputs[0].data) + 8; });
  Spoilt blocks(merge_problem("merge_blocks.float32.2"));
  blocks.expect("one buffer for two results", Code::strides, {"overlaps"},
                [](Bound& b) { b.outputs[1].data = b.outputs[0].data; });
  // In place is a part's own block; over another part's it would be read after it was written.
  blocks.expect("results over each other's parts", Code::unsupported, {"", "overwrite another block"}, [](Bound& b) {
    b.outputs[0] = b.inputs[2];
    b.outputs[1] = b.inputs[0];
  });
}

TEST(RefuseOperands, AnOutputReversedOverItsInput) {
  Spoilt s(small(Op::softmax));
  const Shape reversed{20, 4, -1};
  s.expect("reversed in place", Code::strides, {"overlaps", "in place"}, [&](Bound& b) {
    b.outputs[0] = View(static_cast<char*>(b.inputs[0].data) + 12, DType::float32, b.inputs[0].shape, reversed);
  });
  const Shape halves{20, 4, 1};
  s.expect("another dtype in place", Code::strides, {"overlaps"},
           [&](Bound& b) { b.outputs[0] = View(b.inputs[0].data, DType::float16, b.inputs[0].shape, halves); });
}

// Interleaved but disjoint memory is no overlap.
TEST(RefuseOperands, NotWhatIsInterleavedButApart) {
  std::vector<float> both(2 * 60, 1.F);
  const std::int64_t shape[] = {3, 20}, strides[] = {40, 2};
  const View in(both.data(), DType::float32, shape, strides), out(both.data() + 1, DType::float32, shape, strides);
  softfold::plan(Op::softmax, {&in, 1}, {&out, 1}).run();
  EXPECT_EQ(both[0], 1.F);
  EXPECT_NEAR(static_cast<double>(both[1]), 0.05, 1e-7);
}

TEST(RefuseOperands, GradientsOfMixedPrecision) {
  for (const Op op : {Op::softmax_backward, Op::log_softmax_backward}) {
    Spoilt s(small(op));
    std::vector<double> dy(60);
    s.expect("float64 dy with float32 y", Code::dtype, {"float64", "both float64", "convert"},
             [&](Bound& b) { b.inputs[1] = View(dy.data(), DType::float64, b.inputs[0].shape); });
  }
}

TEST(RefuseOperands, OptionsOfAnotherOperation) {
  std::vector<float> x(12), y(12);
  const std::int64_t shape[] = {3, 4};
  const View in(x.data(), DType::float32, shape), out(y.data(), DType::float32, shape);
  for (const Op op : {Op::linear_cross_entropy, Op::softmax}) {
    const std::string name(softfold::name_of(op));
    expect_refused(name, Code::unsupported, {name + " with attention options", "operations"}, [&] {
      softfold::plan(op, {&in, 1}, {&out, 1}, softfold::AttentionOptions{});
    });
    expect_refused(name, Code::unsupported, {name + " with merge options", "operations"}, [&] {
      softfold::plan(op, {&in, 1}, {&out, 1}, softfold::MergeOptions{});
    });
  }
  expect_refused("softmax", Code::unsupported, {"softmax with linear cross-entropy options", "operations"}, [&] {
    softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, softfold::LinearCrossEntropyOptions{});
  });
  expect_refused("an operation out of the list", Code::unsupported, {"99", "Op"}, [&] {
    softfold::plan(static_cast<Op>(99), {&in, 1}, {&out, 1});
  });
}

}  // namespace
}  // namespace softfold_test
