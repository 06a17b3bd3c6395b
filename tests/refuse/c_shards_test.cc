// The C ABI of shards: what is joined is what the whole rows give.
#include "refuse/c_tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace softfold_test {
namespace {

TEST(CShards, JoinToTheRow) {
  CTensor x({2, 4}), left({2, 3}), right({2, 1}), loss({2}), joined({2}), values({2, 1}), dx({2, 4}), part({2, 3});
  x.data = {1, 2, 3, 4, 4, 3, 2, 1};
  left.data = {1, 2, 3, 4, 3, 2}, right.data = {4, 1};
  std::int64_t target[] = {3, 1}, places[2] = {-7, -7}, rows[] = {2}, some[] = {2, 1}, width = 0, widest = 0;
  softfold_tensor targets{target, {1, 0}, 1, {0, 64, 1}, rows, nullptr, 0};
  softfold_tensor indices{places, {1, 0}, 2, {0, 64, 1}, some, nullptr, 0};
  softfold_shard_options shard;
  softfold_shard_options_init(&shard);
  shard.size = 4, shard.k = 1, shard.targets = &targets;
  ASSERT_EQ(softfold_partial_width(3, &shard, &widest), SOFTFOLD_OK) << last();
  std::vector<double> partials(static_cast<std::size_t>(4 * widest)), states(8);
  std::int64_t one[] = {2, widest}, all[] = {2, 2, widest}, four[] = {2, 4};
  softfold_tensor to{partials.data(), {1, 0}, 2, {2, 64, 1}, one, nullptr, 0}, gathered = to, s = to;
  gathered.ndim = 3, gathered.shape = all;
  s.data = states.data(), s.shape = four;
  ASSERT_EQ(softfold_fold_shard(&left.tensor, &to, &shard, nullptr), SOFTFOLD_OK) << last();
  shard.offset = 3;
  ASSERT_EQ(softfold_partial_width(1, &shard, &width), SOFTFOLD_OK) << last();
  EXPECT_LT(width, widest);
  to.byte_offset = static_cast<std::uint64_t>(2 * widest) * sizeof(double);
  ASSERT_EQ(softfold_fold_shard(&right.tensor, &to, &shard, nullptr), SOFTFOLD_OK) << last();
  softfold_cross_entropy_options options;
  softfold_cross_entropy_options_init(&options);
  options.reduction = SOFTFOLD_REDUCTION_NONE;
  ASSERT_EQ(softfold_cross_entropy(&x.tensor, &targets, &loss.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_join_cross_entropy(&gathered, &targets, &joined.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(joined.data, loss.data);
  ASSERT_EQ(softfold_join_topk(&gathered, &values.tensor, &indices, nullptr, nullptr), SOFTFOLD_OK) << last();
  EXPECT_TRUE(values.data == (std::vector<float>{4, 4}) && places[0] == 3 && places[1] == 0);
  ASSERT_EQ(softfold_join_states(&gathered, &s, nullptr), SOFTFOLD_OK) << last();
  CTensor dloss({2});
  dloss.data = {1, 1};
  const auto backward = [&](const CTensor& from, CTensor& gradient) {
    return softfold_cross_entropy_backward(&from.tensor, &targets, &s, &dloss.tensor, &gradient.tensor, &options,
                                           nullptr);
  };
  ASSERT_EQ(backward(x, dx), SOFTFOLD_OK) << last();
  options.shard_size = 4;
  ASSERT_EQ(backward(left, part), SOFTFOLD_OK) << last();
  EXPECT_TRUE(std::equal(part.data.begin(), part.data.begin() + 3, dx.data.begin()) && part.data[4] == dx.data[5]);
  options.shard_offset = 2;
  EXPECT_EQ(backward(left, part), SOFTFOLD_SHAPE);
  softfold_sample_options draw;
  softfold_sample_options_init(&draw);
  std::int64_t tokens[] = {-7, -7}, shares[] = {-7, -7};
  softfold_tensor whole = targets, own = targets;
  whole.data = tokens, own.data = shares;
  ASSERT_EQ(softfold_sample(&x.tensor, &whole, &draw, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_sample_shard(&left.tensor, &gathered, &own, 0, 4, &draw, nullptr), SOFTFOLD_OK) << last();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(shares[i], tokens[i] < 3 ? tokens[i] : -1);
  EXPECT_EQ(softfold_sample_shard(&left.tensor, &gathered, &own, 1, 4, &draw, nullptr), SOFTFOLD_STATE);
  gathered.byte_offset = 8;
  EXPECT_EQ(softfold_join_states(&gathered, &s, nullptr), SOFTFOLD_STATE);
}

}  // namespace
}  // namespace softfold_test
