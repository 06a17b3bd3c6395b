// What the lists of operations with options of their own share.
#pragma once

#include "cases.hpp"

namespace softfold_test {

/// The shape of what has one value a row.
Shape shape_of_rows(const RowCase& c);
RowCase rows_of(Op op, DType t, Shape shape, Kind kind = Kind::count);

/// Top-k and sampling, in selection_cases.cc: the names of all, and one by its place among them.
std::vector<std::string> selection_names();
Problem make_selection(std::size_t index, Layout layout);

}  // namespace softfold_test
