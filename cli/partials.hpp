// Partial files a block of rows at a time, so that memory does not grow with their rows.
#pragma once

#include "softfold/io/partial_file.hpp"

#include <cstdint>
#include <vector>

namespace softfold::cli {

/// Rows of such partials that are in memory at once: a mebibyte of them, part of what every process needs.
std::int64_t rows_at_once(const io::PartialSpan& span);

/// Reads all that `all` has left to read, for its damage to be refused before any work.
void check_partials(io::PartialReader all, const io::InputFile& file);

/// Puts the states of the next rows, as states_of gives them, in the place of what is there.
void next_states(io::PartialReader& partials, const io::InputFile& file, std::int64_t rows, std::vector<double>& into);

}  // namespace softfold::cli
