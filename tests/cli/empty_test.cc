// Headers of 128 bytes that speak of very many rows of no elements.
#include "cli/support.hpp"

#include <tuple>

namespace softfold_test {
namespace {

class EmptyRows : public CommandTest {
 protected:
  void expect_small(const Result& result, const Words& words, int status) const {
    EXPECT_EQ(result.status, status) << ::testing::PrintToString(words) << result.err;
    EXPECT_TRUE(kSanitized || result.peak_rss <= 32 << 20) << ::testing::PrintToString(words) << result.peak_rss;
  }
};

TEST_F(EmptyRows, AreDoneAtOnceOrTheirResultIsRefusedFirst) {
  const int done = 0, shape = static_cast<int>(Code::shape), io = static_cast<int>(Code::io);
  for (const char* lie : {"1152921504606846976, 0", "1073741824, 1073741824, 0"}) {
    write_header("x.npy", lie);
    for (const auto& [words, status] : {std::tuple{Words{"softmax", "@x.npy", "@y.npy"}, done},
                                        {{"log-softmax", "@x.npy", "@y.npy"}, done},
                                        {{"verify", "@x.npy"}, done},
                                        {{"logsumexp", "@x.npy", "@y.npy"}, io},
                                        {{"entropy", "@x.npy", "@y.npy"}, io},
                                        {{"kl-divergence", "@x.npy", "@x.npy", "@y.npy"}, io},
                                        {{"sample", "@x.npy", "@y.npy"}, shape}}) {
      Words all = words;
      all.insert(all.end(), {"--memory", "32M"});
      expect_small(run(all), all, status);
    }
  }
}

TEST_F(EmptyRows, StayInTheirMemory) {
  const std::size_t rows = std::size_t{1} << (kSanitized ? 20 : 24);
  write_header("x.npy", std::to_string(rows) + ", 0");
  for (const char* verb : {"logsumexp", "entropy", "softmax"}) {
    const Words words{verb, "@x.npy", "@y.npy", "--memory", "32M"};
    expect_small(run(words), words, 0);
  }
  const Words across{"logsumexp", "@z.npy", "@y.npy", "--axis", "0", "--memory", "32M"};
  write_header("z.npy", "0, " + std::to_string(rows));
  expect_small(run(across), across, 0);
  const softfold::io::ArrayFile y = softfold::io::open_array(at("y.npy"));
  EXPECT_EQ(y.bytes(), 4 * rows);
}

// What is refused of rows is refused where there are none, and before anything is written.
TEST_F(EmptyRows, OfNoRowsTheOptionsAreRefusedAllTheSame) {
  write_header("z.npy", "0, 5");
  write_array(at("z64.npy"), DType::float64, {0, 5}, {});
  write_array(at("t.npy"), DType::int64, {0}, {});
  for (const Words& words :
       {Words{"softmax", "@z.npy", "@o.npy", "--scale", "nan"}, Words{"entropy", "@z.npy", "@o.npy", "--scale", "nan"},
        Words{"kl-divergence", "@z.npy", "@z.npy", "@o.npy", "--scale", "inf"},
        Words{"cross-entropy", "@z.npy", "@t.npy", "@o.npy", "--label-smoothing", "2"},
        Words{"cross-entropy", "@z.npy", "@t.npy", "@o.npy", "--scale", "nan"},
        Words{"sample", "@z.npy", "@o.npy", "--top-p", "4"}, Words{"sample", "@z.npy", "@o.npy", "--temperature", "-1"},
        Words{"topk", "@z.npy", "@o.npy", "@i.npy", "--probabilities", "--scale", "nan"},
        Words{"topk", "@z.npy", "@o.npy", "@i.npy", "-k", "0", "--probabilities", "--scale", "nan"}})
    expect_refused(Code::option, "", words);
  expect_refused(Code::dtype, "", {"sample", "@z64.npy", "@o.npy"});
  expect_refused(Code::dtype, "", {"kl-divergence", "@z.npy", "@z64.npy", "@o.npy"});
  for (const char* name : {"o.npy", "i.npy"}) EXPECT_FALSE(std::filesystem::exists(at(name)));
  expect_ok({"entropy", "@z.npy", "@o.npy", "--scale", "2"});
  expect_ok({"kl-divergence", "@z64.npy", "@z64.npy", "@o.npy"});
  expect_ok({"cross-entropy", "@z.npy", "@t.npy", "@o.npy"});
  expect_ok({"sample", "@z.npy", "@o.npy", "--top-p", "0.5"});
  expect_ok({"topk", "@z.npy", "@o.npy", "@i.npy", "--probabilities", "--scale", "2"});
}

}  // namespace
}  // namespace softfold_test
