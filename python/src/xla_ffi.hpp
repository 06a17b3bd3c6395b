// What a handler sees of XLA's foreign function interface, declared here so that no XLA is needed to build the package
// (its layout is checked against the installed JAX's own headers by python/tests/test_jax.py).
// The interface is a C ABI in which every struct begins with its size; fields are only ever added at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softfold::python::xla {

struct Extension {
  std::size_t struct_size;
  int type;  // 1: metadata
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major, minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorArguments {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  int code;
};

struct StreamArguments {
  std::size_t struct_size;
  Extension* extension;
  void* context;
  void* stream;
};

/// The beginning of the table of functions that XLA offers.
struct Api {
  std::size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;
  void* (*error_create)(ErrorArguments*);
  void* error_message;
  void* error_destroy;
  void* handler_register;
  void* (*stream_get)(StreamArguments*);
};

enum DataType : int { kBool = 1, kInt32 = 4, kInt64 = 5, kFloat16 = 10, kFloat32 = 11, kFloat64 = 12, kBFloat16 = 16 };

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

/// Arguments and results alike.
struct Buffers {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;  // 1: a buffer
  Buffer** buffers;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  int dtype;
  void* value;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;  // 3: a scalar
  ByteSpan** names;
  void** values;
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  void* context;
  int stage;  // 3: execute
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

inline constexpr int kMajor = 0, kMinor = 1;
inline constexpr int kInvalidArgument = 3, kInternal = 13;

}  // namespace softfold::python::xla
