// The verbs that consume a row's state on real scores: six layers of MiniLM, as ./run shows them.
#include "cli/support.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>

namespace softfold_test {
namespace {

class RealScores : public CommandTest {
 protected:
  static constexpr std::int64_t kRows = 6 * 12 * 128, kN = 128;
  static constexpr std::size_t kK = 5;

  void SetUp() override {
    const std::string make = std::string(SOFTFOLD_SCORES) + " " + SOFTFOLD_QKV + " " + at("scores.npy") + " >/dev/null";
    ASSERT_EQ(std::system(make.c_str()), 0);
    ASSERT_EQ(shape_of(softfold::io::open_array(at("scores.npy"))), (Shape{6, 12, 128, kN}));
    scores = numbers<float>("scores.npy");
  }
  template <class T>
  std::vector<T> numbers(const char* name) const {
    const auto bytes = elements_of(softfold::io::open_array(at(name)));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  double score(std::int64_t row, std::int64_t i) const { return scores[static_cast<std::size_t>(row * kN + i)]; }
  /// In double, as the textbook has it.
  std::vector<double> probabilities(std::int64_t row) const {
    std::vector<double> p(kN);
    double most = -HUGE_VAL, sum = 0.;
    for (std::int64_t i = 0; i < kN; ++i) most = std::fmax(most, score(row, i));
    for (std::int64_t i = 0; i < kN; ++i) sum += p[static_cast<std::size_t>(i)] = std::exp(score(row, i) - most);
    for (double& each : p) each /= sum;
    return p;
  }

  std::vector<float> scores;
};

TEST_F(RealScores, TheLargestAndWhatIsDrawn) {
  expect_ok({"topk", "@scores.npy", "@p.npy", "@i.npy", "-k", "5", "--probabilities"});
  expect_ok({"sample", "@scores.npy", "@greedy.npy", "--temperature", "0"});
  expect_ok({"sample", "@scores.npy", "@drawn.npy", "@lp.npy", "--top-k", "5", "--top-p", "0.9", "--seed", "7"});
  const auto p = numbers<float>("p.npy"), lp = numbers<float>("lp.npy");
  const auto largest = numbers<std::int64_t>("i.npy"), greedy = numbers<std::int64_t>("greedy.npy"),
             drawn = numbers<std::int64_t>("drawn.npy");
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const std::vector<double> exact = probabilities(row);
    EXPECT_EQ(greedy[r], largest[r * kK]);
    bool found = false;
    for (std::size_t j = 0; j < kK; ++j) {
      const std::int64_t at = largest[r * kK + j];
      ASSERT_NEAR(p[r * kK + j], exact[static_cast<std::size_t>(at)], 1e-6) << row;
      ASSERT_GE(score(row, largest[r * kK + (j > 0 ? j - 1 : 0)]), score(row, at)) << row;
      found |= drawn[r] == at;
    }
    ASSERT_TRUE(found) << row << ": " << drawn[r];
    ASSERT_NEAR(lp[r], std::log(exact[static_cast<std::size_t>(drawn[r])]), 1e-5) << row;
  }
}

TEST_F(RealScores, LossEntropyAndDivergence) {
  expect_ok({"topk", "@scores.npy", "@v.npy", "@targets.npy"});
  expect_ok({"softmax", "@scores.npy", "@p.npy"});
  expect_ok({"entropy", "@scores.npy", "@h.npy"});
  expect_ok({"kl-divergence", "@scores.npy", "@scores.npy", "@kl.npy"});
  const auto targets = numbers<std::int64_t>("targets.npy");  // the largest of each row
  write_array(at("t.npy"), DType::int64, {6, 12, 128}, std::as_bytes(std::span(targets)));
  const auto told = nlohmann::json::parse(expect_ok({"cross-entropy", "@scores.npy", "@t.npy", "--json"}));
  const auto h = numbers<float>("h.npy"), kl = numbers<float>("kl.npy");
  double loss = 0.;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    const std::vector<double> exact = probabilities(row);
    double entropy = 0.;
    for (const double each : exact) entropy -= each > 0. ? each * std::log(each) : 0.;
    loss -= std::log(exact[static_cast<std::size_t>(targets[r])]);
    ASSERT_NEAR(h[r], entropy, 1e-5) << row;
    ASSERT_EQ(kl[r], 0.F) << row;
  }
  EXPECT_EQ(told["counted"].get<std::int64_t>(), kRows);
  EXPECT_NEAR(told["mean"].get<double>(), loss / static_cast<double>(kRows), 1e-6);
}

}  // namespace
}  // namespace softfold_test
