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

/// The same columns of one or several rows: a cut through all rows at the same two places.
struct PartialFile {
  std::variant<std::vector<Partial<float>>, std::vector<Partial<double>>>
      rows;                      ///< at least one; all of one scale, offset, length
  std::int64_t row_length = -1;  ///< elements of a whole row; -1: whoever wrote the file did not know
};

/// What all rows of a file have in common.
struct PartialSpan {
  int digits;  ///< of the fold: 24 (float32) or 53 (float64)
  double scale;
  std::int64_t offset, length;  ///< elements [offset, offset + length) of each row
  std::int64_t rows;
  std::int64_t row_length;
};
PartialSpan span_of(const PartialFile& file);

/// How many bytes format_partials makes of such rows. Throws Error{Code::file} for a span that no file can have.
std::uint64_t bytes_of(const PartialSpan& span);

/// The bytes of a partial file. Throws Error: Code::shape (no rows, or rows cut differently).
std::vector<std::byte> format_partials(const PartialFile& file);

/// Reads back what format_partials wrote; a file that is parsed is exactly the one that would be written.
/// Throws Error: Code::file (truncated, damaged or lying), Code::state (written with another definition of the bits).
PartialFile parse_partials(std::span<const std::byte> bytes);

/// Throws Error as InputFile::read and parse_partials do; `got` begins with the path.
PartialFile read_partials(const InputFile& file);

/// Begins a partial file of `bytes`; `inputs`: files that must not be the destination. Throws Error: Code::option (a
/// name that ends in .npy or .safetensors, or an existing file that is neither empty nor a partial: data would be
/// lost), and as OutputFile does.
OutputFile create_partials(const std::string& destination, std::uint64_t bytes, std::span<const FileId> inputs);

/// Writes beside `destination`, then renames. Throws Error as format_partials and create_partials do.
void write_partials(const std::string& destination, const PartialFile& file, std::span<const FileId> inputs);

/// A partial and where it comes from, for messages.
struct NamedPartial {
  std::string name;
  PartialFile partial;
};

/// Joins partials of the same rows, given in any order, whose columns lie end to end.
/// Throws Error{Code::state}: none given, a gap, an overlap, another scale, precision, number or length of rows.
PartialFile join_partials(std::vector<NamedPartial> parts);

}  // namespace io
}  // namespace v0
}  // namespace softfold
