// The C ABI: plain structs in, views out, exceptions turned into status codes and a message per thread.
#include "front/c_bridge.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace softfold {
inline namespace v0 {
namespace c_abi {
namespace {

static_assert(sizeof(Plan) <= sizeof(softfold_plan) && alignof(Plan) <= 16);
static_assert(static_cast<int>(Op::merge_blocks) == SOFTFOLD_OP_MERGE_BLOCKS);
static_assert(static_cast<int>(Op::attention) == SOFTFOLD_OP_ATTENTION);
static_assert(static_cast<int>(Code::verification) == SOFTFOLD_VERIFICATION);

/// The last refusal of this thread; the message is only built when something was refused.
struct LastError {
  std::string message, got, allowed, fix;
};
LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

softfold_status fail(const Error& e) {
  LastError& last = last_error();
  last = {e.what(), e.got, e.allowed, e.fix};
  return static_cast<softfold_status>(e.code);
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
  const auto c = read_struct(given, {sizeof(softfold_context), nullptr, nullptr, nullptr, 0}, "context");
  to.context.cpu = c.cpu != nullptr ? c.cpu->impl.get() : nullptr;
  to.context.stream = c.stream;
  to.workspace = {c.workspace, c.workspace_bytes};
  if (c.workspace != nullptr) to.context.workspace = &to.workspace;
}

void require(const void* p, const char* what) {
  if (p == nullptr) throw Error(Code::shape, std::string("a null ") + what, std::string("a pointer to a ") + what);
}

namespace {

softfold_row_options default_row_options() {
  return {sizeof(softfold_row_options), 1., nullptr, nullptr, nullptr, nullptr, -1, 0, 0, 0};
}

RowOptions row_options_from(const softfold_row_options* given) {
  if (given == nullptr) return {};
  const auto o = read_struct(given, default_row_options(), "row_options");
  RowOptions r;
  r.axis = o.axis;
  r.scale = o.scale;
  r.scales = view_from(o.scales);
  r.length = view_from(o.length);
  r.offsets = view_from(o.offsets);
  r.mask = view_from(o.mask);
  r.causal = o.causal != 0;
  r.empty = enum_from(o.empty, Empty::nan, "empty");
  r.rung = enum_from(o.rung, Rung::fused, "rung");
  return r;
}

MergeOptions merge_options_from(const softfold_merge_options* given) {
  const auto o = read_struct(given, {sizeof(softfold_merge_options), 0, 0}, "merge_options");
  return {enum_from(o.base, LogBase::two, "base"), enum_from(o.statistics, Statistics::max_sum, "statistics")};
}

softfold_attention_options default_attention_options() {
  softfold_attention_options o{};
  o.struct_size = sizeof o;
  o.scale = std::numeric_limits<double>::quiet_NaN();
  o.window_left = o.window_right = -1;
  return o;
}

AttentionOptions attention_options_from(const softfold_attention_options* given) {
  if (given == nullptr) return {};
  const auto o = read_struct(given, default_attention_options(), "attention_options");
  AttentionOptions a;
  a.layout = enum_from(o.layout, Layout::bthd, "layout");
  a.scale = o.scale;
  a.causal = o.causal != 0;
  a.window = {o.window_left, o.window_right};
  a.softcap = o.softcap;
  a.sink = view_from(o.sink);
  a.bias = view_from(o.bias);
  a.mask = view_from(o.mask);
  a.slopes = view_from(o.slopes);
  a.kv_lengths = view_from(o.kv_lengths);
  a.kv_starts = view_from(o.kv_starts);
  a.kv_index = view_from(o.kv_index);
  if (o.page_table != nullptr) {
    a.kv = Paged{view_from(o.page_table), a.kv_lengths};
  } else if (o.q_offsets != nullptr || o.kv_offsets != nullptr) {
    a.kv = Varlen{view_from(o.q_offsets), view_from(o.kv_offsets), o.max_q, o.max_kv};
  } else if (o.max_q != 0 || o.max_kv != 0) {
    throw Error(Code::option, "max_q or max_kv without q_offsets and kv_offsets", "both offsets, or none of the four");
  }
  a.q_positions = view_from(o.q_positions);
  a.kv_positions = view_from(o.kv_positions);
  a.lse = view_from(o.lse);
  a.state = view_from(o.state);
  a.rung = enum_from(o.rung, Rung::merged, "rung");
  return a;
}

/// What softfold_plan holds: the workspace stands beside the plan that points to it.
struct StoredPlan {
  const void* self;  ///< where it was made; null until then
  Workspace workspace;
  Plan plan;
};
static_assert(sizeof(StoredPlan) <= sizeof(softfold_plan));

/// Judged before it is cut to Op's one byte.
Op op_from(int number) {
  if (number < 0 || number > static_cast<int>(Op::attention))
    throw Error(Code::unsupported, "operation number " + std::to_string(number), "the values of softfold_op");
  return static_cast<Op>(number);
}

constexpr std::size_t kMaxViews = 2 * 16 + 1;

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

softfold_status run_once(Op op, const softfold_tensor* x, const softfold_tensor* y, const softfold_row_options* options,
                         const softfold_context* context) {
  return guarded([&] {
    require(x, "input tensor");
    require(y, "output tensor");
    ContextStorage c;
    read_context(c, context);
    const View in = view_from(x), out = view_from(y);
    plan(op, {&in, 1}, {&out, 1}, row_options_from(options), c.context).run();
  });
}

/// Null for a plan that was refused, or copied from where it was made.
const Plan* made_plan(const softfold_plan* plan) {
  if (plan == nullptr) return nullptr;
  const auto* stored = reinterpret_cast<const StoredPlan*>(plan->opaque);
  return stored->self == stored ? &stored->plan : nullptr;
}

}  // namespace
}  // namespace c_abi
}  // namespace v0
}  // namespace softfold

