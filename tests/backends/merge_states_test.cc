// merge_states: the whole row's bits from aligned shards, special rows, and what does not belong together.
#include "softfold/error.hpp"
#include "softfold/softfold.hpp"
#include "support/bits.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

using softfold::Code;
using softfold::DType;
using softfold::View;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Rows of four numbers.
using States = std::vector<double>;

void merge_states(const std::vector<States>& parts, States& to) {
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(to.size() / 4), 4};
  std::vector<View> views;
  for (const States& s : parts) views.emplace_back(static_cast<const void*>(s.data()), DType::float64, shape);
  softfold::merge_states(views, View(to.data(), DType::float64, shape));
}

template <class T>
void check_states() {
  constexpr DType kDType = sizeof(T) == 8 ? DType::float64 : DType::float32;
  // Aligned shards of one row, three rows at once: the bits of the whole row.
  constexpr std::int64_t rows = 3, n = 4096, shards = 4;
  Random random(29);
  std::vector<T> x(rows * n * shards);
  for (auto& v : x) v = static_cast<T>(random.uniform(-30., 30.));
  std::vector<States> parts(shards, States(rows * 4));
  const std::int64_t shard_shape[] = {rows, n}, strides[] = {n * shards, 1}, whole[] = {rows, n * shards},
                     states_shape[] = {rows, 4};
  softfold::RowOptions options;
  options.scale = 0.125;
  for (std::size_t k = 0; k < shards; ++k)
    softfold::state(View(x.data() + k * n, kDType, shard_shape, strides),
                    View(parts[k].data(), DType::float64, states_shape), options);
  States want(rows * 4), got(rows * 4);
  softfold::state(View(x.data(), kDType, whole), View(want.data(), DType::float64, states_shape), options);
  merge_states(parts, got);
  EXPECT_EQ(got, want);
}

TEST(MergeStates, AlignedShardsGiveTheWholeRowsBits) { check_states<float>(), check_states<double>(); }

// Shards of any lengths: the lse within logsumexp's bound and 1 u more for each level in which they meet.
template <class T>
void check_bound() {
  constexpr DType dtype = sizeof(T) == 4 ? DType::float32 : DType::float64;
  const long double u = sizeof(T) == 4 ? 0x1p-24L : 0x1p-53L;
  Random random(29);
  for (const std::size_t parts : {1U, 2U, 3U, 7U, 16U}) {
    std::vector<States> states(parts, States(4));
    const std::int64_t four[] = {4};
    std::vector<View> views;
    long double total = 0, n = 0;
    for (States& s : states) {
      std::vector<T> x(static_cast<std::size_t>(1 + random.below(3000)));
      for (T& v : x) v = static_cast<T>(random.uniform(-9., 3.));
      for (const T v : x) total += std::exp(static_cast<long double>(v));
      n += static_cast<long double>(x.size());
      const std::int64_t shape[] = {std::ssize(x)};
      softfold::state(View(x.data(), dtype, shape), View(s.data(), DType::float64, four));
      views.emplace_back(static_cast<const void*>(s.data()), DType::float64, four);
    }
    States merged(4);
    double lse = 0;
    softfold::merge_states(views, View(merged.data(), DType::float64, four));
    softfold::finish_logsumexp(View(merged.data(), DType::float64, four),
                               View(&lse, DType::float64, std::span<const std::int64_t>{}));
    const long double want = std::log(total), levels = std::ceil(std::log2(static_cast<long double>(parts)));
    EXPECT_LE(std::abs(lse - want), (std::abs(want) + 8 + 3 * std::log(n) + levels) * u) << parts;
  }
}

TEST(MergeStates, WithinTheStatedBound) { check_bound<float>(), check_bound<double>(); }

TEST(MergeStates, SpecialRows) {
  const States parts[] = {{-kInf, 0, 1, 24, kInf, 1, 1, 24, kInf, kNaN, 1, 24, 3, 1.5, 1, 24},
                          {-kInf, 0, 1, 24, 5, 1, 1, 24, kInf, 1, 1, 24, -kInf, 0, 1, 24}};
  States got(16);
  merge_states({parts[0], parts[1]}, got);
  EXPECT_EQ(got[0], -kInf);
  EXPECT_EQ(got[1], 0.);
  EXPECT_EQ(got[4], kInf);
  EXPECT_EQ(got[5], 1.);
  EXPECT_EQ(got[8], kInf);
  EXPECT_TRUE(std::isnan(got[9]));
  EXPECT_EQ(States(got.begin() + 12, got.end()), States(parts[0].begin() + 12, parts[0].end()));
}

TEST(MergeStates, WhatDoesNotBelongTogetherIsRefusedBeforeAnythingIsWritten) {
  const States good{1, 1.5, 1, 24, 2, 1.25, 1, 24};
  for (const auto& bad :
       {States{2, 1.25, 0.5, 24}, States{2, 1.25, 1, 53}, States{2, 1.25, 1, 11}, States{kNaN, 1, 1, 24},
        States{0.5, 1, 1, 24}, States{-kInf, 1, 1, 24}, States{2, -1, 1, 24}, States{2, 0, 1, 24},
        States{2, 1 + 0x1p-40, 1, 24}, States{kInf, 2, 1, 24}, States{2, kInf, 1, 24}}) {
    States second = good;
    std::copy(bad.begin(), bad.end(), second.begin() + 4);
    States to(8, -7.);
    try {
      merge_states({good, second}, to);
      ADD_FAILURE() << "merged " << bad[0] << " " << bad[1] << " " << bad[2] << " " << bad[3];
    } catch (const softfold::Error& e) {
      EXPECT_EQ(e.code, Code::state);
      EXPECT_NE(e.got.find("row 1"), std::string::npos) << e.what();
    }
    EXPECT_EQ(to, States(8, -7.));
  }
}

}  // namespace
}  // namespace softfold_test
