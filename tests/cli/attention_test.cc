// softfold attention: the library's result from files; and the ladder's memory.
#include "support/attention.hpp"
#include "cli/support.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

using namespace softfold;
using Json = nlohmann::json;

class AttentionVerb : public CommandTest {
 protected:
  static constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kQueries = 9, kKeys = 70, kDim = 8, kValueDim = 5;

  std::vector<float> write(const std::string& name, const Shape& shape, std::uint64_t seed) {
    std::int64_t count = 1;
    for (const auto n : shape) count *= n;
    const auto bytes = random_elements(DType::float32, count, 2, seed);
    write_array(at(name), DType::float32, shape, bytes);
    std::vector<float> x(static_cast<std::size_t>(count));
    std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
  }
  void SetUp() override {
    q_ = write("q.npy", {kHeads, kQueries, kDim}, 1);
    k_ = write("k.npy", {kKeyHeads, kKeys, kDim}, 2);
    v_ = write("v.npy", {kKeyHeads, kKeys, kValueDim}, 3);
  }
  std::vector<float> read(const std::string& name, const Shape& shape) const {
    const io::ArrayFile file = io::open_array(at(name));
    EXPECT_EQ(Shape(file.shape().begin(), file.shape().end()), shape);
    std::vector<float> x(file.bytes() / 4);
    file.read(0, std::as_writable_bytes(std::span(x)));
    return x;
  }

  /// Writes the array to NAME.npy; gives the words of the option of that name.
  Words written(const std::string& name, const Array& array) {
    if (array.bytes().empty()) return {};
    const auto bytes = array.elements();
    write_array(at(name + ".npy"), array.dtype(), array.shape(), std::as_bytes(std::span(bytes)));
    return {"--" + name, "@" + name + ".npy"};
  }
  /// Runs `attention` on the tensors of a case, in files; it must write the library's out, lse and state, and be as
  /// near to the reference.
  void expect_the_librarys(const AttentionCase& c, const Words& more) {
    AttentionData a(c);
    a.run();
    Words words{"attention"};
    for (const auto& [name, tensor] : {std::pair{"q", &a.q}, std::pair{"k", &a.k}, std::pair{"v", &a.v}})
      words.push_back(written(name, *tensor).at(1));
    words.insert(words.end(), {"@out.npy", "--lse", "@lse.npy", "--state", "@state.npy", "--check", "--json"});
    for (const auto& [name, operand] : {std::pair{"sink", &a.sink},
                                        {"slopes", &a.slopes},
                                        {"mask", &a.mask},
                                        {"bias", &a.bias},
                                        {"lengths", &a.lengths},
                                        {"starts", &a.starts},
                                        {"index", &a.index},
                                        {"q-offsets", &a.q_offsets},
                                        {"kv-offsets", &a.kv_offsets}}) {
      const Words option = written(name, *operand);
      words.insert(words.end(), option.begin(), option.end());
    }
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_LT(Json::parse(expect_ok(words)).at("largest_error"), 1e-5);
    for (const auto& [name, result] : {std::pair{"out", &a.out}, {"lse", &a.lse}, {"state", &a.state}}) {
      const io::ArrayFile file = io::open_array(at(std::string(name) + ".npy"));
      EXPECT_EQ(shape_of(file), result->shape()) << name;
      const auto right = result->elements();
      EXPECT_TRUE(std::ranges::equal(elements_of(file), std::as_bytes(std::span(right)))) << name;
    }
  }

  std::vector<float> q_, k_, v_;
};

TEST_F(AttentionVerb, TakesEveryOptionOfTheLibrary) {
  AttentionCase dense;
  dense.layout = softfold::Layout::bthd;
  dense.batch = 3, dense.heads = 4, dense.kv_heads = 2, dense.queries = 5, dense.keys = 33;
  dense.d = 11, dense.dv = 3;
  dense.causal = dense.sink = dense.slopes_batched = dense.mask = dense.bias = dense.lengths = dense.starts =
      dense.index = true;
  dense.window.left = 20, dense.softcap = 3, dense.scale = 0.5;
  expect_the_librarys(dense, {"--layout", "bthd", "--causal", "--left", "20", "--softcap", "3", "--scale", "0.5"});
  AttentionCase packed;
  packed.heads = 4, packed.kv_heads = 2, packed.q_lengths = {3, 0, 7}, packed.kv_lengths = {20, 5, 11};
  packed.sink = packed.slopes = packed.mask = packed.bias = packed.lengths = packed.starts = true;
  packed.window.right = 2;
  expect_the_librarys(packed, {"--right", "2"});
  packed.layout = softfold::Layout::bthd;
  expect_the_librarys(packed, {"--right", "2", "--layout", "bthd"});
}