using namespace softfold;
using namespace softfold::c_abi;

void softfold_row_options_init(softfold_row_options* options) { *options = default_row_options(); }
void softfold_merge_options_init(softfold_merge_options* options) { *options = {sizeof(*options), 0, 0}; }
void softfold_attention_options_init(softfold_attention_options* options) { *options = default_attention_options(); }
void softfold_context_init(softfold_context* context) { *context = {sizeof(*context), nullptr, nullptr, nullptr, 0}; }

softfold_status softfold_plan_rows(softfold_plan* plan, int op, const softfold_tensor* inputs, size_t input_count,
                                   const softfold_tensor* outputs, size_t output_count,
                                   const softfold_row_options* options, const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return row_options_from(options); }, context);
}

softfold_status softfold_plan_merge(softfold_plan* plan, int op, const softfold_tensor* inputs, size_t input_count,
                                    const softfold_tensor* outputs, size_t output_count,
                                    const softfold_merge_options* options, const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return merge_options_from(options); }, context);
}

softfold_status softfold_plan_attention(softfold_plan* plan, const softfold_tensor* inputs, size_t input_count,
                                        const softfold_tensor* outputs, size_t output_count,
                                        const softfold_attention_options* options, const softfold_context* context) {
  return make_plan(
      plan, SOFTFOLD_OP_ATTENTION, inputs, input_count, outputs, output_count,
      [&] { return attention_options_from(options); }, context);
}

softfold_status softfold_plan_run(const softfold_plan* plan) {
  return guarded([&] {
    const Plan* made = made_plan(plan);
    if (made == nullptr)
      throw Error(Code::option, "a plan that was refused, copied or never made", "one that softfold_plan_* made",
                  "look at the status of softfold_plan_rows");
    made->run();
  });
}
const char* softfold_plan_kernel(const softfold_plan* plan) {
  const Plan* made = made_plan(plan);
  return made != nullptr ? made->kernel().data() : "";
}
size_t softfold_plan_workspace_bytes(const softfold_plan* plan) {
  const Plan* made = made_plan(plan);
  return made != nullptr ? made->workspace_bytes() : 0;
}

softfold_status softfold_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                 const softfold_row_options* options, const softfold_context* context) {
  return run_once(Op::softmax, x, y, options, context);
}
softfold_status softfold_log_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                     const softfold_row_options* options, const softfold_context* context) {
  return run_once(Op::log_softmax, x, y, options, context);
}
softfold_status softfold_logsumexp(const softfold_tensor* x, const softfold_tensor* lse,
                                   const softfold_row_options* options, const softfold_context* context) {
  return run_once(Op::logsumexp, x, lse, options, context);
}
softfold_status softfold_state(const softfold_tensor* x, const softfold_tensor* states,
                               const softfold_row_options* options, const softfold_context* context) {
  return run_once(Op::state, x, states, options, context);
}

softfold_status softfold_attention(const softfold_tensor* q, const softfold_tensor* k, const softfold_tensor* v,
                                   const softfold_tensor* out, const softfold_attention_options* options,
                                   const softfold_context* context) {
  return guarded([&] {
    require(q, "q");
    require(k, "k");
    require(v, "v");
    require(out, "out");
    ContextStorage c;
    read_context(c, context);
    attention(view_from(q), view_from(k), view_from(v), view_from(out), attention_options_from(options), c.context);
  });
}

softfold_status softfold_executor_threads(int threads, softfold_executor** executor) {
  return guarded([&] {
    require(executor, "place for the executor");
    *executor = new softfold_executor{make_thread_executor(threads)};
  });
}
softfold_status softfold_executor_tbb(int threads, softfold_executor** executor) {
  return guarded([&] {
    require(executor, "place for the executor");
    *executor = new softfold_executor{make_tbb_executor(threads)};
  });
}
void softfold_executor_destroy(softfold_executor* executor) { delete executor; }

const char* softfold_last_error(void) { return last_error().message.c_str(); }
const char* softfold_last_error_got(void) { return last_error().got.c_str(); }
const char* softfold_last_error_allowed(void) { return last_error().allowed.c_str(); }
const char* softfold_last_error_fix(void) { return last_error().fix.c_str(); }

const char* softfold_version(void) { return version(); }
int softfold_bits_version(void) { return bits_version(); }
