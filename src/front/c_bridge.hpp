// What the C ABI's files share: exceptions into status codes, C structs into views and contexts.
#pragma once

#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <array>
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
                std::to_string(sizeof(std::size_t)) + " .. " + std::to_string(sizeof(T)),
                std::string("fill it with softfold_") + what + "_init");
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

softfold_row_options default_row_options();
RowOptions row_options_from(const softfold_row_options* given);

/// What softfold_plan holds: the workspace stands beside the plan that points to it.
struct StoredPlan {
  const void* self;  ///< where it was made; null until then
  Workspace workspace;
  Plan plan;
};
static_assert(sizeof(StoredPlan) <= sizeof(softfold_plan));

/// Judged before it is cut to Op's one byte.
inline Op op_from(int number) {
  if (number < 0 || number > static_cast<int>(kLastOp))
    throw Error(Code::unsupported, "operation number " + std::to_string(number), "the values of softfold_op");
  return static_cast<Op>(number);
}

constexpr std::size_t kMaxViews = 2 * kMaxMergeParts + 1;
static_assert(kMaxMergeParts == SOFTFOLD_MAX_MERGE_PARTS);

struct Views {
  std::array<View, kMaxViews> storage;
  std::size_t count;
  Views(const softfold_tensor* tensors, std::size_t n) : count(n) {
    if (n > kMaxViews || (n > 0 && tensors == nullptr))
      throw Error(Code::shape, std::to_string(n) + " tensors", "at most " + std::to_string(kMaxViews) + ", not null");
    for (std::size_t i = 0; i < n; ++i) storage[i] = view_from(tensors + i);
  }
  operator std::span<const View>() const { return {storage.data(), count}; }
};

template <class Options>
softfold_status make_plan(softfold_plan* to, int op, const softfold_tensor* inputs, std::size_t input_count,
                          const softfold_tensor* outputs, std::size_t output_count, const Options& options_from,
                          const softfold_context* context) {
  return guarded([&] {
    require(to, "plan");
    auto* stored = reinterpret_cast<StoredPlan*>(to->opaque);
    stored->self = nullptr;
    const Views in(inputs, input_count), out(outputs, output_count);
    ContextStorage c;
    read_context(c, context);
    stored->workspace = c.workspace;
    if (c.context.workspace != nullptr) c.context.workspace = &stored->workspace;
    new (&stored->plan) Plan(plan(op_from(op), in, out, options_from(), c.context));
    stored->self = stored;
  });
}

}  // namespace c_abi
}  // namespace v0
}  // namespace softfold
