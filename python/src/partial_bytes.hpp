// A Partial as bytes, so that it can be pickled, stored and sent.
#pragma once

#include "softfold/lift/stream.hpp"

#include <span>
#include <string>
#include <variant>

namespace softfold::python {

using AnyPartial = std::variant<Partial<float>, Partial<double>>;

/// Little-endian: "SFPY", the bits' version and digits (24 or 53) as 32-bit numbers; scale as float64; offset and the
/// counts of head, nodes and tail as int64; head; nodes (begin int64, level int64, m float64, d float64); tail.
std::string to_bytes(const AnyPartial& partial);
/// Refuses (Code::state) bytes that are no such partial, or of another definition of the bits.
AnyPartial from_bytes(std::string_view bytes);

}  // namespace softfold::python
