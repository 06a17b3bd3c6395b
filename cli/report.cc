#include "report.hpp"

#include "io/detail.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace softfold::cli {

namespace {

using Tree = nlohmann::ordered_json;

bool is_entry(const Json& value) {
  return value.tree().is_array() && value.tree().size() == 2 && value.tree()[0].is_string();
}

}  // namespace

Json::Json() : tree_(std::make_unique<Tree>()) {}
Json::Json(Truth value) : tree_(std::make_unique<Tree>(value.value)) {}
Json::Json(Real value) : tree_(std::make_unique<Tree>(value.value)) {}
Json::Json(Whole value)
    : tree_(value.is_signed ? std::make_unique<Tree>(static_cast<std::int64_t>(value.bits))
                            : std::make_unique<Tree>(value.bits)) {}
Json::Json(std::string_view text) : tree_(std::make_unique<Tree>(text)) {}
Json::Json(std::initializer_list<Json> values) : Json(std::ranges::all_of(values, is_entry) ? object() : array()) {
  for (const Json& value : values) {
    if (tree_->is_object())
      tree_->push_back({value.tree()[0].get<std::string>(), value.tree()[1]});
    else
      tree_->push_back(value.tree());
  }
}
Json::Json(const Json& other) : tree_(std::make_unique<Tree>(*other.tree_)) {}
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json other) noexcept {
  tree_.swap(other.tree_);
  return *this;
}
Json::~Json() = default;

Json Json::array() {
  Json json;
  *json.tree_ = Tree::array();
  return json;
}
Json Json::object() {
  Json json;
  *json.tree_ = Tree::object();
  return json;
}
void Json::push_back(Json value) { tree_->push_back(std::move(*value.tree_)); }
void Json::set(std::string_view key, Json value) { (*tree_)[std::string(key)] = std::move(*value.tree_); }
std::string Json::dump(int indentation) const {
  return tree_->dump(indentation, ' ', false, Tree::error_handler_t::replace);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(fmt::to_string(value)); }

void print(const Json& object) { fmt::print("{}\n", object.dump(2)); }

std::string printable(std::string_view text) { return io::printable(text); }

void note(const std::string& text) { fmt::print(stderr, "softfold: note: {}\n", printable(text)); }

void note_bfloat16(const std::string& written, DType dtype) {
  if (dtype != DType::bfloat16 || !written.ends_with(".npy")) return;
  note(fmt::format(".npy cannot name bfloat16: read '{}' with --as bfloat16, or write .safetensors", written));
}

std::string counted(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void tell_nan_rows(std::int64_t nan_rows, std::int64_t rows) {
  if (nan_rows > 0) fmt::print("NaN in {} of {}\n", nan_rows, counted(rows, "row"));
}

std::uint64_t peak_memory() {
  // Not getrusage: what it tells begins with the memory of the process that forked this one.
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::uint64_t kib = 0; word == "VmHWM:" && status >> kib) return kib * 1024;
  return 0;
}

}  // namespace softfold::cli
