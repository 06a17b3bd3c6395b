// Arrays written to a file in blocks, in any order, from any thread; the file appears on commit.
#pragma once

#include "softfold/io/header.hpp"
#include "softfold/io/output_file.hpp"

namespace softfold {
inline namespace v0 {
namespace io {

/// A file of one or several arrays whose header is written. Thread-safe as OutputFile is.
class SOFTFOLD_API ArrayOutput {
 public:
  ArrayOutput(OutputFile file, std::vector<ArrayHeader> arrays) : file_(std::move(file)), arrays_(std::move(arrays)) {}

  const std::string& path() const { return file_.path(); }
  const ArrayHeader& array(std::size_t index = 0) const { return arrays_[index]; }

  /// Writes the bytes of array `index` from `byte_offset` on (0 = its first element).
  /// Throws Error: Code::shape (beyond the array), Code::io.
  void write(std::uint64_t byte_offset, std::span<const std::byte> from, std::size_t index = 0);

  /// See OutputFile::commit: refused while bytes are missing.
  void commit() { file_.commit(); }

 private:
  OutputFile file_;
  std::vector<ArrayHeader> arrays_;
};

/// Begins an .npy file (version 1, C order). bfloat16 is written as '<V2', as ml_dtypes does: readers must be told.
/// Throws Error: Code::shape (negative, too large, more than kMaxRank axes), and as OutputFile does.
SOFTFOLD_API ArrayOutput create_npy(const std::string& destination, DType dtype, std::span<const std::int64_t> shape,
                                    std::span<const FileId> inputs = {});

/// Begins a .safetensors file of one or several tensors; `ArrayOutput::array(i)` is `tensors[i]`.
/// Throws Error as lay_out_safetensors and OutputFile do.
SOFTFOLD_API ArrayOutput create_safetensors(const std::string& destination, std::span<const TensorSpec> tensors,
                                            const std::map<std::string, std::string>& metadata = {},
                                            std::span<const FileId> inputs = {});

/// Begins a file of one array; the destination's name ends in .npy or .safetensors, which decides the format.
/// Throws Error{Code::option} for another ending, and as the two functions above do.
SOFTFOLD_API ArrayOutput create_array(const std::string& destination, const TensorSpec& tensor,
                                      std::span<const FileId> inputs = {});

/// Commits one after the other. Each file appears whole or not at all, but the files of one call are several: where one
/// fails, the Error says which of them stand already.
SOFTFOLD_API void commit_all(std::span<ArrayOutput* const> outputs);

}  // namespace io
}  // namespace v0
}  // namespace softfold
