// What rows of a few chunks hold, and how they lie, where kernels guess a frame from a first element.
#pragma once

#include "cuda/both.hpp"

#include <limits>

namespace softfold_test {

/// What rows hold beside Values: elements about as far apart as a frame holds them, or further; -inf among others, and
/// in front; the lowest number of a dtype among others, as masks have it, or another such behind a first element that
/// leaves no room for a floor.
enum class Content { near, far, very_far, some_none, none_first, some_lowest, no_floor, count };

inline double content_of(Content kind, softfold::DType t, std::int64_t row, std::int64_t i, std::int64_t n) {
  const double own = value_of(Values::normal, row, i, n);  // within +-6
  const auto picked = [&](double of) { return value_of(Values::normal, row + 7, i + n, n) > 6. - 12. / of; };
  const double none = -std::numeric_limits<double>::infinity();
  switch (kind) {
    case Content::near: return own;
    case Content::far: return own * 6.;
    case Content::very_far: return own * (row % 3 == 0 ? 14. : 9.);
    case Content::some_none: return picked(3) ? none : own * (row % 4 == 0 ? 8. : 1.);
    case Content::none_first: return i < (row % 5 == 0 ? n - 1 : row % 5 == 1 ? 300 : n / 3) ? none : own;
    case Content::some_lowest:
      return picked(2) ? (t == softfold::DType::float16 ? -65504. : -3.3895313892515355e38) : own;
    default:
      if (t == softfold::DType::float16) return i != 0 && picked(40) ? -60000. : 1. + 0.01 * own;  // at a scale of 200
      return i != 0 && picked(40) ? (row % 2 == 0 ? -1e7 : -1.7e7) : 180. + own;
  }
}

struct Layout {
  std::int64_t gap, offset;
  bool in_place;
};
inline constexpr Layout kLayouts[] = {{0, 0, false}, {8, 8, false}, {0, 3, false},
                                      {0, 0, true},  {3, 0, false}, {1, 5, true}};

/// Every so-manieth row of a case is the same.
inline constexpr std::int64_t kRows = 61;

}  // namespace softfold_test
