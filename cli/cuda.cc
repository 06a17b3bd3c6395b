#include "cuda.hpp"

#include "softfold/error.hpp"
#include "softfold/plan.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <algorithm>
#include <utility>

namespace softfold::cli {
namespace {

/// As the library does: an Error, and no error left behind for the next call.
void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const std::string got = fmt::format("{}: {}, {}", what, cudaGetErrorName(status), cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation)
    throw Error(Code::out_of_memory, got, "what is free on the device", "a smaller --memory");
  throw Error(Code::device, got, "a working CUDA device and driver", "see `softfold doctor`");
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Device memory that grows when it must.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* reserve(std::size_t bytes) {
    if (bytes <= bytes_) return data_;
    cudaFree(std::exchange(data_, nullptr));
    bytes_ = 0;
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "memory on the device");
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A view as the copies see it: rows of bytes, one stride apart on the host, without gaps on the device.
struct Rows {
  std::size_t count = 1, width, pitch;
};

Rows rows_of(const View& v) {
  std::size_t bytes = size_of(v.dtype);
  for (const std::int64_t n : v.shape) bytes *= static_cast<std::size_t>(n);
  if (v.strides.empty() || bytes == 0) return {1, bytes, bytes};
  if (v.rank() != 2 || v.strides[1] != 1)
    throw Error(Code::internal, "an operand of other strides", "contiguous operands, or rows one stride apart");
  return {static_cast<std::size_t>(v.shape[0]), static_cast<std::size_t>(v.shape[1]) * size_of(v.dtype),
          static_cast<std::size_t>(v.strides[0]) * size_of(v.dtype)};
}

/// The views among the options that verbs give.
struct OptionViews {
  std::vector<View*> read, written;
};

OptionViews views_of(RowOptions&) { return {}; }
OptionViews views_of(AttentionOptions& o) {
  OptionViews views{{&o.sink, &o.bias, &o.mask, &o.slopes, &o.kv_lengths, &o.kv_starts, &o.kv_index},
                    {&o.lse, &o.state}};
  if (auto* packed = std::get_if<Varlen>(&o.kv))
    views.read.insert(views.read.end(), {&packed->q_offsets, &packed->kv_offsets});
  return views;
}
OptionViews views_of(CrossEntropyOptions& o) { return {{}, {&o.log_probability, &o.status}}; }
OptionViews views_of(LinearCrossEntropyOptions& o) {
  return {{&o.bias}, {&o.loss.log_probability, &o.loss.status, &o.dx, &o.dweight, &o.dbias}};
}
OptionViews views_of(EntropyOptions& o) { return {{&o.dentropy}, {&o.states, &o.dx}}; }
OptionViews views_of(KlDivergenceOptions& o) { return {{&o.dkl}, {&o.p_states, &o.q_states, &o.dp, &o.dq}}; }
OptionViews views_of(TopkOptions& o) { return {{}, {&o.probabilities}}; }
OptionViews views_of(SampleOptions& o) {
  return {{&o.row_ids}, {&o.log_probability, &o.top_tokens, &o.top_log_probabilities}};
}

/// All but the devices, whose number it returns.
int find_versions(CudaFound& found) {
  found.targets = SOFTFOLD_CUDA_TARGETS;
  found.runtime = version_text(CUDART_VERSION);
  int driver = 0, count = 0;
  cudaDriverGetVersion(&driver);
  if (driver > 0) found.driver = version_text(driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (driver == 0) {
    found.why_not = "this machine has no NVIDIA driver";
  } else if (status == cudaErrorInsufficientDriver) {
    found.why_not = fmt::format("the driver is for CUDA {}, this build needs {}", found.driver, found.runtime);
  } else if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    found.why_not = "there is a driver, but no device that this process may use (see CUDA_VISIBLE_DEVICES)";
  } else if (status != cudaSuccess) {
    found.why_not = fmt::format("the driver answers {}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
  }
  return found.why_not.empty() ? count : 0;
}

void require_device() {
  CudaFound found;
  find_versions(found);
  if (!found.why_not.empty())
    throw Error(Code::device, "--backend cuda", "a CUDA device: " + found.why_not, "--backend cpu");
}

/// Between host and device; `there` are the rows on the host.
void copy(void* to, const void* from, const Rows& there, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::size_t to_pitch = kind == cudaMemcpyDeviceToHost ? there.pitch : there.width;
  const std::size_t from_pitch = kind == cudaMemcpyDeviceToHost ? there.width : there.pitch;
  const char* const what =
      kind == cudaMemcpyDeviceToHost ? "copying results from the device" : "copying operands to the device";
  if (there.count == 1 || there.pitch == there.width)
    return check(cudaMemcpyAsync(to, from, there.count * there.width, kind, stream), what);
  check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, there.width, there.count, kind, stream), what);
}

}  // namespace

void require_cuda_build() {}

CudaFound find_cuda() {
  CudaFound found;
  const int count = find_versions(found);
  int before = 0;
  cudaGetDevice(&before);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    std::size_t free = 0, total = 0;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess || cudaSetDevice(i) != cudaSuccess ||
        cudaMemGetInfo(&free, &total) != cudaSuccess)
      continue;
    found.devices.push_back({p.name, fmt::format("sm_{}{}", p.major, p.minor), p.multiProcessorCount, total, free});
  }
  if (count > 0) cudaSetDevice(before);
  if (count > 0 && found.devices.empty())
    found.why_not = fmt::format("no device answers: {}", cudaGetErrorString(cudaGetLastError()));
  cudaGetLastError();
  return found;
}

struct CudaDevice::State {
  cudaStream_t stream = nullptr;
  std::vector<std::unique_ptr<DeviceMemory>> memory;  ///< one an operand

