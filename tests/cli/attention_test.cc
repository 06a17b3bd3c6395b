// softfold attention: the library's result from files; and the ladder's memory.
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

  std::vector<float> q_, k_, v_;
};

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

TEST_F(AttentionVerb, RefusesAndLeavesNothing) {
  const auto before = entries();
  expect_refused(Code::shape, "one D", {"attention", "@q.npy", "@v.npy", "@k.npy", "@out.npy"});
  expect_refused(Code::option, "layout", {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--layout", "thd"});
  expect_refused(Code::unsupported, "another rung",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--rung", "safe", "--softcap", "3"});
  expect_refused(Code::option, "causal",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--causal", "--right", "2"});
  for (const Words& more : {Words{"--bias", "@out.npy"}, Words{"--lse", "@out.npy"},
                            Words{"--lse", "@bias.npy", "--bias", "@bias.npy"}, Words{"--lse", "@none/lse.npy"}}) {
    Words words{"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_NE(run(words).status, 0) << more[0] << more[1];
  }
  expect_refused(Code::option, "2^-60", {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--softcap", "1e-50"});
  expect_refused(Code::option, "leave out --check",
                 {"attention", "@q.npy", "@k.npy", "@v.npy", "@out.npy", "--softcap", "2", "--check"});
  expect_refused(Code::file, "none.npy", {"attention", "@q.npy", "@none.npy", "@v.npy", "@out.npy"});
  EXPECT_EQ(entries(), before);
}

TEST_F(AttentionVerb, IsExplained) {
  const std::string text = expect_ok({"explain", "attention", "2x8x100x64", "bf16", "--kv-heads", "2", "--keys", "50"});
  EXPECT_NE(text.find("attention_fused"), std::string::npos);
  EXPECT_NE(text.find("96 rows x 64 keys"), std::string::npos);
  expect_refused(Code::shape, "BxHxTxD", {"explain", "attention", "4x8", "f32"});
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

}  // namespace
}  // namespace softfold_test
