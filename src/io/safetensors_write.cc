#include "detail.hpp"
#include "safetensors_dtypes.hpp"
#include "softfold/io/header.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

void refuse_bad_names(std::span<const TensorSpec> tensors) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__")
      throw Error(Code::option, "a tensor called " + in_quotes(tensor.name), "a name, other than '__metadata__'");
    if (!names.insert(tensor.name).second)
      throw Error(Code::option, "two tensors called " + in_quotes(tensor.name), "one tensor of each name");
  }
}

std::string text_of(const nlohmann::ordered_json& json) {
  try {
    return json.dump();
  } catch (const nlohmann::json::type_error&) {
    throw Error(Code::option, "a tensor's name or metadata that is not UTF-8", "UTF-8");
  }
}

}  // namespace

SafetensorsLayout lay_out_safetensors(std::span<const TensorSpec> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  refuse_bad_names(tensors);
  SafetensorsLayout layout;
  for (const TensorSpec& tensor : tensors)
    layout.arrays.push_back({tensor.dtype, tensor.shape, 0, checked_bytes(tensor.dtype, tensor.shape)});
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return size_of(tensors[i].dtype); });

  auto json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    ArrayHeader& array = layout.arrays[i];
    array.offset = std::exchange(end, end + array.bytes);
    if (end > INT64_MAX) throw Error(Code::shape, "tensors of more than 2^63 - 1 bytes", "fewer or smaller tensors");
    json[tensors[i].name] = {
        {"dtype", safetensors_name(array.dtype)}, {"shape", array.shape}, {"data_offsets", {array.offset, end}}};
  }
  std::string text = text_of(json);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  layout.head.resize(sizeof length);
  std::memcpy(layout.head.data(), &length, sizeof length);
  layout.head += text;
  for (ArrayHeader& array : layout.arrays) array.offset += layout.head.size();
  layout.file_bytes = layout.head.size() + end;
  return layout;
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
