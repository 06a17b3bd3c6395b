// The row operations as XLA calls them: one handler, told by its attributes which operation it is.
#include "rows.hpp"
#include "xla_ffi.hpp"

#include <string_view>

namespace softfold::python {
namespace {

using xla::CallFrame;

DType dtype_of(int dtype) {
  switch (dtype) {
    case xla::kFloat64: return DType::float64;
    case xla::kFloat32: return DType::float32;
    case xla::kFloat16: return DType::float16;
    case xla::kBFloat16: return DType::bfloat16;
    case xla::kBool: return DType::boolean;
    case xla::kInt32: return DType::int32;
    case xla::kInt64: return DType::int64;
    default:
      throw Error(Code::dtype, "XLA's data type number " + std::to_string(dtype),
                  "float64, float32, float16, bfloat16, bool, int32, int64");
  }
}

View view_of(const xla::Buffer& b, Device device) {
  return {b.data, dtype_of(b.dtype), {b.dims, static_cast<std::size_t>(b.rank)}, {}, device};
}

/// The attribute of that name: all are int64 but scale, a float64.
template <class T>
T attribute(const CallFrame& frame, std::string_view name) {
  for (std::int64_t i = 0; i < frame.attributes.size; ++i) {
    const xla::ByteSpan& n = *frame.attributes.names[i];
    if (std::string_view(n.data, n.size) != name || frame.attributes.types[i] != 3) continue;
    const auto& scalar = *static_cast<const xla::Scalar*>(frame.attributes.values[i]);
    if (scalar.dtype == (std::is_same_v<T, double> ? xla::kFloat64 : xla::kInt64))
      return *static_cast<const T*>(scalar.value);
  }
  throw Error(Code::option, "a call without the attribute " + std::string(name), "softfold.jax's own calls");
}

void* stream_of(const CallFrame& frame) {
  xla::StreamArguments a{sizeof a, nullptr, frame.context, nullptr};
  return frame.api->stream_get(&a) == nullptr ? a.stream : nullptr;
}

/// Arguments: the operation's own, then those of scales, lengths, offsets and mask that the bits of `given` name.
void run(const CallFrame& frame, DeviceKind kind) {
  const Device device{kind, static_cast<std::int32_t>(attribute<std::int64_t>(frame, "device"))};
  const auto own = attribute<std::int64_t>(frame, "inputs");
  const auto given = attribute<std::int64_t>(frame, "given");
  if (own < 1 || own > 3 || own > frame.arguments.size || frame.results.size != 1)
    throw Error(Code::shape, std::to_string(frame.arguments.size) + " arguments", "softfold.jax's own calls");
  View inputs[3];
  std::int64_t next = 0;
  for (; next < own; ++next) inputs[next] = view_of(*frame.arguments.buffers[next], device);
  RowOptions options;
  View* const optional[] = {&options.scales, &options.length, &options.offsets, &options.mask};
  for (int i = 0; i < 4; ++i)
    if ((given >> i & 1) != 0 && next < frame.arguments.size)
      *optional[i] = view_of(*frame.arguments.buffers[next++], device);
  options.axis = static_cast<int>(attribute<std::int64_t>(frame, "axis"));
  options.scale = attribute<double>(frame, "scale");
  options.causal = attribute<std::int64_t>(frame, "causal") != 0;
  options.empty = attribute<std::int64_t>(frame, "empty_nan") != 0 ? Empty::nan : Empty::zero;
  const View output[] = {view_of(*frame.results.buffers[0], device)};
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), kind == DeviceKind::cuda ? stream_of(frame) : nullptr, nullptr};
  const Op op = static_cast<Op>(attribute<std::int64_t>(frame, "op"));
  plan(op, {inputs, static_cast<std::size_t>(own)}, output, options, context).run();
}

void* refuse(const CallFrame& frame, const char* message, int code) {
  xla::ErrorArguments a{sizeof a, nullptr, message, code};
  return frame.api->error_create(&a);
}

void* call(CallFrame* frame, DeviceKind kind) noexcept {
  for (xla::Extension* e = frame->extension; e != nullptr; e = e->next) {
    if (e->type != 1) continue;
    xla::Metadata& m = *reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
    m.version.major = xla::kMajor;
    m.version.minor = xla::kMinor;
    m.traits = 0;
    return nullptr;
  }
  try {
    run(*frame, kind);
    return nullptr;
  } catch (const Error& e) {
    return refuse(*frame, e.what(), xla::kInvalidArgument);
  } catch (const std::exception& e) {
    return refuse(*frame, e.what(), xla::kInternal);
  }
}

void* handle_cpu(CallFrame* frame) { return call(frame, DeviceKind::cpu); }
void* handle_cuda(CallFrame* frame) { return call(frame, DeviceKind::cuda); }

}  // namespace

void bind_xla(nb::module_& m) {
  m.def(
      "xla_handler",
      [](const std::string& platform) {
        void* const handler =
            platform == "cpu" ? reinterpret_cast<void*>(&handle_cpu) : reinterpret_cast<void*>(&handle_cuda);
        return nb::capsule(handler, "xla._CUSTOM_CALL_TARGET");
      },
      nb::arg("platform"), "The handler of all row operations for XLA's \"cpu\" or \"CUDA\" platform, as a capsule.");
  m.def(
      "op_number", [](const std::string& name) { return static_cast<int>(op_of(name)); }, nb::arg("name"),
      "The number of an operation, as the XLA handler wants it.");
}

}  // namespace softfold::python
