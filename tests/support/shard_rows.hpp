// Rows of every kind, and their shards' partials, for the tests of shards.
#pragma once

#include "support/bits.hpp"
#include "support/tensor.hpp"

#include "cpu/targets.hpp"
#include "softfold/shards.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace softfold_test {

using softfold::ShardOptions;
using Sizes = std::vector<std::int64_t>;
using Bytes = std::vector<unsigned char>;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr std::int64_t kRows = 9;

/// A contiguous tensor that owns its memory.
struct Owned {
  Sizes shape;
  DType dtype;
  Bytes bytes;

  Owned(DType t, Sizes s) : shape(std::move(s)), dtype(t) {
    const auto n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    bytes.assign(static_cast<std::size_t>(n) * size_of(t) + 8, 0xA5);
  }
  View view() { return View(bytes.data(), dtype, shape); }
};

/// Rows of one dtype, plain ones and special ones, their targets, a mask and weights.
struct Rows {
  DType dtype;
  std::int64_t n;
  Owned x, targets, mask, weight;
  softfold::RowOptions options;
  Sizes wide;

  Rows(DType t, std::int64_t size, double scale, bool masked, std::uint64_t seed)
      : dtype(t),
        n(size),
        x(t, {kRows, n}),
        targets(DType::int64, {kRows}),
        mask(DType::boolean, {kRows, n}),
        weight(DType::float32, {n}),
        wide{n, 1} {
    Random random(seed);
    options.scale = scale;
    if (masked) options.mask = mask.view();
    auto* const weights = reinterpret_cast<float*>(weight.bytes.data());
    for (std::int64_t i = 0; i < n; ++i) weights[i] = static_cast<float>(random.uniform(0.5, 2));
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < n; ++i) {
        mask.bytes[static_cast<std::size_t>(r * n + i)] = random.below(4) != 0;
        set(r, i, element(r, i, random));
      }
      reinterpret_cast<std::int64_t*>(targets.bytes.data())[r] = r == 6 ? -100 : n == 0 ? -100 : random.below(n);
    }
  }
  double element(std::int64_t row, std::int64_t i, Random& random) const {
    const double v = random.uniform(-6, 6);
    switch (row) {
      case 1: return std::rint(v);  // ties
      case 2: return -kInfinity;
      case 3: return i == n / 2 ? std::numeric_limits<double>::quiet_NaN() : v;
      case 4: return i == n / 3 ? kInfinity : v;
      case 5: return i % 3 == 0 ? -kInfinity : 5000 * v;
      case 7: return i < n - 2 ? -kInfinity : v;
      default: return v;
    }
  }
  void set(std::int64_t r, std::int64_t i, double v) {
    with_dtype(dtype, [&]<class S>(S) {
      const S s = fold::narrow<S>(static_cast<fold::FoldType<S>>(v));
      std::memcpy(x.bytes.data() + static_cast<std::size_t>(r * n + i) * sizeof s, &s, sizeof s);
    });
  }
  /// Elements [begin, end) of every row, of x or of something laid out like it.
  View cut(Owned& of, std::int64_t begin, std::int64_t end) {
    shape = {kRows, end - begin};
    return View(of.bytes.data() + static_cast<std::size_t>(begin) * size_of(of.dtype), of.dtype, shape, wide);
  }
  Sizes shape;
};

/// The partials of the shards between cuts, the last one first, each with more room than it needs and folded on another
/// SIMD target.
inline Owned folded(Rows& rows, const Sizes& cuts, std::int64_t k = 0, bool targets = false) {
  std::int64_t width = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    width = std::max(width, softfold::partial_width(cuts[i + 1] - cuts[i], {cuts[i], rows.n}, k) + 3);
  Owned all(DType::float64, {std::ssize(cuts) - 1, kRows, width});
  const Sizes one{kRows, width};
  const auto targets_here = softfold::cpu::targets();
  const std::string_view before = softfold::cpu::current_target();
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    ShardOptions o;
    o.rows = rows.options;
    Sizes mask_shape{kRows, cuts[i + 1] - cuts[i]};
    if (o.rows.mask.given())
      o.rows.mask = View(rows.mask.bytes.data() + cuts[i], DType::boolean, mask_shape, rows.wide);
    o.shard = {cuts[i], rows.n};
    o.k = k;
    if (targets) o.targets = rows.targets.view();
    const auto at = (cuts.size() - 2 - i) * static_cast<std::size_t>(kRows * width) * sizeof(double);
    EXPECT_TRUE(softfold::cpu::use_target(targets_here[i % targets_here.size()]));
    softfold::fold_shard(rows.cut(rows.x, cuts[i], cuts[i + 1]), View(all.bytes.data() + at, DType::float64, one), o);
  }
  EXPECT_TRUE(softfold::cpu::use_target(before));
  return all;
}

}  // namespace softfold_test