  ~State() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }

  /// The view's counterpart on the device, contiguous.
  View there(const View& v, std::size_t operand) {
    while (memory.size() <= operand) memory.push_back(std::make_unique<DeviceMemory>());
    const Rows r = rows_of(v);
    return {static_cast<void*>(memory[operand]->reserve(std::max<std::size_t>(1, r.count * r.width))),
            v.dtype,
            v.shape,
            {},
            {DeviceKind::cuda, 0}};
  }
  /// The same with its elements; a view of nothing stays one.
  View sent(const View& v, std::size_t operand) {
    if (v.data == nullptr) return v;
    const View moved = there(v, operand);
    copy(moved.data, v.data, rows_of(v), cudaMemcpyHostToDevice, stream);
    return moved;
  }
  void fetch(const View& from, const View& to) {
    if (to.data != nullptr) copy(to.data, from.data, rows_of(to), cudaMemcpyDeviceToHost, stream);
  }
};

CudaDevice::CudaDevice() {
  require_device();
  state_ = std::make_unique<State>();
  check(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking), "a stream");
}
CudaDevice::~CudaDevice() = default;

std::uint64_t CudaDevice::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "free memory of the device");
  return free;
}

std::string CudaDevice::run(Op op, std::span<const View> inputs, std::span<const View> outputs, OpOptions options) {
  std::size_t operand = 0;
  std::vector<View> in, out;
  std::vector<std::pair<View, View>> results;  // there and here
  // Tokens of no packed sequence keep what the caller's memory holds.
  const auto* attention = std::get_if<AttentionOptions>(&options);
  const bool in_part = attention != nullptr && std::holds_alternative<Varlen>(attention->kv);
  const auto result = [&](const View& here) {
    const View there = in_part ? state_->sent(here, operand) : state_->there(here, operand);
    ++operand;
    return results.emplace_back(there, here).first;
  };
  for (const View& v : inputs) in.push_back(state_->sent(v, operand++));
  for (const View& v : outputs) out.push_back(result(v));
  return std::visit(
      [&](auto& o) {
        const OptionViews views = views_of(o);
        for (View* v : views.read) *v = state_->sent(*v, operand++);
        for (View* v : views.written)
          if (v->given()) *v = result(*v);
        Context context;
        context.stream = state_->stream;
        const Plan work = plan(op, in, out, o, context);
        work.run();
        for (const auto& [there, here] : results) state_->fetch(there, here);
        check(cudaStreamSynchronize(state_->stream), "the device's work");
        return std::string(work.kernel());
      },
      options);
}

struct CudaTrack::State {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  DeviceMemory x, y;
  std::vector<std::unique_ptr<DeviceMemory>> rooms;  ///< one a plan
  std::vector<Workspace> workspaces;                 ///< reserved: plans keep their addresses
  std::vector<cudaGraphExec_t> graphs;

  ~State() {
    for (cudaGraphExec_t g : graphs) cudaGraphExecDestroy(g);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }

  /// Seconds of replays of what `work` puts on the stream.
  template <class Work>
  Timed replays(const Work& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a graph");
    work();
    check(cudaStreamEndCapture(stream, &graph), "capturing a graph");
    const cudaError_t made = cudaGraphInstantiate(&replay, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "making a graph");
    graphs.push_back(replay);
    return [this, replay](int calls) {
      check(cudaEventRecord(begin, stream), "an event");
      for (int call = 0; call < calls; ++call) check(cudaGraphLaunch(replay, stream), "a graph's replay");
      check(cudaEventRecord(end, stream), "an event");
      check(cudaEventSynchronize(end), "the device's work");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end), "the time between events");
      return 1e-3 * static_cast<double>(milliseconds);
    };
  }
};

CudaTrack::CudaTrack(std::span<const std::byte> x, std::size_t y_bytes) {
  require_device();
  constexpr std::size_t most_plans = 16;
  state_ = std::make_unique<State>();
  state_->workspaces.reserve(most_plans);
  check(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreate(&state_->begin), "an event");
  check(cudaEventCreate(&state_->end), "an event");
  state_->y.reserve(y_bytes);
  check(cudaMemcpyAsync(state_->x.reserve(x.size()), x.data(), x.size(), cudaMemcpyHostToDevice, state_->stream),
        "copying rows to the device");
}
CudaTrack::~CudaTrack() = default;

const void* CudaTrack::x() const { return state_->x.reserve(0); }
void* CudaTrack::y() const { return state_->y.reserve(0); }

Plan CudaTrack::plan(const std::function<Plan(const Context&)>& make) {
  Context context;
  context.stream = state_->stream;
  const std::size_t bytes = make(context).workspace_bytes();
  if (bytes == 0) return make(context);
  DeviceMemory& room = *state_->rooms.emplace_back(std::make_unique<DeviceMemory>());
  context.workspace = &state_->workspaces.emplace_back(Workspace{room.reserve(bytes), bytes});
  return make(context);
}

void CudaTrack::run(const Plan& plan, std::span<std::byte> y) {
  plan.run();
  check(cudaMemcpyAsync(y.data(), this->y(), y.size(), cudaMemcpyDeviceToHost, state_->stream), "results");
  check(cudaStreamSynchronize(state_->stream), "the device's work");
}

Timed CudaTrack::timed(const Plan& plan) {
  return state_->replays([&] { plan.run(); });
}

Timed CudaTrack::timed_copy(std::size_t bytes) {
  return state_->replays(
      [&] { check(cudaMemcpyAsync(y(), x(), bytes, cudaMemcpyDeviceToDevice, state_->stream), "a copy"); });
}

}  // namespace softfold::cli
