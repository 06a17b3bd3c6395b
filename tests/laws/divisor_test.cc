// Divisions by multiplications, at the edges where the quotient changes.
#include "cuda/divisor.hpp"

#include <gtest/gtest.h>

namespace softfold_test {
namespace {

using softfold::cuda::Divisor;

TEST(Divisor, QuotientsChangeWhereTheyShould) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 31;
  for (const std::int64_t by : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{5}, std::int64_t{7},
                                std::int64_t{31}, std::int64_t{641}, std::int64_t{65535}, std::int64_t{65537},
                                std::int64_t{6700417}, kEnd / 2 - 1, kEnd / 2, kEnd / 2 + 1, kEnd - 1, kEnd}) {
    const Divisor divisor(by);
    const std::int64_t most = (kEnd - 1) / by;
    for (const std::int64_t q : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, most / 3, most / 2, most - 1, most})
      for (const std::int64_t a : {q * by - 1, q * by, q * by + 1, q * by + by - 1}) {
        if (a < 0 || a >= kEnd) continue;
        EXPECT_EQ(divisor.quotient(static_cast<std::uint32_t>(a)), a / by) << a << " / " << by;
        EXPECT_EQ(divisor.quotient(a), a / by) << a << " / " << by;
      }
    for (const std::int64_t a : {kEnd - 1, kEnd, kEnd + 1, (kEnd << 8) + 3})
      EXPECT_EQ(divisor.quotient(a), a / by) << a << " / " << by;
  }
}

}  // namespace
}  // namespace softfold_test
