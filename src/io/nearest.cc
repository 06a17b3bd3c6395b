#include "softfold/io/nearest.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`; a table of which three rows
/// live.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::size_t allowed = std::max<std::size_t>(word.size() / 3, 2);
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    const std::size_t lengths_differ =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (lengths_differ > allowed) continue;
    const std::size_t needed = distance(word, candidate);
    if (needed > allowed || (needed == allowed && !best.empty())) continue;
    best = candidate;
    allowed = needed;
  }
  if (!best.empty() || word.empty()) return best;
  const auto containing = std::ranges::find_if(
      candidates, [&](std::string_view candidate) { return candidate.find(word) != std::string_view::npos; });
  return containing == candidates.end() ? std::string_view() : *containing;
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
