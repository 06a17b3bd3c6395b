// cross-entropy: the library's loss and log-probabilities, in blocks of any size.
#include "cli/support.hpp"

#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

TEST_F(CommandTest, CrossEntropyHasTheLibrarysBitsInBlocksOfAnySize) {
  using softfold::View;
  const Shape shape{3000, 4001}, rows{3000}, one{};
  const auto x = random_elements(DType::float32, 3000 * 4001, 2);
  std::vector<std::int64_t> targets(3000);
  for (std::size_t r = 0; r < targets.size(); ++r) targets[r] = r % 7 == 3 ? -100 : static_cast<std::int64_t>(r);
  write_array(at("x.npy"), DType::float32, shape, x);
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  std::vector<float> lp(3000);
  double mean = 0;
  softfold::CrossEntropyOptions o;
  o.label_smoothing = 0.1;
  o.log_probability = View(lp.data(), DType::float32, rows);
  softfold::cross_entropy(View(x.data(), DType::float32, shape), View(targets.data(), DType::int64, rows),
                          View(&mean, DType::float64, one), o);
  for (const std::string memory : {"32M", "1G"}) {
    const auto told = nlohmann::json::parse(expect_ok(
        {"cross-entropy", "@x.npy", "@t.npy", "@lp.npy", "--json", "--label-smoothing", "0.1", "--memory", memory}));
    EXPECT_EQ(told["mean"].get<double>(), mean);
    EXPECT_EQ(told["counted"].get<int>(), 3000 - 429);
    const auto bytes = std::as_bytes(std::span(lp));
    EXPECT_EQ(elements_of(softfold::io::open_array(at("lp.npy"))), std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  EXPECT_NE(expect_ok({"cross-entropy", "@x.npy", "@t.npy", "@lp.npy"}).find("-> " + at("lp.npy")), std::string::npos);
  targets.assign(targets.size(), -100);
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  EXPECT_NE(run({"cross-entropy", "@x.npy", "@t.npy"}).err.find("no row counts"), std::string::npos);
  targets[5] = 4001;
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  expect_refused(Code::data, "target 4001", {"cross-entropy", "@x.npy", "@t.npy"});
  expect_refused(Code::dtype, "int32, int64", {"cross-entropy", "@x.npy", "@x.npy"});
}

TEST_F(CommandTest, LinearCrossEntropyHasTheLibrarysBits) {
  using softfold::View;
  const Shape rows{5, 7}, shape{5, 7, 33}, wide{301, 33}, classes{301}, one{};
  const auto x = random_elements(DType::float32, 35 * 33, 1), w = random_elements(DType::float32, 301 * 33, 1, 2),
             b = random_elements(DType::float32, 301, 1, 3);
  std::vector<std::int64_t> targets(35);
  for (std::size_t r = 0; r < targets.size(); ++r) targets[r] = r % 7 == 3 ? -100 : static_cast<std::int64_t>(8 * r);
  write_array(at("x.npy"), DType::float32, shape, x);
  write_array(at("w.npy"), DType::float32, wide, w);
  write_array(at("b.npy"), DType::float32, classes, b);
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  std::vector<float> dx(35 * 33), dw(301 * 33), db(301), lp(35);
  double mean = 0;
  softfold::LinearCrossEntropyOptions o;
  o.softcap = 2;
  o.bias = View(b.data(), DType::float32, classes);
  o.dx = View(dx.data(), DType::float32, shape);
  o.dweight = View(dw.data(), DType::float32, wide);
  o.dbias = View(db.data(), DType::float32, classes);
  o.loss.log_probability = View(lp.data(), DType::float32, rows);
  softfold::linear_cross_entropy(View(x.data(), DType::float32, shape), View(w.data(), DType::float32, wide),
                                 View(targets.data(), DType::int64, rows), View(&mean, DType::float64, one), o);
  const Words words{"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--bias", "@b.npy", "--softcap", "2"};
  Words all = words;
  for (const char* name : {"dx", "dweight", "dbias", "log-probability"})
    all.push_back(std::string("--") + name), all.push_back(std::string("@") + name + ".npy");
  all.push_back("--json");
  const auto told = nlohmann::json::parse(expect_ok(all));
  EXPECT_EQ(told["mean"].get<double>(), mean);
  EXPECT_EQ(told["counted"].get<int>(), 30);
  const auto same = [&](const char* name, const std::vector<float>& expected) {
    const auto bytes = std::as_bytes(std::span(expected));
    EXPECT_EQ(elements_of(softfold::io::open_array(at(name))), std::vector<std::byte>(bytes.begin(), bytes.end()))
        << name;
  };
  same("dx.npy", dx), same("dweight.npy", dw), same("dbias.npy", db), same("log-probability.npy", lp);

  expect_refused(Code::option, "--dbias", {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--dbias", "@no.npy"});
  expect_refused(Code::option, "mode", {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--mode", "slow"});
  expect_refused(Code::option, "two outputs",
                 {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--dx", "@no.npy", "--dweight", "@no.npy"});
  write_array(at("t.npy"), DType::int64, Shape{35}, std::as_bytes(std::span(targets)));
  expect_refused(Code::shape, "TARGETS", {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy"});
  targets[5] = 301;
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  expect_refused(Code::data, "301", {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--dx", "@no.npy"});
  EXPECT_FALSE(std::filesystem::exists(at("no.npy")));
}

TEST_F(CommandTest, EntropyAndDivergenceHaveTheLibrarysBitsInBlocksOfAnySize) {
  using softfold::View;
  const Shape shape{1500, 4001}, rows{1500};
  const auto p = random_elements(DType::float32, 1500 * 4001, 2),
             q = random_elements(DType::bfloat16, 1500 * 4001, 2, 2);
  write_array(at("p.npy"), DType::float32, shape, p);
  write_array(at("q.npy"), DType::bfloat16, shape, q);
  std::vector<float> entropy(1500), kl(1500);
  const View p_view(p.data(), DType::float32, shape), q_view(q.data(), DType::bfloat16, shape);
  softfold::EntropyOptions halved;
  halved.rows.scale = 0.5;
  softfold::entropy(p_view, View(entropy.data(), DType::float32, rows), halved);
  softfold::kl_divergence(p_view, q_view, View(kl.data(), DType::float32, rows));
  const auto same = [&](const std::vector<float>& expected) {
    const auto bytes = std::as_bytes(std::span(expected));
    EXPECT_EQ(elements_of(softfold::io::open_array(at("out.npy"))), std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  for (const std::string memory : {"32M", "1G"}) {
    expect_ok({"entropy", "@p.npy", "@out.npy", "--scale", "0.5", "--memory", memory});
    same(entropy);
    expect_ok({"kl-divergence", "@p.npy", "@q.npy", "@out.npy", "--q-as", "bf16", "--memory", memory});
    same(kl);
  }
  if (!kSanitized) {  // Short rows: what is held of them counts too.
    write_array(at("p.npy"), DType::float32, Shape{1500 * 4001, 1}, p);
    const Result short_rows = run({"entropy", "@p.npy", "@out.npy", "--memory", "32M"});
    EXPECT_EQ(short_rows.status, 0) << short_rows.err;
    EXPECT_TRUE(short_rows.peak_rss < 60 << 20) << short_rows.peak_rss;
  }
  write_array(at("q.npy"), DType::float32, Shape{4001, 1500}, p);
  expect_refused(Code::shape, "Q of shape", {"kl-divergence", "@p.npy", "@q.npy", "@no.npy"});
  EXPECT_FALSE(std::filesystem::exists(at("no.npy")));
}

/// Logits whose loss takes a while, and targets.
class LongLoss : public CommandTest {
 protected:
  static constexpr std::int64_t kRows = 2000, kClasses = 10000;

  void SetUp() override {
    write_array(at("x.npy"), DType::float32, {kRows, kClasses}, random_elements(DType::float32, kRows * kClasses, 2));
    write_targets();
  }
  void write_targets() { write_array(at("t.npy"), DType::int64, {kRows}, std::as_bytes(std::span(targets_))); }

  std::vector<std::int64_t> targets_ = std::vector<std::int64_t>(kRows, 1);
};

TEST_F(LongLoss, TheRowOfABadTargetIsCountedInTheFileAndRefusedBeforeAnyWork) {
  targets_.back() = kClasses;
  write_targets();
  const Words words{"cross-entropy", "@x.npy", "@t.npy"};
  expect_refused(Code::data, "target 10000 for row 1999\n", words);
  EXPECT_TRUE(kSanitized || run(words).peak_rss < 30 << 20) << "logits were read";
}

TEST_F(LongLoss, AnOutputThatCannotBeIsRefusedBeforeAnyWork) {
  targets_.back() = -100;
  write_targets();
  for (const char* out : {"@no/lp.npy", "@t.npy", "@lp.txt"}) {
    const Result result = run({"cross-entropy", "@x.npy", "@t.npy", out});
    EXPECT_NE(result.status, 0) << out;
    EXPECT_TRUE(kSanitized || result.peak_rss < 30 << 20) << "logits were read: " << result.peak_rss;
  }
}

TEST_F(LongLoss, TargetsThatChangeMeanwhileAreRefused) {
  const Result result = run_while({"cross-entropy", "@x.npy", "@t.npy", "@lp.npy", "--threads", "1"}, [&] {
    std::filesystem::last_write_time(at("t.npy"), std::filesystem::file_time_type::clock::now());
  });
  EXPECT_EQ(result.status, static_cast<int>(Code::file)) << result.err;
  EXPECT_NE(result.err.find("t.npy', which was written to"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(at("lp.npy")));
}

class LinearLoss : public CommandTest {
 protected:
  void SetUp() override {
    constexpr std::int64_t kRows = 500 / kShorter;
    write_array(at("x.npy"), DType::float32, {kRows, 256}, random_elements(DType::float32, kRows * 256, 1));
    write_array(at("w.npy"), DType::float32, {4000, 256}, random_elements(DType::float32, 4000 * 256, 1, 2));
    const std::vector<std::int64_t> targets(kRows, 1);
    write_array(at("t.npy"), DType::int64, {kRows}, std::as_bytes(std::span(targets)));
  }
};

TEST_F(LinearLoss, ABiasMayBeOneOfSeveralTensors) {
  const std::vector<softfold::io::TensorSpec> tensors{{"lm.bias", DType::float32, {4000}},
                                                      {"lm.other", DType::float32, {1}}};
  auto file = softfold::io::create_safetensors(at("b.safetensors"), tensors);
  const auto b = random_elements(DType::float32, 4000, 1, 3);
  file.write(0, b, 0);
  file.write(0, std::span(b).first(4), 1);
  file.commit();
  write_array(at("b.npy"), DType::float32, {4000}, b);
  Words words{"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--bias", "@b.npy", "--json"};
  const auto mean = nlohmann::json::parse(expect_ok(words))["mean"];
  words[5] = "@b.safetensors:lm.bias";
  EXPECT_EQ(nlohmann::json::parse(expect_ok(words))["mean"], mean);
  words[5] = "@b.safetensors";
  expect_refused(Code::option, "b.safetensors:lm.bias", words);
}

// Each file appears whole; of several, what stands is said.
TEST_F(LinearLoss, OfSeveralOutputsItIsSaidWhichStand) {
  const Result result = run_while(
      {"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy", "--dx", "@a.npy", "--dweight", "@b.npy", "--threads", "1"},
      [&] { std::filesystem::create_directory(at("b.npy")); }, 2);
  EXPECT_EQ(result.status, static_cast<int>(Code::io)) << result.err;
  EXPECT_NE(result.err.find("a.npy' stand"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace softfold_test
