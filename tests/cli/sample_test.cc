// sample: the library's tokens, in blocks of any size.
#include "cli/support.hpp"

namespace softfold_test {
namespace {

TEST_F(CommandTest, SampleHasTheLibrarysTokensInBlocksOfAnySize) {
  using softfold::View;
  constexpr std::int64_t rows = 3001, n = 4000;
  const Shape shape{rows, n}, per_row{rows};
  const auto x = random_elements(DType::float32, rows * n, 2);
  write_array(at("x.npy"), DType::float32, shape, x);
  std::vector<std::int64_t> tokens(rows);
  std::vector<float> lp(rows), top_lp(rows * 3);
  std::vector<std::int64_t> top(rows * 3);
  const Shape some{rows, 3};
  softfold::SampleOptions o;
  o.temperature = 0.5, o.top_k = 40, o.top_p = 0.9, o.min_p = 0.01, o.seed = 5, o.offset = 2;
  o.order = softfold::FilterOrder::min_p_last;
  o.of = softfold::Distribution::sampled;
  o.log_probability = View(lp.data(), DType::float32, per_row);
  o.top_tokens = View(top.data(), DType::int64, some);
  o.top_log_probabilities = View(top_lp.data(), DType::float32, some);
  softfold::sample(View(x.data(), DType::float32, shape), View(tokens.data(), DType::int64, per_row), o);
  const auto expect_file = [&](const char* name, const auto& expected) {
    const auto bytes = std::as_bytes(std::span(expected));
    EXPECT_EQ(elements_of(softfold::io::open_array(at(name))), std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  for (const std::string memory : {"32M", "1G"}) {
    expect_ok({"sample",         "@x.npy",
               "@t.npy",         "@lp.npy",
               "--temperature",  "0.5",
               "--top-k",        "40",
               "--top-p",        "0.9",
               "--min-p",        "0.01",
               "--order",        "hugging-face",
               "--of",           "sampled",
               "--seed",         "5",
               "--offset",       "2",
               "--memory",       memory,
               "--top-logprobs", "3",
               "--top-tokens",   "@top.npy",
               "--top-lp",       "@top_lp.npy"});
    expect_file("top.npy", top);
    expect_file("top_lp.npy", top_lp);
    expect_file("t.npy", tokens);
    expect_file("lp.npy", lp);
  }
  expect_refused(Code::option, "0 .. 1", {"sample", "@x.npy", "@t.npy", "--top-p", "3"});
  expect_refused(Code::option, "--top-tokens", {"sample", "@x.npy", "@t.npy", "--top-logprobs", "3"});
  expect_refused(Code::option, "hugging-face", {"sample", "@x.npy", "@t.npy", "--order", "huggingface"});
}

TEST_F(CommandTest, SampleSaysFromHowManyRowsNothingWasDrawn) {
  const float x[] = {1, 2, 3, NAN, 0, 0, -INFINITY, -INFINITY, -INFINITY, 0, 1, 0}, fine[] = {1, 2, 3};
  write_array(at("x.npy"), DType::float32, {4, 3}, std::as_bytes(std::span(x)));
  write_array(at("fine.npy"), DType::float32, {1, 3}, std::as_bytes(std::span(fine)));
  EXPECT_NE(expect_ok({"sample", "@x.npy", "@t.npy"}).find("token -1 in 2 of 4 rows"), std::string::npos);
  EXPECT_NE(expect_ok({"sample", "@x.npy", "@t.npy", "--json"}).find("\"rows_without_token\": 2,"), std::string::npos);
  EXPECT_EQ(expect_ok({"sample", "@fine.npy", "@t.npy"}).find("token -1"), std::string::npos);
}

TEST_F(CommandTest, SampleNamesTheFileThatItCannotDrawFrom) {
  write_array(at("d.npy"), DType::float64, {2, 3}, random_elements(DType::float64, 6, 1));
  write_array(at("i.npy"), DType::int64, {2, 3}, std::vector<std::byte>(48));
  for (const std::string name : {"d.npy", "i.npy"})
    expect_refused(Code::dtype, "got '" + at(name) + "': an array of ", {"sample", "@" + name, "@t.npy"});
  expect_refused(Code::dtype, "allowed: float32, float16, bfloat16\n         try: x.astype(numpy.float32) in NumPy\n",
                 {"sample", "@d.npy", "@t.npy"});
}

}  // namespace
}  // namespace softfold_test
