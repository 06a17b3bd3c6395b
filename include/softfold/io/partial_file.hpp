// Partials in files: what one machine has folded of some rows, a few kilobytes a row, to be joined with what others
// have. The format is described in docs/cli.md.
#pragma once

#include "softfold/io/output_file.hpp"
#include "softfold/lift/stream.hpp"

#include <variant>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace io {

/// Rows as they were folded: in float32 or in float64.
using PartialRows = std::variant<std::vector<Partial<float>>, std::vector<Partial<double>>>;

/// What all rows of a file have in common: a cut through all of them at the same two places.
struct PartialSpan {
  int digits;  ///< of the fold: 24 (float32) or 53 (float64)
  double scale;
  std::int64_t offset, length;  ///< elements [offset, offset + length) of each row
  std::int64_t rows;            ///< at least one
  std::int64_t row_length;      ///< elements of a whole row; -1: whoever wrote the file did not know
};

/// How many bytes a file of such rows has. Throws Error{Code::file} for a span that no file can have.
std::uint64_t bytes_of(const PartialSpan& span);

/// The most bytes of memory that a row takes while it is read, joined or written.
std::uint64_t row_memory(const PartialSpan& span);

/// A partial file read a block of rows at a time, in order; what was read to its end is exactly the file that a
/// PartialOutput makes of these rows. What has not been read is not known to be sound: a copy that checks all rows
/// first refuses a damaged file before anything is done with it. Which file it is, every call is told: many may be read
/// in turn without being open at once. One that was written to meanwhile is refused as damaged.
class PartialReader {
 public:
  /// Reads the head alone. Throws Error: Code::file (truncated, damaged or lying), Code::state (written with another
  /// definition of the bits), and as InputFile::read does; `got` begins with the path.
  explicit PartialReader(const InputFile& file);

  const PartialSpan& span() const { return span_; }
  std::int64_t left() const { return span_.rows - done_; }  ///< rows still to come

  /// The next rows, as many as these where there are so many. Throws Error as the constructor does.
  PartialRows read(const InputFile& file, std::int64_t rows);
  /// Passes over them, refusing what read() would refuse.
  void check(const InputFile& file, std::int64_t rows) { advance(file, rows, nullptr); }

 private:
  void advance(const InputFile& file, std::int64_t rows, PartialRows* into);

  PartialSpan span_{};
  std::int64_t done_ = 0;
  std::uint64_t checksum_ = 0;  ///< of all that came
};

/// A partial file written a block of rows at a time, in order; it appears on commit.
class PartialOutput {
 public:
  /// `inputs`: files that must not be the destination. Throws Error: Code::option (a name that ends in .npy or
  /// .safetensors, or an existing file that is neither empty nor a partial: data would be lost), and as bytes_of and
  /// OutputFile do.
  PartialOutput(const std::string& destination, const PartialSpan& span, std::span<const FileId> inputs);

  /// The next rows. Throws Error: Code::shape (rows that are not the span's), and as OutputFile::write does.
  void write(const PartialRows& rows);
  /// OutputFile::commit.
  void commit() { file_.commit(); }

 private:
  void append(const std::vector<std::byte>& bytes);

  PartialSpan span_;
  OutputFile file_;
  std::uint64_t written_ = 0, checksum_ = 0;
};

/// The span of a partial and where it comes from, for messages.
struct NamedSpan {
  std::string name;
  PartialSpan span;
};

/// How partials of the same rows, given in any order, are joined.
struct JoinOrder {
  std::vector<std::size_t> order;  ///< indices, by their columns
  PartialSpan joined;
};
/// Throws Error{Code::state}: none given, a gap, an overlap, another scale, precision, number or length of rows.
JoinOrder order_of_join(std::span<const NamedSpan> parts);

/// Joins to every row the one that follows it in the order.
void join_rows(PartialRows& rows, const PartialRows& next);

}  // namespace io
}  // namespace v0
}  // namespace softfold
