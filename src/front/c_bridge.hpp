// What the C ABI's files share: exceptions into status codes, C structs into views and contexts.
#pragma once

#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <cstring>
#include <memory>
#include <new>
#include <string>

struct softfold_executor {
  std::unique_ptr<softfold::Executor> impl;
};

namespace softfold {
inline namespace v0 {
namespace c_abi {

/// Keeps the refusal for softfold_last_error() and gives its code.
softfold_status fail(const Error& e);

template <class F>
softfold_status guarded(F&& f) noexcept {
  try {
    f();
    return SOFTFOLD_OK;
  } catch (const Error& e) {
    return fail(e);
  } catch (const std::bad_alloc&) {
    return fail(Error(Code::out_of_memory, "an allocation that failed", "more memory"));
  } catch (const std::exception& e) {
    return fail(Error(Code::internal, e.what(), "no such failure", "report it"));
  }
}

void require(const void* p, const char* what);
DType dtype_from(int code, int bits, int lanes);
View view_from(const softfold_tensor* t);

/// A caller's struct may be older (shorter) than ours: what it does not have keeps its default.
template <class T>
T read_struct(const T* given, T defaults, const char* what) {
  if (given == nullptr) return defaults;
  if (given->struct_size < sizeof(std::size_t) || given->struct_size > sizeof(T))
    throw Error(Code::option, std::string(what) + " with struct_size " + std::to_string(given->struct_size),
                "at most " + std::to_string(sizeof(T)), std::string("fill it with softfold_") + what + "_init");
  std::memcpy(&defaults, given, given->struct_size);
  return defaults;
}

template <class E>
E enum_from(std::int32_t value, E last, const char* what) {
  if (value < 0 || value > static_cast<std::int32_t>(last))
    throw Error(Code::option, std::string(what) + " = " + std::to_string(value),
                "0 .. " + std::to_string(static_cast<int>(last)));
  return static_cast<E>(value);
}

/// A Context and the Workspace that it points to.
struct ContextStorage {
  Workspace workspace;
  Context context;
};
void read_context(ContextStorage& to, const softfold_context* given);

}  // namespace c_abi
}  // namespace v0
}  // namespace softfold
