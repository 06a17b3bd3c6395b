// The header of a .safetensors file: eight bytes of length and a JSON object of objects. The JSON is judged event by
// event as it is read, so that neither its depth nor its size is a danger.
#include "detail.hpp"
#include "safetensors_dtypes.hpp"
#include "softfold/io/header.hpp"
#include "softfold/io/nearest.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void refuse_safetensors(std::string got) {
  throw Error(Code::file, std::move(got), "a .safetensors file as safetensors' save_file writes it",
              "write it again with safetensors");
}

/// Takes the parser's events. Offsets are as in the file: from the start of the data.
class HeaderEvents final : public Json::json_sax_t {
 public:
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) refuse_safetensors("a .safetensors header with '__metadata__' twice");
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      header.tensors.push_back({.name = key_, .dtype = {}, .shape = {}});
      has_ = {};
      place_ = Place::tensor;
    } else {
      unexpected("an object");
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::tensor && !(has_.dtype && has_.shape && has_.offsets))
      refuse_safetensors("the tensor " + in_quotes(header.tensors.back().name) +
                         " without all of dtype, shape and data_offsets");
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || (key_ != "shape" && key_ != "data_offsets")) unexpected("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    offsets_.clear();
    return true;
  }
  bool end_array() override {
    if (place_ == Place::offsets) {
      if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) unexpected("other than a beginning and an end");
      header.tensors.back().offset = offsets_[0];
      header.tensors.back().bytes = offsets_[1] - offsets_[0];
    }
    place_ = Place::tensor;
    return true;
  }
  bool key(std::string& text) override {
    key_ = text;
    if (place_ != Place::tensor) return true;
    bool* const seen = key_ == "dtype"          ? &has_.dtype
                       : key_ == "shape"        ? &has_.shape
                       : key_ == "data_offsets" ? &has_.offsets
                                                : nullptr;
    if (seen == nullptr) unexpected("an unknown key");
    if (std::exchange(*seen, true)) unexpected("a key twice");
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      if (!header.metadata.emplace(key_, text).second) unexpected("a key twice");
    } else if (place_ == Place::tensor && key_ == "dtype") {
      header.tensors.back().dtype = text;
    } else {
      unexpected("a string");
    }
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape && value <= INT64_MAX) {
      header.tensors.back().shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      unexpected("the number " + std::to_string(value));
    }
    return true;
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string& text) override { unexpected("the number " + in_quotes(text)); }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    refuse_safetensors("a .safetensors header that is not JSON at its byte " + std::to_string(position) + ", " +
                       in_quotes(token));
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets, end };

  [[noreturn]] void unexpected(const std::string& what) const {
    const bool inside = place_ == Place::tensor || place_ == Place::shape || place_ == Place::offsets;
    refuse_safetensors("a .safetensors header with " + what + " at " + in_quotes(key_) +
                       (inside ? " of the tensor " + in_quotes(header.tensors.back().name) : ""));
  }

  Place place_ = Place::start;
  std::string key_;
  std::vector<std::uint64_t> offsets_;
  struct {
    bool dtype = false, shape = false, offsets = false;
  } has_;
  bool metadata_seen_ = false;
};

void refuse_equal_names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string_view> names(tensors.size());
  std::ranges::transform(tensors, names.begin(), &NamedTensor::name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) refuse_safetensors("a .safetensors header with the tensor " + in_quotes(*twice) + " twice");
}

/// Every byte of the data belongs to exactly one tensor.
void refuse_gaps(const std::vector<NamedTensor>& tensors, std::uint64_t data_bytes) {
  std::vector<const NamedTensor*> order(tensors.size());
  std::ranges::transform(tensors, order.begin(), [](const NamedTensor& tensor) { return &tensor; });
  std::ranges::sort(order, {}, [](const NamedTensor* tensor) { return std::pair(tensor->offset, tensor->bytes); });
  std::uint64_t end = 0;
  for (const NamedTensor* const tensor : order) {
    if (tensor->offset != end)
      refuse_safetensors("the tensor " + in_quotes(tensor->name) + ", which begins at byte " +
                         std::to_string(tensor->offset) + " of the data; the one before it ends at " +
                         std::to_string(end));
    end += tensor->bytes;
  }
  if (end != data_bytes)
    refuse_safetensors("a .safetensors file with " + std::to_string(data_bytes) +
                       " bytes of data where its header says " + std::to_string(end));
}

