// A Python array seen as a softfold::View: by the buffer protocol where it is NumPy's, by DLPack everywhere else (from
// C where its library offers that, see exchange.hpp). Nothing is ever converted or copied here: what cannot be viewed
// is refused or left to the caller.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "softfold/softfold.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace softfold::python {

namespace nb = nanobind;

using Sizes = std::array<std::int64_t, kMaxRank>;

/// A View's fields with room for its own sizes, so that axes can be moved and merged.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  Device device{};
  int rank = 0;
  bool given = false;
  Sizes shape{}, strides{};

  View view() const;
  std::int64_t size(int axis) const { return shape[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(int axis) const { return strides[static_cast<std::size_t>(axis)]; }
  /// How many elements.
  std::int64_t count() const;
  std::string describe() const;
};

enum class Access : std::uint8_t { read, write };
inline constexpr const char* kFloatingDTypes = "float64, float32, float16, bfloat16";
inline constexpr const char* kIntegerDTypes = "int32, int64";

/// Holds the exporter's buffer for as long as the view is in use.
class Array {
 public:
  Array() = default;
  ~Array() { release(); }
  Array(Array&& other) noexcept
      : tensor(other.tensor),
        dtype_name(std::move(other.dtype_name)),
        buffer_(other.buffer_),
        has_buffer_(std::exchange(other.has_buffer_, false)),
        read_(std::move(other.read_)),
        written_(std::move(other.written_)) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  Array& operator=(Array&&) = delete;

  /// Views `object`. False if its dtype is none of softfold's (dtype_name says which it is); everything else that
  /// cannot be viewed is refused, `name` being the operand's.
  bool open(nb::handle object, const char* name, Access access = Access::read);
  /// The same, refusing a foreign dtype too; dtypes: which the operand takes, of the foreign one's refusal (one of
  /// softfold's that it does not take, the operation refuses). Lists and tuples become NumPy arrays first.
  void need(nb::handle object, const char* name, Access access = Access::read, const char* dtypes = kFloatingDTypes);

  Tensor tensor;
  std::string dtype_name;

 private:
  bool open_buffer(nb::handle object, const char* name, Access access);
  bool open_dlpack(nb::handle object, const char* name, Access access);
  bool adopt(const nb::dlpack::dltensor& from, nb::handle object, const char* name);
  void release();

  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::ndarray<nb::ro> read_;
  nb::ndarray<> written_;
};

/// Python objects that every call needs, looked up once.
struct Names {
  nb::object ndarray, empty, empty_like, asarray, uint16, float16, float32, float64, route;
};
const Names& names();

/// A Python integer, or what stands for one, as a Python integer of any size; not valid for what is none, which is what
/// a TypeError says. Whatever else an object's own __index__ raises reaches the caller.
nb::object index_of(nb::handle value);

/// The same as a T; what is none, or not within least .. most, is refused, `name` being the argument's.
template <class T>
T whole(nb::handle value, const char* name, T least = std::numeric_limits<T>::min(),
        T most = std::numeric_limits<T>::max()) {
  const nb::object number = index_of(value);
  T as_stored{};
  if (number.is_valid() && nb::try_cast<T>(number, as_stored) && as_stored >= least && as_stored <= most)
    return as_stored;
  const std::string got = std::string(name) + "=" + nb::cast<std::string>(nb::repr(value));
  throw Error(Code::option, got, "a whole number, " + std::to_string(least) + " .. " + std::to_string(most));
}

/// NumPy's dtype object for t; bfloat16's comes from ml_dtypes.
nb::object numpy_dtype(DType t);
/// That of a `dtype` that a caller gave, who may have given its name.
nb::object numpy_dtype(nb::handle dtype);

}  // namespace softfold::python
