#include "array.hpp"
#include "exchange.hpp"

#include <atomic>
#include <cstring>
#include <memory>

namespace softfold::python {
namespace {

/// softfold's dtype of a buffer's format, if it has one. Formats are struct's; '<', '=' and '@' are this machine's
/// byte order.
bool dtype_of(const char* format, Py_ssize_t itemsize, DType& dtype) {
  if (format == nullptr) return false;
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  if (*format == '\0' || format[1] != '\0') return false;
  switch (*format) {
    case 'd': dtype = DType::float64; return itemsize == 8;
    case 'f': dtype = DType::float32; return itemsize == 4;
    case 'e': dtype = DType::float16; return itemsize == 2;
    case '?': dtype = DType::boolean; return itemsize == 1;
    case 'i':
    case 'l':
    case 'q': dtype = itemsize == 8 ? DType::int64 : DType::int32; return itemsize == 8 || itemsize == 4;
    default: return false;
  }
}

bool dtype_of(nb::dlpack::dtype from, DType& dtype) {
  if (from.lanes != 1) return false;
  const auto is = [from](nb::dlpack::dtype_code code, int bits) {
    return from.code == static_cast<std::uint8_t>(code) && from.bits == bits;
  };
  using Code = nb::dlpack::dtype_code;
  if (is(Code::Float, 64)) return dtype = DType::float64, true;
  if (is(Code::Float, 32)) return dtype = DType::float32, true;
  if (is(Code::Float, 16)) return dtype = DType::float16, true;
  if (is(Code::Bfloat, 16)) return dtype = DType::bfloat16, true;
  if (is(Code::Bool, 8)) return dtype = DType::boolean, true;
  if (is(Code::Int, 64)) return dtype = DType::int64, true;
  if (is(Code::Int, 32)) return dtype = DType::int32, true;
  return false;
}

std::string kind_name(nb::handle object) { return nb::cast<std::string>(nb::object(object.type().attr("__name__"))); }

std::string dtype_text(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return nb::cast<std::string>(nb::steal<nb::object>(PyObject_Str(dtype.ptr())));
}

template <class Source>
nb::dlpack::dltensor fields_of(const Source& source) {
  return {const_cast<void*>(static_cast<const void*>(source.data())),
          {source.device_type(), source.device_id()},
          static_cast<std::int32_t>(source.ndim()),
          source.dtype(),
          const_cast<std::int64_t*>(source.shape_ptr()),
          const_cast<std::int64_t*>(source.stride_ptr()),
          0};
}

void check_rank(Py_ssize_t rank, const char* name) {
  if (rank > kMaxRank)
    throw Error(Code::shape, std::string(name) + " of rank " + std::to_string(rank),
                "rank up to " + std::to_string(kMaxRank), "reshape it: merge axes that lie next to each other");
}

}  // namespace

View Tensor::view() const {
  if (!given) return {};
  const auto n = static_cast<std::size_t>(rank);
  return {data, dtype, {shape.data(), n}, {strides.data(), n}, device};
}

std::int64_t Tensor::count() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= size(i);
  return n;
}

std::string Tensor::describe() const {
  std::string s = std::string(name_of(dtype)) + " [";
  for (int i = 0; i < rank; ++i) s += (i != 0 ? ", " : "") + std::to_string(size(i));
  return s + "]";
}

void Array::release() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
  has_buffer_ = false;
}

bool Array::open(nb::handle object, const char* name, Access access) {
  tensor.given = true;
  if (nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))).is(names().ndarray))
    return open_buffer(object, name, access);
  if (is_exchanged(object)) return adopt(exchanged(object), object, name);
  return open_dlpack(object, name, access);
}

void Array::need(nb::handle object, const char* name, Access access, const char* dtypes) {
  nb::object converted;
  if (access == Access::read && (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()))) {
    converted = names().asarray(object);
    object = converted;
  }
  if (!open(object, name, access))
    throw Error(Code::dtype, std::string(name) + " of dtype " + dtype_name, dtypes, "convert it with astype");
}