TEST_F(AttentionVerb, OperandsAreFilesTensorsOrNumbers) {
  const Words start{"attention", "@q.npy", "@k.npy", "@v.npy"};
  const auto out_of = [&](const Words& more) {
    Words words = start;
    words.insert(words.end(), {"@out.npy"});
    words.insert(words.end(), more.begin(), more.end());
    expect_ok(words);
    return contents(at("out.npy"));
  };
  Array sink(DType::float32, {kHeads}), lengths(DType::int64, {1});
  for (std::int64_t h = 0; h < kHeads; ++h) sink.set_value(h, 0.5 * static_cast<double>(h) - 1);
  lengths.set(0, std::int64_t{40});
  const Words numbers{"--sink", "-1,-0.5,0,0.5", "--lengths", "40"};
  Words files = written("sink", sink), more = written("lengths", lengths);
  files.insert(files.end(), more.begin(), more.end());
  const auto bytes = sink.elements();
  write_array(at("sink.safetensors"), DType::float32, {kHeads}, std::as_bytes(std::span(bytes)));
  const std::string whole = out_of({});
  EXPECT_NE(out_of(numbers), whole);
  EXPECT_EQ(out_of(files), out_of(numbers));
  EXPECT_EQ(out_of({"--sink", "@sink.safetensors:x", "--lengths", "40"}), out_of(numbers));
  expect_refused(Code::option, "sink.safetensors:x",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--sink", "@sink.safetensors:y"});
}

TEST_F(AttentionVerb, TokensOfNoSequenceSeeNothing) {
  expect_ok({"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--lse", "@lse.npy", "--state", "@state.npy",
             "--q-offsets", "2,2,7", "--kv-offsets", "0,9,30", "--check"});
  const auto out = read("out.npy", {kHeads, kQueries, kValueDim}), lse = read("lse.npy", {kHeads, kQueries}),
             state = read("state.npy", {kHeads, kQueries, kValueDim + 2});
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t i = 0; i < kQueries; ++i) {
      const std::size_t row = h * kQueries + i;
      EXPECT_EQ(lse[row] > -1e30f, i >= 2 && i < 7) << i;
      EXPECT_EQ(state[row * (kValueDim + 2)] > -1e30f, i >= 2 && i < 7) << i;
      if (i < 2 || i >= 7) {
        EXPECT_EQ(out[row * kValueDim], 0) << i;
        EXPECT_EQ(state[row * (kValueDim + 2) + 1], 0) << i;
      }
    }
}

TEST_F(AttentionVerb, IsTheLibrarysResult) {
  const auto report = Json::parse(expect_ok({"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--causal",
                                             "--left", "20", "--lse", "@lse.npy", "--check", "--json"}));
  EXPECT_LT(report.at("largest_error"), 1e-5);
  EXPECT_EQ(report.at("kernel"), "attention_fused");
  EXPECT_EQ(report.at("score_bytes"), 4. * kHeads * kQueries * kKeys);

  std::vector<float> out(kHeads * kQueries * kValueDim), lse(kHeads * kQueries);
  const Shape q{kHeads, kQueries, kDim}, k{kKeyHeads, kKeys, kDim}, v{kKeyHeads, kKeys, kValueDim},
      y{kHeads, kQueries, kValueDim}, rows{kHeads, kQueries};
  AttentionOptions options;
  options.causal = true;
  options.window.left = 20;
  options.lse = View(lse.data(), DType::float32, rows);
  const auto in = [](const std::vector<float>& x, const Shape& s) { return View(x.data(), DType::float32, s); };
  attention(in(q_, q), in(k_, k), in(v_, v), View(out.data(), DType::float32, y), options);
  EXPECT_EQ(read("out.npy", y), out);
  EXPECT_EQ(read("lse.npy", rows), lse);
}

