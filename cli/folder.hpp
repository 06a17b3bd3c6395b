// Rows folded a piece at a time: blocks of a file in, partials or states out.
#pragma once

#include "compute.hpp"

#include "softfold/io/partial_file.hpp"
#include "softfold/options.hpp"

#include <vector>

namespace softfold::cli {

/// The same columns of some rows, from `offset` of each row on. Whole chunks are folded by `compute`, which must
/// outlive it.
class Folder {
 public:
  /// `dtype`: of the elements. Throws Error{Code::dtype, Code::option}.
  Folder(DType dtype, double scale, std::int64_t offset, std::int64_t rows, const Compute& compute);

  /// Takes the next `columns` elements of every row; row r begins `pitch` elements after row r - 1. Fastest when the
  /// columns begin at a multiple of a large power of two.
  void take(const std::byte* block, std::int64_t columns, std::int64_t pitch);

  /// What has come, as the library's states: (m, d, scale, digits) a row. The whole row's if the offset is 0.
  std::vector<double> states() const;
  std::int64_t end() const;
  io::PartialRows release() && { return std::move(partials_); }

 private:
  template <class T>
  void take_nodes(std::vector<Partial<T>>& partials, const std::byte* block, std::int64_t columns, std::int64_t pitch);

  DType dtype_;
  double scale_;
  std::int64_t rows_;
  const Compute& compute_;
  io::PartialRows partials_;
};

/// The states of partials, (m, d, scale, digits) a row. Those of whole rows if they begin at their rows' start.
std::vector<double> states_of(const io::PartialRows& rows);

}  // namespace softfold::cli