bool Array::open_buffer(nb::handle object, const char* name, Access access) {
  const int flags = access == Access::write ? PyBUF_RECORDS : PyBUF_RECORDS_RO;
  bool is_bfloat16 = false;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) {
    PyErr_Clear();
    if (access == Access::write && !nb::cast<bool>(nb::object(object.attr("flags").attr("writeable"))))
      throw Error(Code::option, std::string(name) + " that is read-only", "a writable array", "a copy of it");
    // NumPy exports no buffer of a dtype that it does not know itself; the bits of a bfloat16 are a uint16's.
    dtype_name = dtype_text(object);
    is_bfloat16 = dtype_name == "bfloat16";
    if (!is_bfloat16) return false;
    const nb::object bits = object.attr("view")(names().uint16);
    if (PyObject_GetBuffer(bits.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  has_buffer_ = true;
  tensor.data = buffer_.buf;
  tensor.rank = buffer_.ndim;
  if (is_bfloat16) {
    tensor.dtype = DType::bfloat16;
  } else if (!dtype_of(buffer_.format, buffer_.itemsize, tensor.dtype)) {
    dtype_name = dtype_text(object);
    return false;
  }
  check_rank(buffer_.ndim, name);
  for (int i = 0; i < buffer_.ndim; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (buffer_.strides[i] % buffer_.itemsize != 0 && buffer_.shape[i] > 1)
      throw Error(Code::strides,
                  std::string(name) + " with a stride of " + std::to_string(buffer_.strides[i]) + " bytes",
                  "strides of whole elements", "copy it to an array of its own");
    tensor.shape[at] = buffer_.shape[i];
    tensor.strides[at] = buffer_.strides[i] / buffer_.itemsize;
  }
  return true;
}

bool Array::adopt(const nb::dlpack::dltensor& from, nb::handle object, const char* name) {
  if (!dtype_of(from.dtype, tensor.dtype)) {
    dtype_name = dtype_text(object);
    return false;
  }
  check_rank(from.ndim, name);
  tensor.data = static_cast<char*>(from.data) + from.byte_offset;
  tensor.device = {static_cast<DeviceKind>(from.device.device_type), from.device.device_id};
  tensor.rank = from.ndim;
  std::int64_t step = 1;  // DLPack's strides may be absent for a contiguous tensor
  for (int i = from.ndim - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    tensor.shape[at] = from.shape[i];
    tensor.strides[at] = from.strides != nullptr ? from.strides[i] : step;
    step *= from.shape[i];
  }
  return true;
}

bool Array::open_dlpack(nb::handle object, const char* name, Access access) {
  if (access == Access::write) {
    if (!nb::try_cast(object, written_))
      throw Error(Code::option, std::string(name) + ", a " + kind_name(object) + " that is no writable array",
                  "a writable array with DLPack or the buffer protocol", "numpy.empty of the result's shape");
    return adopt(fields_of(written_), object, name);
  }
  if (!nb::try_cast(object, read_))
    throw Error(Code::dtype, std::string(name) + ", a " + kind_name(object),
                "an array with DLPack or the buffer protocol", "pass numpy.asarray of it");
  return adopt(fields_of(read_), object, name);
}

const Names& names() {
  // Never destroyed: they must outlive the interpreter's own order of ending. No static initialiser: a thread that
  // waits for one holds what the initialising thread needs from Python.
  static std::atomic<const Names*> found{nullptr};
  if (const Names* const all = found.load(std::memory_order_acquire)) return *all;
  const nb::object numpy = nb::module_::import_("numpy");
  const auto dtype = [&numpy](const char* name) { return numpy.attr("dtype")(name); };
  auto mine = std::make_unique<Names>(Names{numpy.attr("ndarray"), numpy.attr("empty"), numpy.attr("empty_like"),
                                            numpy.attr("asarray"), dtype("uint16"), dtype("float16"), dtype("float32"),
                                            dtype("float64"), nb::module_::import_("softfold._route")});
  const Names* expected = nullptr;
  return found.compare_exchange_strong(expected, mine.get()) ? *mine.release() : *expected;
}

nb::object index_of(nb::handle value) {
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) nb::raise_python_error();
    PyErr_Clear();
  }
  return number;
}

nb::object numpy_dtype(DType t) {
  switch (t) {
    case DType::float64: return names().float64;
    case DType::float32: return names().float32;
    case DType::float16: return names().float16;
    default: return nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  }
}

nb::object numpy_dtype(nb::handle dtype) {
  if (PyType_Check(dtype.ptr())) return nb::borrow(dtype);  // as numpy.float32: NumPy's own functions take it
  return names().route.attr("numpy_dtype")(dtype);
}

}  // namespace softfold::python
