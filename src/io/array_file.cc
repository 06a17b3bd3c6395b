#include "softfold/io/array_file.hpp"

#include "detail.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

std::vector<std::byte> read_head(const InputFile& file, std::uint64_t bytes) {
  std::vector<std::byte> head(static_cast<std::size_t>(std::min(bytes, file.size())));
  file.read(0, head);
  return head;
}

bool is_npy(const InputFile& file, std::string_view start) {
  return start.starts_with("\x93NUMPY") || file.path().ends_with(".npy");
}

[[noreturn]] void refuse_format(std::string_view start) {
  const bool archive = start.starts_with("PK");  // a zip: .npz, and .pt as torch.save writes it
  throw Error(Code::file, archive ? "a zip archive (.npz, .pt)" : "neither an .npy nor a .safetensors file",
              "an .npy or a .safetensors file",
              archive ? "numpy.save of one array, or safetensors.torch.save_file" : "numpy.save");
}

SafetensorsHeader read_safetensors(const InputFile& file) {
  const auto preamble = read_head(file, kSafetensorsPreambleBytes);
  const auto head = read_head(file, safetensors_header_bytes(preamble, file.size()));
  return parse_safetensors_header(head, file.size());
}

ArrayHeader read_header(const InputFile& file, std::string_view name, std::optional<DType> as) {
  const auto preamble = read_head(file, kNpyPreambleBytes);
  const std::string_view start(reinterpret_cast<const char*>(preamble.data()), preamble.size());
  if (is_npy(file, start)) {
    if (!name.empty())
      throw Error(Code::option, "the name " + in_quotes(name) + " for an .npy file", "no name: it holds one array",
                  "leave the name out");
    return parse_npy_header(read_head(file, npy_header_bytes(preamble)), file.size(), as);
  }
  // Their headers are JSON objects behind a length of eight bytes.
  if (!file.path().ends_with(".safetensors") && !(start.size() > 8 && start[8] == '{')) refuse_format(start);
  return find_tensor(read_safetensors(file), name, as);
}

/// What `read` makes of the file's header; a refusal begins with the path.
template <class Read>
auto naming_the_file(const InputFile& file, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(error.code, in_quotes(file.path()) + ": " + error.got, error.allowed, error.fix);
  }
}

}  // namespace

ArrayFile open_array(const std::string& path, std::string_view name, std::optional<DType> as) {
  InputFile file(path);
  ArrayHeader header = naming_the_file(file, [&] { return read_header(file, name, as); });
  return ArrayFile(std::move(file), std::move(header));
}

SafetensorsHeader list_tensors(const std::string& path) {
  const InputFile file(path);
  return naming_the_file(file, [&] { return read_safetensors(file); });
}

void ArrayFile::read(std::uint64_t byte_offset, std::span<std::byte> into) const {
  if (byte_offset > bytes() || into.size() > bytes() - byte_offset)
    throw Error(Code::shape, std::to_string(into.size()) + " bytes from byte " + std::to_string(byte_offset) + " on",
                "bytes of the array, which has " + std::to_string(bytes()));
  file_.read(offset() + byte_offset, into);
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
