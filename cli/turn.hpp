// What is timed in turn with its ceilings, and the turn that speaks for all: for `softfold bench` and for bench/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace softfold::cli {

/// Of one turn: what was timed, and the fastest of its ceilings.
struct Turn {
  double seconds, ceiling;
};

/// The turn whose share of the ceiling is the median one: a machine that is fast now and slow then moves both times of
/// a turn, and their quotient hardly.
inline Turn median_turn(std::span<const double> times, std::span<const std::vector<double>> ceilings) {
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < times.size(); ++i) {
    Turn turn{times[i], std::numeric_limits<double>::infinity()};
    for (const std::vector<double>& c : ceilings) turn.ceiling = std::min(turn.ceiling, c[i]);
    turns.push_back(turn);
  }
  const auto middle = turns.begin() + std::ssize(turns) / 2;
  std::nth_element(turns.begin(), middle, turns.end(),
                   [](const Turn& a, const Turn& b) { return a.ceiling * b.seconds < b.ceiling * a.seconds; });
  return *middle;
}

}  // namespace softfold::cli
