// sample's definition in plain words: sorted filters, and a draw descended through states that are found anew at every
// node.
#pragma once

#include "backends/matrix.hpp"

#include "softfold/fold/sample.hpp"
#include "softfold/lift/chunks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace softfold_test {

using softfold::FilterOrder;
using softfold::SampleOptions;
namespace fold = softfold::fold;
namespace lift = softfold::lift;
using Lse = fold::LogSumExp<float>;

inline constexpr float kAbsent = -std::numeric_limits<float>::infinity();

/// The numbers of one row's draw.
struct Numbers {
  double scale = 1, temperature = 1, top_p = 1, min_p = 0;
  std::int64_t top_k = 0;
  FilterOrder order = FilterOrder::min_p_first;
  std::uint64_t seed = 7, offset = 3, id = 0;
};

/// The row with what the filters take away made -inf.
inline std::vector<float> filtered(std::vector<float> x, const Numbers& d) {
  const float c = fold::make_scale<float>(d.scale / d.temperature).c, top = *std::max_element(x.begin(), x.end());
  const auto keep_from = [&](float least) {
    for (float& v : x)
      if (v < least) v = kAbsent;
  };
  const auto sorted = [&] {
    std::vector<float> s;
    std::copy_if(x.begin(), x.end(), std::back_inserter(s), [](float v) { return v != kAbsent; });
    std::sort(s.rbegin(), s.rend());
    return s;
  };
  const auto min_p = [&] {
    if (d.min_p > 0) keep_from(fold::least_of_min_p(top, d.min_p, c));
  };
  const auto s = sorted();
  const auto k = static_cast<std::size_t>(d.top_k);
  const float kth = k > 0 && k <= s.size() ? s[k - 1] : kAbsent;
  if (d.order == FilterOrder::min_p_first) min_p();
  keep_from(kth);
  if (d.top_p < 1) {
    const double m = Lse::frame(top, c).m;
    std::uint64_t total = 0, reached = 0;
    const auto count = [&](float v) {
      return fold::count_of(Lse::is_fast(m) ? fold::term<fold::Scalar<float>>(v, c, Lse::narrow(m))
                                            : fold::term_wide(v, c, m));
    };
    for (const float v : sorted()) total += count(v);
    const auto need =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(d.top_p * static_cast<double>(total))));
    for (const float v : sorted()) {
      reached += count(v);
      if (reached < need) continue;
      keep_from(v);
      break;
    }
  }
  min_p();
  return x;
}

/// The state of the 2^level chunks from `chunk` on.
inline Lse::State node(const std::vector<float>& x, float c, int level, std::int64_t chunk) {
  const std::int64_t begin = chunk * lift::kChunk, n = std::ssize(x) - begin;
  if (n <= 0) return Lse::identity();
  float terms[lift::kChunk];
  if (level == 0)
    return lift::reduce_chunk(&x[static_cast<std::size_t>(begin)],
                              static_cast<int>(std::min<std::int64_t>(n, lift::kChunk)), c, terms);
  const auto half = std::int64_t{1} << (level - 1);
  return Lse::merge(node(x, c, level - 1, chunk), node(x, c, level - 1, chunk + half));
}

/// The sum of the elements of a chunk whose places are `place` modulo `step`, as the tree adds them, in the row's
/// frame.
inline double mass(const std::vector<float>& x, float c, std::int64_t begin, int place, int step, double row_m) {
  std::vector<float> some(lift::kChunk, kAbsent);
  for (int k = place; k < lift::kChunk && begin + k < std::ssize(x); k += step)
    some[static_cast<std::size_t>(k)] = x[static_cast<std::size_t>(begin + k)];
  float terms[lift::kChunk];
  return fold::mass_of(lift::reduce_chunk(some.data(), lift::kChunk, c, terms), row_m);
}

inline std::int64_t draw(const std::vector<float>& x, const Numbers& d) {
  const float c = fold::make_scale<float>(d.scale / d.temperature).c;
  int level = 0;
  while ((std::int64_t{lift::kChunk} << level) < std::ssize(x)) ++level;
  const auto root = node(x, c, level, 0);
  if (!fold::Normaliser<float>(root).regular) return -1;
  fold::Descent way{fold::uniform(d.seed, d.offset, d.id) * static_cast<double>(root.d)};
  std::int64_t chunk = 0;
  for (; level > 0; --level) {
    const auto half = std::int64_t{1} << (level - 1);
    if (way.goes_right(fold::mass_of(node(x, c, level - 1, chunk), root.m),
                       fold::mass_of(node(x, c, level - 1, chunk + half), root.m)))
      chunk += half;
  }
  int place = 0;
  const std::int64_t begin = chunk * lift::kChunk;
  for (int step = 1; step < lift::kChunk; step *= 2)
    if (way.goes_right(mass(x, c, begin, place, 2 * step, root.m), mass(x, c, begin, place + step, 2 * step, root.m)))
      place += step;
  return begin + place;
}

inline std::vector<float> row_of(std::int64_t n, std::uint64_t seed, double spread = 4) {
  Random random(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = static_cast<float>(random.uniform(-spread, spread));
  return x;
}

inline std::vector<double> probabilities(const std::vector<float>& x, double temperature) {
  std::vector<double> p;
  const double top = *std::max_element(x.begin(), x.end());
  for (const float v : x) p.push_back(std::exp((static_cast<double>(v) - top) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.);
  for (double& v : p) v /= sum;
  return p;
}

inline SampleOptions options_of(const Numbers& d) {
  SampleOptions o;
  o.temperature = d.temperature, o.top_p = d.top_p, o.min_p = d.min_p, o.top_k = d.top_k;
  o.order = d.order, o.seed = d.seed, o.offset = d.offset;
  return o;
}

}  // namespace softfold_test
