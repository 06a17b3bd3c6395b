// What the headers of .npy and .safetensors files say, checked against the file's size. Parsers and writers of
// headers work on memory alone; array_file.hpp and array_output.hpp do the reading and writing.
#pragma once

#include "softfold/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace io {

/// One array in a file, C-contiguous and little-endian.
struct ArrayHeader {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;  ///< at most kMaxRank sizes, each >= 0
  std::uint64_t offset = 0;         ///< of the first element, bytes from the start of the file
  std::uint64_t bytes = 0;          ///< of all elements; offset + bytes never exceeds the file's size
};

/// Bytes of a C-contiguous array, or nothing where a size is negative or the product of the nonzero sizes and the
/// element's bytes exceeds 2^63 - 1 (so that strides of an array with a zero size fit too).
std::optional<std::uint64_t> bytes_of(DType dtype, std::span<const std::int64_t> shape);

/// How much of a file's start npy_header_bytes needs (a shorter file: all of it).
inline constexpr std::size_t kNpyPreambleBytes = 12;

/// Bytes from the start of an .npy file (format versions 1, 2, 3) to its data. At most 1 MiB.
/// Throws Error{Code::file} if these bytes do not begin such a file.
std::size_t npy_header_bytes(std::span<const std::byte> preamble);

/// Parses an .npy header. `head` holds at least the file's first npy_header_bytes bytes, `file_size` is in bytes.
/// Taken: little-endian float16, float32, float64, int32, int64, and bool, in C order.
/// `as`: the dtype the caller says the file has. It must equal the header's, with one exception: the header cannot
/// name bfloat16 (ml_dtypes writes '<V2', others '|V2' or '<u2'), so those three are read only with `as` bfloat16.
/// Throws Error: Code::file (truncated, lying or damaged), Code::dtype, Code::strides (Fortran order), Code::shape
/// (more than kMaxRank axes).
ArrayHeader parse_npy_header(std::span<const std::byte> head, std::uint64_t file_size, std::optional<DType> as = {});

/// The bytes before the data of an .npy file of version 1, as numpy.save writes them; their number is a multiple of
/// 64. bfloat16 becomes '<V2', as ml_dtypes.bfloat16 does. `shape` has at most kMaxRank sizes, each >= 0.
std::string format_npy_header(DType dtype, std::span<const std::int64_t> shape);

/// One tensor as a .safetensors header describes it. Its dtype may be one that ArrayHeader cannot hold.
struct NamedTensor {
  std::string name;
  std::string dtype;  ///< as the file spells it: "F32", "BF16", "U8", ...
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< bytes from the start of the file
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<NamedTensor> tensors;             ///< in the header's order
  std::map<std::string, std::string> metadata;  ///< of "__metadata__"
};

/// How much of a file's start safetensors_header_bytes needs (a shorter file: all of it).
inline constexpr std::size_t kSafetensorsPreambleBytes = 8;

/// Bytes from the start of a .safetensors file of `file_size` bytes to its data. At most 100 MB, the format's limit.
/// Throws Error{Code::file} if these bytes do not begin such a file.
std::size_t safetensors_header_bytes(std::span<const std::byte> preamble, std::uint64_t file_size);

/// Parses a .safetensors header. `head` holds at least the file's first safetensors_header_bytes bytes. The tensors
/// have distinct names, agree in shape, dtype and offsets, and fill the file without gap or overlap.
/// Throws Error{Code::file} otherwise.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::uint64_t file_size);

/// The tensor called `name`, or with an empty name the only one. `as`, if given, must be its dtype.
/// Throws Error: Code::option (no such name, with the nearest one and what there is), Code::dtype (other than float32,
/// float64, float16, bfloat16, bool, int32, int64), Code::shape (more than kMaxRank axes).
ArrayHeader find_tensor(const SafetensorsHeader& header, std::string_view name, std::optional<DType> as = {});

/// An array to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
};

struct SafetensorsLayout {
  std::string head;                 ///< the file's bytes before the data, a multiple of 8
  std::vector<ArrayHeader> arrays;  ///< one for each TensorSpec, in their order
  std::uint64_t file_bytes = 0;
};

/// Lays out a .safetensors file: larger elements first, so that every tensor is aligned to its element.
/// Throws Error: Code::option (names empty, equal, not UTF-8, or "__metadata__"), Code::shape.
SafetensorsLayout lay_out_safetensors(std::span<const TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata = {});

}  // namespace io
}  // namespace v0
}  // namespace softfold