/// Small operands without keys may ask for a result that no memory has, or no file.
TEST_F(AttentionVerb, RefusesResultsThatNoArrayHolds) {
  write_array(at("no_keys.npy"), DType::float32, {kKeyHeads, 0, kDim}, {});
  write_array(at("wide.npy"), DType::float32, {kKeyHeads, 0, std::int64_t{1} << 59}, {});
  expect_refused(Code::shape, "result of shape (4, 9, 576460752303423488)",
                 {"attention", "@q.npy", "@no_keys.npy", "@wide.npy", "@out.npy"});
}

TEST_F(AttentionVerb, RefusesAndLeavesNothing) {
  const auto before = entries();
  expect_refused(Code::shape, "one D", {"attention", "@q.npy", "@v.npy", "@k.npy", "@out.npy"});
  expect_refused(Code::option, "layout", {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--layout", "thd"});
  expect_refused(Code::unsupported, "another rung",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--rung", "safe", "--softcap", "3"});
  expect_refused(Code::option, "causal",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--causal", "--right", "2"});
  for (const Words& more : {Words{"--bias", "@out.npy"}, Words{"--lse", "@out.npy"}, Words{"--state", "@out.npy"},
                            Words{"--lse", "@none/lse.npy"}}) {
    Words words{"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_NE(run(words).status, 0) << more[0] << more[1];
  }
  expect_refused(Code::option, "2^-60", {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--softcap", "1e-50"});
  expect_refused(Code::file, "none.npy", {"attention", "@q.npy", "@none.npy", "@v.npy", "@out.npy"});
  EXPECT_EQ(entries(), before);
}

TEST_F(AttentionVerb, RefusesOperandsBeforeAnyWork) {
  const auto zeros = [](DType t, Shape shape) {
    Array a(t, std::move(shape));
    for (std::int64_t i = 0; i < a.count(); ++i) a.set_value(i, 0);
    return a;
  };
  const Words operands{"sink", "slopes", "bias", "mask", "lengths", "starts", "index"};
  for (const std::string& name : operands)
    written(name, name == "sink" || name == "slopes" ? zeros(DType::float32, {kHeads})
                  : name == "bias"                   ? zeros(DType::float32, {1})
                  : name == "mask"                   ? zeros(DType::boolean, {1})
                                                     : zeros(DType::int64, {1}));
  written("wide", zeros(DType::float64, {kHeads}));
  const auto before = entries();
  const auto refused = [&](Code code, const std::string& part, const Words& more) {
    Words words{"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(code, part, words);
  };
  refused(Code::option, "scale nan", {"--scale", "nan"});
  refused(Code::option, "'x' in --lengths", {"--lengths", "1,x"});
  refused(Code::option, "whole numbers", {"--starts", "1.5"});
  refused(Code::file, "none.npy", {"--index", "@none.npy"});
  refused(Code::data, "--lengths[0] = 71", {"--lengths", "71"});
  refused(Code::data, "--starts[0] = 9", {"--lengths", "8", "--starts", "9"});
  refused(Code::data, "--index[0] = 1", {"--index", "1"});
  refused(Code::shape, "[4]", {"--sink", "1,2"});
  refused(Code::dtype, "float32", {"--slopes", "@wide.npy"});
  refused(Code::dtype, "bool", {"--mask", "@q.npy"});
  refused(Code::option, "both of them", {"--q-offsets", "0,9"});
  refused(Code::data, "--q-offsets[1] = 10", {"--q-offsets", "0,10", "--kv-offsets", "0,70"});
  refused(Code::data, "--kv-offsets[1] = 3", {"--q-offsets", "0,1,9", "--kv-offsets", "5,3,70"});
  refused(Code::option, "Varlen", {"--q-offsets", "0,9", "--kv-offsets", "0,70", "--index", "0"});
  refused(Code::usage, "try: --q-offsets", {"--cu-seqlens-q", "0,9"});
  refused(Code::usage, "try: --lengths", {"--seqused-k", "9"});
  for (const std::string& name : operands)
    for (const std::string result : {"--lse", "--state"})
      refused(Code::option, name + ".npy', the same file",
              {"--" + name, "@" + name + ".npy", result, "@" + name + ".npy"});
  EXPECT_EQ(entries(), before);
}

TEST_F(AttentionVerb, IsExplained) {
  const std::string text = expect_ok({"explain", "attention", "2x8x100x64", "bf16", "--kv-heads", "2", "--keys", "50"});
  EXPECT_NE(text.find("attention_fused"), std::string::npos);
  EXPECT_NE(text.find("96 rows x 64 keys"), std::string::npos);
  expect_refused(Code::shape, "BxHxTxD", {"explain", "attention", "4x8", "f32"});
  const Words all{"explain",
                  "attention",
                  "2x100x8x64",
                  "f32",
                  "--layout",
                  "bthd",
                  "--kv-heads",
                  "2",
                  "--keys",
                  "50",
                  "--dv",
                  "32",
                  "--causal",
                  "--left",
                  "9",
                  "--softcap",
                  "5",
                  "--sink",
                  "0,0,0,0,1,1,1,1",
                  "--mask",
                  "2x1x100x50",
                  "--bias",
                  "100x1",
                  "--lengths",
                  "50,3",
                  "--starts",
                  "1,2",
                  "--index",
                  "7,1",
                  "--scale",
                  "2"};
  EXPECT_NE(expect_ok(all).find("attention_fused"), std::string::npos);
  EXPECT_NE(expect_ok({"explain", "attention", "8x100x64", "f32", "--q-offsets", "0,40,100", "--kv-offsets", "0,1,2"})
                .find("attention_fused"),
            std::string::npos);
  expect_refused(Code::shape, "mask", {"explain", "attention", "1x2x8x16", "f32", "--mask", "9x8"});
  expect_refused(Code::data, "got --lengths[0] = 9", {"explain", "attention", "1x2x8x16", "f32", "--lengths", "9"});
  expect_refused(Code::option, "--axis for attention", {"explain", "attention", "1x2x8x16", "f32", "--axis", "-1"});
  for (const Words& more :
       {Words{"--keys", "5"}, Words{"--kv-heads", "1"}, Words{"--dv", "0"}, Words{"--left", "-1"},
        Words{"--softcap", "0"}, Words{"--layout", "bhtd"}, Words{"--sink", "0"}, Words{"--kv-offsets", "0"}}) {
    Words words{"explain", "softmax", "4x8", "f32"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(Code::option, more[0] + " for softmax", words);
  }
  expect_refused(Code::option, "--dtype for state", {"explain", "state", "4x8", "f32", "--dtype", "f16"});
}

TEST_F(AttentionVerb, TheLadderMeasuresMemory) {
  const auto records = Json::parse(expect_ok({"bench", "ladder", "--op", "attention", "--n", "1536", "--d", "16",
                                              "--seconds", "0", "--threads", "1", "--json"}));
  ASSERT_EQ(records.size(), 6u);
  const double scores = 4. * 1536 * 1536;
  for (const auto& r : records) {
    const std::string who = r.at("who");
    const bool holds_all = who.ends_with("naive") || who.ends_with("safe");
    if (holds_all) {
      EXPECT_GT(r.at("memory_bytes"), 0.9 * scores) << who;
    } else {
      EXPECT_TRUE(kSanitized || r.at("memory_bytes") < 0.9 * scores) << who << ": " << r.at("memory_bytes");
    }
    EXPECT_GT(r.at("ms"), 0) << who;
  }
}

TEST_F(AttentionVerb, InputsThatChangeMeanwhileAreRefused) {
  write("x.npy", {10 / kShorter, 1500, 64}, 1);
  const std::vector<float> bias(1500);
  write_array(at("bias.npy"), DType::float32, {1, 1500}, std::as_bytes(std::span(bias)));
  for (const std::string changed : {"x.npy", "bias.npy"}) {
    const Result result = run_while(
        {"attention", "@x.npy", "@x.npy", "@x.npy", "@y.npy", "--bias", "@bias.npy", "--threads", "1"},
        [&] { std::filesystem::last_write_time(at(changed), std::filesystem::file_time_type::clock::now()); });
    EXPECT_EQ(result.status, static_cast<int>(Code::file)) << result.err;
    EXPECT_NE(result.err.find(changed + "', which was written to"), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(at("y.npy")));
  }
}

}  // namespace
}  // namespace softfold_test
