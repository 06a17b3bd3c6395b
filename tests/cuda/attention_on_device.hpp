// Attention on the device against materialised float64: a case's tensors there, and every row's error.
#pragma once

#include "cuda/soil.hpp"
#include "support/attention.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace softfold_test {

inline void cuda_check(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// A case's tensors on the device.
class OnDevice {
 public:
  explicit OnDevice(AttentionData& a) : a_(a), options_(a.options()) {
    const softfold::Device device{softfold::DeviceKind::cuda, 0};
    const auto move = [&](Array& array, View& view) {
      unsigned char* base = nullptr;
      cuda_check(cudaMalloc(&base, array.bytes().size()));
      cuda_check(cudaMemcpy(base, array.bytes().data(), array.bytes().size(), cudaMemcpyHostToDevice));
      memory_.push_back(base);
      view = array.view_at(base, device);
    };
    const auto move_given = [&](Array& array, View& view) {
      if (view.given()) move(array, view);
    };
    move(a.q, q_), move(a.k, k_), move(a.v, v_), move(a.out, out_);
    move_given(a.lse, options_.lse), move_given(a.state, options_.state), move_given(a.sink, options_.sink);
    move_given(a.slopes, options_.slopes), move_given(a.mask, options_.mask), move_given(a.bias, options_.bias);
    move_given(a.lengths, options_.kv_lengths), move_given(a.starts, options_.kv_starts);
    move_given(a.index, options_.kv_index);
    if (auto* varlen = std::get_if<softfold::Varlen>(&options_.kv)) {
      move(a.q_offsets, varlen->q_offsets), move(a.kv_offsets, varlen->kv_offsets);
      varlen->max_q = a.c.queries, varlen->max_kv = a.c.keys;
    }
  }
  ~OnDevice() {
    for (unsigned char* m : memory_) cudaFree(m);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  softfold::AttentionOptions& options() { return options_; }
  /// Moves q or out to memory that begins two bytes behind a multiple of 16, there with nothing in it.
  void shift(bool of_out) {
    View& view = of_out ? out_ : q_;
    std::int64_t count = 1;
    for (const std::int64_t n : view.shape) count *= n;
    unsigned char* base = nullptr;
    cuda_check(cudaMalloc(&base, static_cast<std::size_t>(2 * count + 16)));
    cuda_check(cudaMemset(base, 0, static_cast<std::size_t>(2 * count + 16)));
    memory_.push_back(base);
    view = View(static_cast<void*>(base + 2), view.dtype, view.shape, {}, view.device);
  }
  softfold::Plan plan(const softfold::Context& context = {}) {
    const View inputs[] = {q_, k_, v_};
    return softfold::plan(softfold::Op::attention, inputs, {&out_, 1}, options_, context);
  }
  /// Keys [from, to) alone: out in float32, and lse.
  void attend_keys(std::int64_t from, std::int64_t to, const View& out, const View& lse) {
    const auto keys = [&](const View& v) {
      part_shape_ = {v.shape[0], v.shape[1], to - from, v.shape[3]};
      part_strides_ = {v.shape[1] * v.shape[2] * v.shape[3], v.shape[2] * v.shape[3], v.shape[3], 1};
      const auto skipped = static_cast<std::ptrdiff_t>(from * v.shape[3] * static_cast<std::int64_t>(size_of(v.dtype)));
      return View(static_cast<unsigned char*>(v.data) + skipped, v.dtype, part_shape_, part_strides_, v.device);
    };
    softfold::AttentionOptions options;
    options.lse = lse;
    softfold::attention(q_, keys(k_), keys(v_), out, options);
  }
  /// Brings the results back.
  void download() {
    cuda_check(cudaDeviceSynchronize());
    const auto back = [](Array& array, const View& view) {
      if (!view.given()) return;
      cuda_check(cudaMemcpy(array.bytes().data(), static_cast<unsigned char*>(view.data) - array.origin(),
                            array.bytes().size(), cudaMemcpyDeviceToHost));
    };
    back(a_.out, out_), back(a_.lse, options_.lse), back(a_.state, options_.state);
  }

 private:
  AttentionData& a_;
  softfold::AttentionOptions options_;
  View q_, k_, v_, out_;
  std::array<std::int64_t, 4> part_shape_{}, part_strides_{};
  std::vector<unsigned char*> memory_;
};

/// 16-bit units: of the output, and of the weights where tensor cores multiply them.
inline double half_unit(DType t) { return t == DType::bfloat16 ? 0x1p-8 : t == DType::float16 ? 0x1p-11 : 0; }

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) GTEST_SKIP() << "no CUDA device";
    soil_workspaces();
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, 0));
    hopper_ = properties.major == 9;
  }

  /// Runs a case and compares every `stride`-th row. Without a state the tensor cores may take it.
  void check(const AttentionCase& c, bool with_state, std::int64_t stride = 1) {
    AttentionData a(c);
    check(a, with_state, stride);
  }
  void check(AttentionData& a, bool with_state, std::int64_t stride = 1) {
    const AttentionCase& c = a.c;
    OnDevice device(a);
    if (!with_state) device.options().state = View();
    const auto plan = device.plan();
    plan.run();
    device.download();
    const bool tensor_cores = plan.kernel() == "attention_forward_sm90";
    ran_on_tensor_cores_ += tensor_cores;
    const double infinity = std::numeric_limits<double>::infinity();
    const double u = c.dtype == DType::float64 ? 0x1p-53 : 0x1p-24, half = half_unit(c.dtype);
    for (std::int64_t b = 0, n = 0; b < a.c.batch; ++b)
      for (std::int64_t h = 0; h < a.c.heads; ++h)
        for (std::int64_t i = 0; i < a.queries_of(b); ++i, ++n) {
          if (n % stride != 0) continue;
          const auto row = a.reference(b, h, i);
          const double lse = AttentionData::value(a.lse, a.row_at(b, h, i));
          const double lse_bound = u * (4 * row.error + 2 * std::abs(row.lse) + 40);
          if (row.lse == -infinity) {
            ASSERT_EQ(lse, -infinity) << describe(a, plan);
          } else {
            ASSERT_LE(std::abs(lse - row.lse), lse_bound) << describe(a, plan) << ": row " << b << " " << h << " " << i;
          }
          for (int x = 0; x < c.dv; ++x) {
            const auto at = static_cast<std::size_t>(x);
            const double got = AttentionData::value(a.out, a.at(a.out, b, h, i) + x), right = row.out[at];
            const double bound = u * (4 * row.error * row.spread[at] + 4 * std::abs(right)) +
                                 1.01 * half * (std::abs(right) + (tensor_cores ? row.spread[at] : 0)) + 0x1p-24 * half;
            ASSERT_LE(std::abs(got - right), bound + 1e-37)
                << describe(a, plan) << ": row " << b << " " << h << " " << i << " " << x;
          }
        }
    EXPECT_TRUE(a.out.only_elements_written());
  }
  /// A case on the portable kernel and, where it can, on the tensor cores.
  void check_both(const AttentionCase& c, std::int64_t stride = 1) { check(c, true, stride), check(c, false, stride); }

  /// Replays a graph of a case and compares every result with the first call's.
  static void replay(const AttentionCase& c, bool lend_workspace, int times) {
    AttentionData a(c);
    OnDevice device(a);
    device.options().state = View();
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreate(&stream));
    softfold::Context context;
    context.stream = stream;
    softfold::Workspace workspace{nullptr, device.plan(context).workspace_bytes()};
    if (workspace.bytes > 0) cuda_check(cudaMalloc(&workspace.data, workspace.bytes));
    if (lend_workspace) context.workspace = &workspace;
    const auto plan = device.plan(context);
    plan.run();
    device.download();
    const auto out = a.out.elements(), lse = a.lse.elements();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    plan.run();
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < times; ++i) {
      cuda_check(cudaGraphLaunch(ready, stream));
      device.download();
      ASSERT_TRUE(a.out.elements() == out && a.lse.elements() == lse) << "replay " << i;
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaFree(workspace.data);
    cudaStreamDestroy(stream);
  }

  static std::string describe(const AttentionData& a, const softfold::Plan& plan) {
    std::string s = std::string(plan.kernel()) + " " + std::string(softfold::name_of(a.c.dtype));
    for (const auto n :
         {a.c.batch, a.c.heads, a.c.kv_heads, a.c.queries, a.c.keys, std::int64_t{a.c.d}, std::int64_t{a.c.dv}})
      s += " " + std::to_string(n);
    return s;
  }

  bool hopper_ = false;
  int ran_on_tensor_cores_ = 0;
};

inline AttentionCase shape(std::int64_t queries, std::int64_t keys, int d, int dv, DType t) {
  AttentionCase c;
  c.dtype = t;
  c.heads = 2, c.kv_heads = 1;
  c.queries = queries, c.keys = keys;
  c.d = d, c.dv = dv;
  c.seed = static_cast<unsigned>(queries * 7 + keys);
  return c;
}

}  // namespace softfold_test