void refuse_wrong_sizes(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) {
    const std::size_t element = safetensors_element_bytes(tensor.dtype);
    if (element == 0) continue;  // a dtype of another day: never opened, so its size need not be known
    if (bytes_of(element, tensor.shape) != tensor.bytes)
      refuse_safetensors("the tensor " + in_quotes(tensor.name) + " of " +
                         in_quotes(tensor.dtype + text_of(tensor.shape)) + " in " + std::to_string(tensor.bytes) +
                         " bytes");
  }
}

[[noreturn]] void refuse_name(const SafetensorsHeader& header, std::string_view name) {
  if (header.tensors.empty())
    throw Error(Code::option, "a .safetensors file without tensors", "a file with at least one tensor",
                "write it again with the tensor in it, or name another file");
  constexpr std::size_t kShown = 8;
  std::vector<std::string_view> names(header.tensors.size());
  std::ranges::transform(header.tensors, names.begin(), &NamedTensor::name);
  std::string list;
  for (const std::string_view one : std::span(names).first(std::min(kShown, names.size())))
    list += (list.empty() ? "" : ", ") + in_quotes(one);
  if (names.size() > kShown) list += ", ... (" + std::to_string(names.size()) + " in all)";
  const std::string_view some = names.front().empty() ? names.back() : names.front();
  const std::string_view near = name.empty() ? some : nearest(name, names);
  throw Error(Code::option, name.empty() ? "no name for a tensor" : "the name " + in_quotes(name), list,
              near.empty() ? "" : in_quotes(near));
}

}  // namespace

std::size_t safetensors_header_bytes(std::span<const std::byte> preamble, std::uint64_t file_size) {
  if (preamble.size() < kSafetensorsPreambleBytes)
    refuse_safetensors("a .safetensors file that ends inside its header");
  std::uint64_t length = 0;
  std::memcpy(&length, preamble.data(), sizeof length);
  if (length > kMaxHeader)
    refuse_safetensors("a .safetensors header said to have " + std::to_string(length) + " bytes (100 MB at most)");
  if (length > file_size - std::min<std::uint64_t>(file_size, kSafetensorsPreambleBytes))
    refuse_safetensors("a .safetensors file that ends inside its header");
  return kSafetensorsPreambleBytes + static_cast<std::size_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, std::uint64_t file_size) {
  const auto preamble = head.first(std::min(head.size(), kSafetensorsPreambleBytes));
  const std::size_t data = safetensors_header_bytes(preamble, file_size);
  if (data > head.size()) refuse_safetensors("a .safetensors file that ends inside its header");
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kSafetensorsPreambleBytes,
                              data - kSafetensorsPreambleBytes);
  // The JSON parser takes a zero byte for the end of its input.
  if (!text.starts_with('{') || text.find('\0') != std::string_view::npos)
    refuse_safetensors("a .safetensors header that is not a JSON object");
  HeaderEvents events;
  Json::sax_parse(text.begin(), text.end(), &events);
  SafetensorsHeader header = std::move(events.header);
  refuse_equal_names(header.tensors);
  refuse_gaps(header.tensors, file_size - data);
  refuse_wrong_sizes(header.tensors);
  for (NamedTensor& tensor : header.tensors) tensor.offset += data;
  return header;
}

ArrayHeader find_tensor(const SafetensorsHeader& header, std::string_view name, std::optional<DType> as) {
  const auto& tensors = header.tensors;
  // No name is that of the only tensor, not one of several that is named so.
  const bool only = name.empty() && tensors.size() == 1;
  const auto named = name.empty() ? tensors.end() : std::ranges::find(tensors, name, &NamedTensor::name);
  const auto found = only ? tensors.begin() : named;
  if (found == tensors.end()) refuse_name(header, name);
  const std::string allowed = "float32, float64, float16, bfloat16, bool, int32, int64";
  const auto dtype = safetensors_dtype(found->dtype);
  if (!dtype)
    throw Error(Code::dtype, "the tensor " + in_quotes(found->name) + " of dtype " + in_quotes(found->dtype), allowed,
                found->dtype == "C64" ? "store its real part or its absolute values" : "store it as float32");
  if (as && *as != *dtype)
    throw Error(Code::dtype,
                "the tensor " + in_quotes(found->name) + " of dtype " + std::string(name_of(*dtype)) + " opened as " +
                    std::string(name_of(*as)),
                "its own dtype", "leave the dtype out");
  if (found->shape.size() > kMaxRank)
    throw Error(Code::shape,
                "the tensor " + in_quotes(found->name) + " of " + std::to_string(found->shape.size()) + " axes",
                "at most 8 axes", "store it with neighbouring axes merged");
  return {*dtype, found->shape, found->offset, found->bytes};
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
