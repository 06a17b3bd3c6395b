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

}  // namespace
}  // namespace softfold_test
