// An array in a file, open for reading: its header checked, its data read by offset into the caller's memory.
#pragma once

#include "softfold/io/header.hpp"
#include "softfold/io/input_file.hpp"

namespace softfold {
inline namespace v0 {
namespace io {

/// Reading is thread-safe. The file stays open until destruction.
class SOFTFOLD_API ArrayFile {
 public:
  ArrayFile(InputFile file, ArrayHeader header) : file_(std::move(file)), header_(std::move(header)) {}

  const std::string& path() const { return file_.path(); }
  DType dtype() const { return header_.dtype; }
  std::span<const std::int64_t> shape() const { return header_.shape; }
  std::uint64_t offset() const { return header_.offset; }  ///< bytes from the start of the file to the data
  std::uint64_t bytes() const { return header_.bytes; }    ///< of the data

  /// Fills `into` with the array's bytes from `byte_offset` on (0 = the first element).
  /// The bytes of a bool array are whatever the file holds: compare with 0, never read them as C++ bool.
  /// Throws Error: Code::shape (beyond the array), Code::file (the file became shorter), Code::io.
  void read(std::uint64_t byte_offset, std::span<std::byte> into) const;

  /// The file below: its identity (to refuse it as an output) and whether it changed since.
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  ArrayHeader header_;
};

/// Opens an array in `path`: an .npy file, or the tensor `name` of a .safetensors file (where the name may be left out
/// if there is only one tensor). Which it is, its first bytes tell.
/// `as`: the dtype the caller says it has; needed for bfloat16 in .npy, see parse_npy_header.
/// Throws Error as InputFile, parse_npy_header, parse_safetensors_header and find_tensor do, Code::option (a name for
/// an .npy file); `got` begins with the path.
SOFTFOLD_API ArrayFile open_array(const std::string& path, std::string_view name = "", std::optional<DType> as = {});

/// Every tensor of a .safetensors file, with its metadata. Throws Error as open_array does.
SOFTFOLD_API SafetensorsHeader list_tensors(const std::string& path);

}  // namespace io
}  // namespace v0
}  // namespace softfold
