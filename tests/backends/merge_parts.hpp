// Parts of rows as others hold them, made for the tests of merge_attention and merge_blocks.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/softfold.hpp"
#include "support/bits.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace softfold_test {

namespace fold = softfold::fold;
using softfold::Context;
using softfold::DType;
using softfold::LogBase;
using softfold::Statistics;
using softfold::View;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class S>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<S, double>) return DType::float64;
  if constexpr (std::is_same_v<S, fold::Float16>) return DType::float16;
  if constexpr (std::is_same_v<S, fold::BFloat16>) return DType::bfloat16;
  return DType::float32;
}

/// Parts of `rows` rows: values S, statistics L.
template <class S, class L>
struct Parts {
  std::int64_t rows, n;
  Statistics form;
  std::vector<std::int64_t> shape, stat_shape;
  std::vector<std::vector<S>> value;
  std::vector<std::vector<L>> stat;

  Parts(int parts, std::int64_t rows_, std::int64_t n_, Statistics form_ = Statistics::lse)
      : rows(rows_), n(n_), form(form_), shape{rows_, n_}, stat_shape{rows_} {
    if (form == Statistics::max_sum) stat_shape.push_back(2);
    value.resize(static_cast<std::size_t>(parts), std::vector<S>(static_cast<std::size_t>(rows * n)));
    stat.resize(static_cast<std::size_t>(parts),
                std::vector<L>(static_cast<std::size_t>(rows * (form == Statistics::lse ? 1 : 2))));
  }
  std::vector<View> views() const {
    std::vector<View> v;
    for (std::size_t p = 0; p < value.size(); ++p) {
      v.emplace_back(static_cast<const void*>(value[p].data()), dtype_of<S>(), shape);
      v.emplace_back(static_cast<const void*>(stat[p].data()), dtype_of<L>(), stat_shape);
    }
    return v;
  }
  /// Part p's log of its sum in row r, in the statistics' base.
  long double log_sum(std::size_t p, std::int64_t r, LogBase base) const {
    const auto i = static_cast<std::size_t>(r);
    if (form == Statistics::lse) return static_cast<long double>(stat[p][i]);
    const long double m = stat[p][2 * i], d = stat[p][2 * i + 1];
    return m + (base == LogBase::two ? std::log2(d) : std::log(d));
  }
};

template <class S, class L>
Parts<S, L> random_parts(int parts, std::int64_t rows, std::int64_t n, Statistics form, std::uint64_t seed) {
  Parts<S, L> p(parts, rows, n, form);
  Random random(seed);
  for (auto& part : p.value)
    for (auto& v : part) v = fold::narrow<S>(random.uniform(-3., 3.));
  for (auto& part : p.stat)
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] =
          static_cast<L>(form == Statistics::max_sum && i % 2 == 1 ? random.uniform(1., 50.) : random.uniform(-8., 8.));
  return p;
}

template <class S, class L>
struct Merged {
  std::vector<S> out;
  std::vector<L> stat;
  friend bool operator==(const Merged& a, const Merged& b) {
    return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(S)) == 0 &&
           std::memcmp(a.stat.data(), b.stat.data(), a.stat.size() * sizeof(L)) == 0;
  }
};

template <class S, class L>
Merged<S, L> merge_attention(const Parts<S, L>& p, LogBase base = LogBase::natural, const Context& context = {}) {
  Merged<S, L> m{std::vector<S>(p.value[0].size()), std::vector<L>(p.stat[0].size())};
  softfold::merge_attention(p.views(), View(m.out.data(), dtype_of<S>(), p.shape),
                            View(m.stat.data(), dtype_of<L>(), p.stat_shape), {base, p.form}, context);
  return m;
}

/// All parts' blocks one after another.
template <class S, class L>
Merged<S, L> merge_blocks(const Parts<S, L>& p, LogBase base = LogBase::natural, const Context& context = {}) {
  const std::size_t size = p.value[0].size();
  Merged<S, L> m{std::vector<S>(size * p.value.size()), std::vector<L>(p.stat[0].size())};
  std::vector<View> outputs;
  for (std::size_t i = 0; i < p.value.size(); ++i)
    outputs.emplace_back(m.out.data() + i * size, dtype_of<S>(), p.shape);
  outputs.emplace_back(m.stat.data(), dtype_of<L>(), p.stat_shape);
  softfold::merge_blocks(p.views(), outputs, {base, p.form}, context);
  return m;
}

template <class S>
double unit_of() {
  if constexpr (std::is_same_v<S, double>) return 0x1p-53;
  if constexpr (std::is_same_v<S, float>) return 0x1p-24;
  if constexpr (std::is_same_v<S, fold::Float16>) return 0x1p-11;
  return 0x1p-8;
}

}  // namespace softfold_test
