// What sample refuses, before any work.
#include "refuse/refusal.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace softfold_test {
namespace {

using softfold::Distribution;
using softfold::FilterOrder;
using softfold::SampleOptions;

TEST(RefuseSample, WhatItCannotDo) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::sample;
  p.own = SampleOptions{};
  p.outputs.clear();
  p.outputs.emplace_back(DType::int64, Shape{4});
  Spoilt s(std::move(p));
  std::vector<std::int64_t> room(64);
  std::vector<float> numbers{1, 1, 1, -1};
  const Shape four{4}, three{3}, words{4, 2}, word{4, 1}, one{1};
  const auto with = [&](const std::string& what, Code code, const Words& expected, auto&& change) {
    s.expect(what, code, expected, [&](Bound& b) { change(std::get<SampleOptions>(b.own)); });
  };
  with("temperature", Code::option, {"temperature -1", "0"}, [](SampleOptions& o) { o.temperature = -1; });
  with("NaN", Code::option, {"temperature", "finite"}, [](SampleOptions& o) { o.temperature = NAN; });
  with("top_p", Code::option, {"top_p 1.5", "0 .. 1"}, [](SampleOptions& o) { o.top_p = 1.5; });
  with("min_p", Code::option, {"min_p", "0 .. 1"}, [](SampleOptions& o) { o.min_p = -0.1; });
  with("top_k", Code::option, {"top_k -1", "0 (all)"}, [](SampleOptions& o) { o.top_k = -1; });
  with("order", Code::option, {"order number 9"}, [](SampleOptions& o) { o.order = static_cast<FilterOrder>(9); });
  with("of", Code::option, {"distribution number 9"}, [](SampleOptions& o) { o.of = static_cast<Distribution>(9); });
  with("temperatures of a row", Code::data, {"temperature -1 for row 3"},
       [&](SampleOptions& o) { o.temperatures = View(numbers.data(), DType::float32, four); });
  with("top_ps of a row", Code::data, {"top_p -1 for row 3", "0 .. 1"},
       [&](SampleOptions& o) { o.top_ps = View(numbers.data(), DType::float32, four); });
  with("temperatures of int64", Code::dtype, {"temperatures of dtype int64", "float32, float64"},
       [&](SampleOptions& o) { o.temperatures = View(room.data(), DType::int64, four); });
  with("seeds of another shape", Code::shape, {"seeds of shape [3]", "one value a row"},
       [&](SampleOptions& o) { o.seeds = View(room.data(), DType::int64, three); });
  with("a bitmask of too many words", Code::shape, {"bitmask of shape [4, 2]", "1 along the axis"},
       [&](SampleOptions& o) { o.bitmask = View(room.data(), DType::int32, words); });
  with("a bitmask of int64", Code::dtype, {"bitmask of dtype int64", "int32"},
       [&](SampleOptions& o) { o.bitmask = View(room.data(), DType::int64, word); });
  with("rank of float32", Code::dtype, {"rank of dtype float32", "int32, int64"},
       [&](SampleOptions& o) { o.rank = View(room.data(), DType::float32, four); });
  const Shape five{4, 5}, seven{4, 7};
  with("top_tokens alone", Code::option, {"one of top_tokens and top_log_probabilities", "both"},
       [&](SampleOptions& o) { o.top_tokens = View(room.data(), DType::int64, five); });
  std::vector<float> more(64);
  with("more top_tokens than elements", Code::shape, {"top_tokens for 7 of rows of 6", "0 to 6"},
       [&](SampleOptions& o) {
         o.top_tokens = View(room.data(), DType::int64, seven);
         o.top_log_probabilities = View(more.data(), DType::float32, seven);
       });
  with("another number of top_log_probabilities", Code::shape, {"top_log_probabilities of shape [4, 7]", "5 along"},
       [&](SampleOptions& o) {
         o.top_tokens = View(room.data(), DType::int64, five);
         o.top_log_probabilities = View(more.data(), DType::float32, seven);
       });
  s.expect("a negative scale", Code::option, {"scale -1", "positive"}, [](Bound& b) { b.rows.scale = -1; });
  s.expect("a rung", Code::unsupported, {"rung"}, [](Bound& b) { b.rows.rung = softfold::Rung::safe; });
  s.expect("tokens of float32", Code::dtype, {"tokens of dtype float32"},
           [&](Bound& b) { b.outputs[0] = View(room.data(), DType::float32, four); });
  s.expect("tokens over x", Code::strides, {"tokens overlaps x"},
           [&](Bound& b) { b.outputs[0] = View(b.inputs[0].data, DType::int32, four); });
  s.expect("float64", Code::dtype, {"x of dtype float64"},
           [&](Bound& b) { b.inputs[0] = View(room.data(), DType::float64, b.inputs[0].shape); });
  const std::int64_t many[] = {1, std::int64_t{1} << 31}, vast[] = {1, (std::int64_t{1} << 27) + 1};
  float few[4] = {};  // a plan reads no element
  std::int32_t narrow[1] = {};
  const auto plan = [&](const std::int64_t(&shape)[2], const SampleOptions& o) {
    const View x(static_cast<const void*>(few), DType::float32, shape), out(room.data(), DType::int64, one);
    softfold::plan(Op::sample, {&x, 1}, {&out, 1}, o);
  };
  SampleOptions o;
  o.rank = View(narrow, DType::int32, one);
  expect_refused("an int32 rank of 2^31", Code::dtype, {"int32 rank", "int64"}, [&] { plan(many, o); });
  o = {};
  o.top_p = 0.5;
  expect_refused("top_p of long rows", Code::shape, {"top_p of rows", "134217728"}, [&] { plan(vast, o); });
}

}  // namespace
}  // namespace softfold_test
