#include "exchange.hpp"

#include <atomic>
#include <memory>

namespace softfold::python {
namespace {

/// DLPackExchangeAPI. Every major version begins with the same header.
struct Api {
  std::uint32_t major, minor;
  const Api* older;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*from_object)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

constexpr std::uint32_t kMajor = 1;

struct Exchange {
  nb::object type;
  const Api* api;
};

/// Never destroyed: calls may still run when the interpreter ends.
std::atomic<const Exchange*> current{nullptr};

const Api* api_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  auto* api = static_cast<const Api*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major > kMajor) api = api->older;
  return api != nullptr && api->major == kMajor && api->from_object != nullptr ? api : nullptr;
}

}  // namespace

bool use_exchange(nb::handle type) {
  const Api* const api = api_of(type);
  if (api == nullptr) return false;
  current.store(std::make_unique<const Exchange>(nb::borrow(type), api).release(), std::memory_order_release);
  return true;
}

bool is_exchanged(nb::handle object) {
  const Exchange* const e = current.load(std::memory_order_acquire);
  return e != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == e->type.ptr();
}

nb::dlpack::dltensor exchanged(nb::handle object) {
  nb::dlpack::dltensor fields;
  if (current.load(std::memory_order_acquire)->api->from_object(object.ptr(), &fields) != 0) throw nb::python_error();
  return fields;
}

}  // namespace softfold::python
