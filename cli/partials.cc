#include "partials.hpp"

#include "folder.hpp"
#include "interrupt.hpp"

#include <algorithm>

namespace softfold::cli {

std::int64_t rows_at_once(const io::PartialSpan& span) {
  constexpr std::uint64_t most = std::uint64_t{1} << 20;
  return static_cast<std::int64_t>(std::max<std::uint64_t>(1, most / io::row_memory(span)));
}

void check_partials(io::PartialReader all, const io::InputFile& file) {
  for (; all.left() > 0; all.check(file, rows_at_once(all.span()))) check_interrupt();
}

void next_states(io::PartialReader& partials, const io::InputFile& file, std::int64_t rows, std::vector<double>& into) {
  into.clear();
  into.reserve(static_cast<std::size_t>(4 * rows));
  for (std::int64_t left = rows; left > 0;) {
    check_interrupt();
    const std::int64_t block = std::min(left, rows_at_once(partials.span()));
    const std::vector<double> more = states_of(partials.read(file, block));
    into.insert(into.end(), more.begin(), more.end());
    left -= block;
  }
}

}  // namespace softfold::cli
