// The C ABI: exceptions turned into status codes and a message per thread, C structs into views.
#include "front/c_bridge.hpp"

namespace softfold {
inline namespace v0 {
namespace c_abi {
namespace {

/// A text of bounded size, cut where it is longer.
template <std::size_t Size>
class Text {
 public:
  void clear() { bytes_[size_ = 0] = 0; }
  Text& operator+=(std::string_view more) {
    size_ += more.copy(bytes_ + size_, Size - 1 - size_);
    bytes_[size_] = 0;
    return *this;
  }
  const char* c_str() const { return bytes_; }

 private:
  char bytes_[Size] = {};
  std::size_t size_ = 0;
};

/// The last refusal of this thread. Of fixed size and without a destructor: it needs no allocation, also not for being
/// registered with the thread.
struct LastError {
  Text<1536> got;
  Text<2048> allowed;
  Text<512> fix;
  Text<1536 + 2048 + 512 + 64> message;
};
constinit thread_local LastError last_error;

}  // namespace

softfold_status fail(const Failure& failure) noexcept {
  LastError& last = last_error;
  last.got.clear(), last.allowed.clear(), last.fix.clear(), last.message.clear();
  last.got += failure.got;
  last.allowed += failure.allowed;
  last.fix += failure.fix;
  // As Error::what() has it.
  ((last.message += "softfold: got ") += last.got.c_str()) += "; allowed: ";
  last.message += last.allowed.c_str();
  if (!failure.fix.empty()) (last.message += "; try: ") += last.fix.c_str();
  return static_cast<softfold_status>(failure.code);
}

DType dtype_from(int code, int bits, int lanes) {
  struct Known {
    int code, bits;
    DType dtype;
  };
  constexpr Known known[] = {{2, 32, DType::float32},  {2, 64, DType::float64}, {2, 16, DType::float16},
                             {4, 16, DType::bfloat16}, {6, 8, DType::boolean},  {0, 32, DType::int32},
                             {0, 64, DType::int64}};
  for (const Known& k : known)
    if (k.code == code && k.bits == bits && lanes == 1) return k.dtype;
  throw Error(Code::dtype,
              "DLPack dtype code " + std::to_string(code) + ", bits " + std::to_string(bits) + ", lanes " +
                  std::to_string(lanes),
              "float32, float64, float16, bfloat16, bool, int32, int64");
}

View view_from(const softfold_tensor* t) {
  if (t == nullptr) return {};
  if (t->ndim < 0 || (t->ndim > 0 && t->shape == nullptr))
    throw Error(Code::shape, "a tensor with ndim " + std::to_string(t->ndim) + " and no shape",
                "ndim >= 0 and a shape");
  const auto rank = static_cast<std::size_t>(t->ndim);
  std::span<const std::int64_t> strides;
  if (t->strides != nullptr) strides = {t->strides, rank};
  char* data = static_cast<char*>(t->data);
  return {static_cast<void*>(data == nullptr ? nullptr : data + t->byte_offset),
          dtype_from(t->dtype.code, t->dtype.bits, t->dtype.lanes),
          {t->shape, rank},
          strides,
          {static_cast<DeviceKind>(t->device.device_type), t->device.device_id}};
}

void read_context(ContextStorage& to, const softfold_context* given) {
  if (given == nullptr) return;
  const auto c = read_struct(given, {sizeof(softfold_context), nullptr, nullptr, nullptr, 0, 0}, "context");
  to.context.cpu = c.cpu != nullptr ? c.cpu->impl.get() : nullptr;
  to.context.stream = c.stream;
  to.context.overlap = c.overlap != 0;
  to.workspace = {c.workspace, c.workspace_bytes};
  if (c.workspace != nullptr) to.context.workspace = &to.workspace;
}

void require(const void* p, const char* what) {
  if (p == nullptr) throw Error(Code::shape, std::string("a null ") + what, std::string("a pointer to a ") + what);
}

}  // namespace c_abi
}  // namespace v0
}  // namespace softfold

using namespace softfold;

const char* softfold_last_error(void) { return c_abi::last_error.message.c_str(); }
const char* softfold_last_error_got(void) { return c_abi::last_error.got.c_str(); }
const char* softfold_last_error_allowed(void) { return c_abi::last_error.allowed.c_str(); }
const char* softfold_last_error_fix(void) { return c_abi::last_error.fix.c_str(); }
