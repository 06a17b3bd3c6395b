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
  targets[5] = 4001;
  write_array(at("t.npy"), DType::int64, rows, std::as_bytes(std::span(targets)));
  expect_refused(Code::data, "target 4001", {"cross-entropy", "@x.npy", "@t.npy"});
  expect_refused(Code::dtype, "TARGETS", {"cross-entropy", "@x.npy", "@x.npy"});
}

}  // namespace
}  // namespace softfold_test
