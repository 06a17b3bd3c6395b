// Whatever stands in a .safetensors file, its header is parsed or refused with an Error; what is parsed keeps its word.
#include "softfold/error.hpp"
#include "softfold/io/header.hpp"

#include <cstdlib>
#include <cstring>

namespace {

using namespace softfold;

void require(bool truth) {
  if (!truth) std::abort();
}

/// What can be opened of the file can be written, and reads back the same.
void write_and_read_back(const io::SafetensorsHeader& header) {
  std::vector<io::TensorSpec> specs;
  for (const io::NamedTensor& tensor : header.tensors) {
    try {
      const io::ArrayHeader found = io::find_tensor(header, tensor.name);
      require(found.offset == tensor.offset && found.shape == tensor.shape);
      if (!tensor.name.empty()) specs.push_back({tensor.name, found.dtype, found.shape});
    } catch (const Error& error) {
      require(error.code == Code::dtype || error.code == Code::shape || tensor.name.empty());
    }
  }
  const io::SafetensorsLayout layout = io::lay_out_safetensors(specs, header.metadata);
  const auto again = io::parse_safetensors_header(std::as_bytes(std::span(layout.head)), layout.file_bytes);
  require(again.metadata == header.metadata && again.tensors.size() == specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const io::ArrayHeader found = io::find_tensor(again, specs[i].name);
    require(found.dtype == specs[i].dtype && found.shape == specs[i].shape);
    require(found.offset == layout.arrays[i].offset && found.bytes == layout.arrays[i].bytes);
  }
}

void check(std::span<const std::byte> file) {
  io::SafetensorsHeader header;
  try {
    header = io::parse_safetensors_header(file, file.size());
  } catch (const Error&) {
    return;
  }
  std::uint64_t bytes = 0;
  for (const io::NamedTensor& tensor : header.tensors) {
    require(tensor.offset <= file.size() && tensor.bytes <= file.size() - tensor.offset);
    bytes += tensor.bytes;
  }
  require(bytes <= file.size());
  try {
    io::find_tensor(header, "no such tensor");
  } catch (const Error& error) {
    require(error.code == Code::option || error.code == Code::dtype || error.code == Code::shape);
  }
  write_and_read_back(header);
}

/// The input with its header's length made true, so that the JSON is reached more often than by chance.
std::string with_true_length(std::string text) {
  const std::size_t end = text.rfind('}');
  if (end == std::string::npos || end < 8) return text;
  const std::uint64_t length = end + 1 - 8;
  std::memcpy(text.data(), &length, sizeof length);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(std::as_bytes(std::span(text)));
  const std::string corrected = with_true_length(text);
  check(std::as_bytes(std::span(corrected)));
  return 0;
}
