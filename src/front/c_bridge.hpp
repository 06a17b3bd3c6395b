// What the C ABI's files share: exceptions into status codes, C structs into views and contexts.
#pragma once

#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

struct softfold_executor {
  std::unique_ptr<softfold::Executor> impl;
};

namespace softfold {
inline namespace v0 {
namespace c_abi {

/// Why a call failed, in texts that are read before this returns.
struct Failure {
  Code code;
  std::string_view got, allowed, fix;
};
/// Keeps it for softfold_last_error() and gives its code. It allocates nothing: what failed may be an allocation.
softfold_status fail(const Failure& failure) noexcept;

template <class F>
softfold_status guarded(F&& f) noexcept {
  try {
    f();
    return SOFTFOLD_OK;
  } catch (const Error& e) {
    return fail({e.code, e.got, e.allowed, e.fix});
  } catch (const std::bad_alloc&) {
    return fail({Code::out_of_memory, "an allocation that failed", "a call with enough memory", "free some"});
  } catch (const std::exception& e) {
    return fail({Code::internal, e.what(), "no such failure", "report it"});
  } catch (...) {
    return fail({Code::internal, "an exception of an unknown type", "no such failure", "report it"});
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
