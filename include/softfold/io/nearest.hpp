// The nearest of some names to a misspelt one.
#pragma once

#include "softfold/config.hpp"

#include <span>
#include <string_view>

namespace softfold {
inline namespace v0 {
namespace io {

/// The first of the candidates that the fewest slips (a character too many, missing, wrong, or swapped with its
/// neighbour) turn `word` into, if that takes no more than a third of its length, or two; else the first candidate that
/// contains `word`; else an empty text.
SOFTFOLD_API std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace io
}  // namespace v0
}  // namespace softfold
