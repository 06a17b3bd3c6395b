#include "softfold/io/array_output.hpp"

#include "detail.hpp"
#include "softfold/io/nearest.hpp"

#include <filesystem>

namespace softfold {
inline namespace v0 {
namespace io {

void ArrayOutput::write(std::uint64_t byte_offset, std::span<const std::byte> from, std::size_t index) {
  const ArrayHeader& array = arrays_[index];
  if (byte_offset > array.bytes || from.size() > array.bytes - byte_offset)
    throw Error(Code::shape, std::to_string(from.size()) + " bytes written at byte " + std::to_string(byte_offset),
                "bytes of the array, which has " + std::to_string(array.bytes));
  file_.write(array.offset + byte_offset, from);
}

ArrayOutput create_npy(const std::string& destination, DType dtype, std::span<const std::int64_t> shape,
                       std::span<const FileId> inputs) {
  const std::uint64_t bytes = checked_bytes(dtype, shape);
  const std::string head = format_npy_header(dtype, shape);
  OutputFile file(destination, head.size() + bytes, inputs);
  file.write(0, std::as_bytes(std::span(head)));
  std::vector<ArrayHeader> arrays{{dtype, {shape.begin(), shape.end()}, head.size(), bytes}};
  return ArrayOutput(std::move(file), std::move(arrays));
}

ArrayOutput create_safetensors(const std::string& destination, std::span<const TensorSpec> tensors,
                               const std::map<std::string, std::string>& metadata, std::span<const FileId> inputs) {
  SafetensorsLayout layout = lay_out_safetensors(tensors, metadata);
  OutputFile file(destination, layout.file_bytes, inputs);
  file.write(0, std::as_bytes(std::span(layout.head)));
  return ArrayOutput(std::move(file), std::move(layout.arrays));
}

namespace {

bool is_array_name(const std::string& name) { return name.ends_with(".npy") || name.ends_with(".safetensors"); }

/// The nearest name to `destination` that create_array takes.
std::string nearest_output(std::string destination) {
  if (destination.empty() || destination == "-") return "result.npy";
  while (destination.size() > 1 && destination.ends_with('/')) destination.pop_back();
  if (is_array_name(destination)) return destination;
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(destination, unknown);
  if (std::filesystem::is_directory(status)) return destination + "/result.npy";
  const bool other = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  if (other) return "result.npy";
  std::filesystem::path path(destination);
  constexpr std::string_view endings[] = {".npy", ".safetensors"};
  const std::string_view near = nearest(path.extension().string(), endings);
  return near.empty() ? destination + ".npy" : path.replace_extension(near).string();
}

}  // namespace

ArrayOutput create_array(const std::string& destination, const TensorSpec& tensor, std::span<const FileId> inputs) {
  if (destination.ends_with(".npy")) return create_npy(destination, tensor.dtype, tensor.shape, inputs);
  if (destination.ends_with(".safetensors")) return create_safetensors(destination, {&tensor, 1}, {}, inputs);
  throw Error(Code::option, "the output " + in_quotes(destination), "a name that ends in .npy or .safetensors",
              nearest_output(destination));
}

void commit_all(std::span<ArrayOutput* const> outputs) {
  std::string standing;
  for (ArrayOutput* const output : outputs) {
    try {
      output->commit();
    } catch (const Error& error) {
      if (standing.empty()) throw;
      throw Error(error.code, error.got + "; of the outputs of this call " + standing + " stand and the others do not",
                  error.allowed, error.fix + "; then once more, all of them");
    }
    standing += (standing.empty() ? "" : ", ") + in_quotes(output->path());
  }
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
