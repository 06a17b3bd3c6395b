// What a verb tells when it is done: as text for people, or with --json as one object.
#pragma once

#include "softfold/tensor.hpp"

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>

namespace softfold::cli {

/// What --json prints: nlohmann's ordered JSON, and its rule for braces (a list of pairs that begin with a text is an
/// object, any other list an array). The verbs only put values together, so that its headers, most of what compiling
/// the command would take, are read only where a tree is looked into.
class Json {
 public:
  Json();  // null
  Json(std::nullptr_t) : Json() {}
  Json(std::same_as<bool> auto value) : Json(Truth{value}) {}
  Json(std::floating_point auto value) : Json(Real{static_cast<double>(value)}) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)
      : Json(Whole{static_cast<std::uint64_t>(value), std::is_signed_v<T>}) {}
  Json(std::string_view text);
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(const std::string& text) : Json(std::string_view(text)) {}
  template <std::ranges::input_range Values>
  requires(!std::convertible_to<Values, std::string_view> &&
           !std::same_as<std::ranges::range_value_t<Values>, Values>)  // as a path is, a range of paths
      Json(const Values& values)
      : Json(array()) {
    for (const auto& value : values) push_back(value);
  }
  Json(std::initializer_list<Json> values);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  static Json array();
  static Json object();
  void push_back(Json value);
  void set(std::string_view key, Json value);
  /// In one line, or with so many spaces of indentation.
  std::string dump(int indentation = -1) const;
  const nlohmann::ordered_json& tree() const { return *tree_; }

 private:
  struct Truth {
    bool value;
  };
  struct Real {
    double value;
  };
  struct Whole {
    std::uint64_t bits;
    bool is_signed;
  };
  explicit Json(Truth value);
  explicit Json(Real value);
  explicit Json(Whole value);

  std::unique_ptr<nlohmann::ordered_json> tree_;
};

/// A number, or where JSON has none a text: "inf", "-inf", "nan".
Json number(double value);
/// Prints the object with two spaces of indentation.
void print(const Json& object);

/// `text` fit for a terminal: control characters, as a file's name may have them, are replaced.
std::string printable(std::string_view text);
/// Tells on standard error, in one line, what the caller may not expect.
void note(const std::string& text);
/// Notes that a bfloat16 .npy that was written must be read with --as, which the file cannot say.
void note_bfloat16(const std::string& written, DType dtype);
/// "1 row", "2 rows".
std::string counted(std::int64_t count, const std::string& what);

/// What a summary adds where results are NaN, as their rows are; nothing where none is.
void tell_nan_rows(std::int64_t nan_rows, std::int64_t rows);

/// The most memory this process has had resident, in bytes.
std::uint64_t peak_memory();

}  // namespace softfold::cli
