// merge_states, merge_attention and merge_blocks: parts' weights in double as fold/parts.hpp has them.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/merge.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxParts = MergeProblem::kMaxParts;

template <class T>
__device__ StoredState merged(const StoredState* parts, int count) {
  using Lse = fold::LogSumExp<T>;
  typename Lse::State states[kMaxParts];
  for (int i = 0; i < count; ++i) states[i] = given_state<T>(parts[i], parts[0].scale);
  const auto s = lift::reduce_nodes<Lse>(states, count);
  return {s.m, fold::canonical(static_cast<double>(s.d)), parts[0].scale, static_cast<double>(fold::Real<T>::kDigits)};
}

__global__ void __launch_bounds__(kThreads) merge_states_rows(const __grid_constant__ MergeProblem p) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  StoredState parts[kMaxParts];
  const std::int64_t at = row_offset(p, p.statistic.view, row);
  for (int i = 0; i < p.parts; ++i)
    parts[i] = *reinterpret_cast<const StoredState*>(p.statistic.data[static_cast<std::size_t>(i)] + at);
  char* to = p.out_statistic.data[0] + row_offset(p, p.out_statistic.view, row);
  *reinterpret_cast<StoredState*>(to) =
      parts[0].digits == fold::Real<double>::kDigits ? merged<double>(parts, p.parts) : merged<float>(parts, p.parts);
}

/// Element i of the merged row: share_0 x_0, then an FMA for each further part.
template <class T, class RowShares>
__device__ T combine(const MergeProblem& p, const RowShares& s, std::int64_t at) {
  if (s.count == 0) return T(0);
  if (fold::is_nan(s.share[s.live[0]])) return fold::canonical_nan<T>();
  const auto value = [&](int k) {
    return element_at<T>(p.value.view.dtype, p.value.data[static_cast<std::size_t>(s.live[k])] + at);
  };
  T sum = fold::Scalar<T>::mul(value(0), static_cast<T>(s.share[s.live[0]]));
  for (int k = 1; k < s.count; ++k) sum = fold::Scalar<T>::fma(value(k), static_cast<T>(s.share[s.live[k]]), sum);
  return sum;
}

/// Element of one block, brought to the joint sum.
template <class T>
__device__ T rescale(const MergeProblem& p, double share, const char* at) {
  if (share == 0.) return T(0);
  if (fold::is_nan(share)) return fold::canonical_nan<T>();
  return fold::Normaliser<T>::probability(element_at<T>(p.value.view.dtype, at), static_cast<T>(share));
}

template <class T>
__global__ void __launch_bounds__(kThreads) merge_parts_rows(const __grid_constant__ MergeProblem p) {
  begin_in_order();
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= p.rows) return;
  double share[kMaxParts];
  unsigned char live[kMaxParts];
  const Operand &in = p.value.view, &out = p.out_value.view;
  const auto [statistic, out_statistic, from, to] =
      RowOffsets<4>(p, row, {&p.statistic.view, &p.out_statistic.view, &in, &out}).at;
  const Shares<double*, unsigned char*> s(p, statistic, share, live);
  __syncwarp();  // the joint statistic may lie where a part's does
  if (lane == 0) write_statistic(p, out_statistic, s.joint);
  for (std::int64_t i = lane; i < p.n; i += 32) {
    const std::int64_t read = from + i * in.axis_stride, write = to + i * out.axis_stride;
    if (p.op == Op::merge_attention) {
      put(out.dtype, p.out_value.data[0] + write, combine<T>(p, s, read));
      continue;
    }
    for (int k = 0; k < p.parts; ++k) {
      const auto part = static_cast<std::size_t>(k);
      put(out.dtype, p.out_value.data[part] + write, rescale<T>(p, s.share[k], p.value.data[part] + read));
    }
  }
}

const char* never_refuses(const MergeProblem&, const Context&) { return nullptr; }

/// A block's result may lie where that block does, but not where another does, which is read later.
const char* parts_refuse(const MergeProblem& p, const Context&) {
  if (p.op != Op::merge_blocks || p.rows * p.n == 0) return nullptr;
  for (int i = 0; i < p.parts; ++i)
    for (int j = 0; j < p.parts; ++j)
      if (i != j && p.out_value.data[static_cast<std::size_t>(i)] == p.value.data[static_cast<std::size_t>(j)])
        return "a block's result would overwrite another block";
  return nullptr;
}

void run_states(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  launch("merge_states_rows", merge_states_rows, {(p.rows + kThreads - 1) / kThreads, kThreads}, stream_of(context), p);
}

void run_parts(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  const Grid grid{(p.rows + kThreads / 32 - 1) / (kThreads / 32), kThreads};
  if (p.value.view.dtype == DType::float64) {
    launch("merge_parts_rows", merge_parts_rows<double>, grid, stream_of(context), p);
  } else {
    launch("merge_parts_rows", merge_parts_rows<float>, grid, stream_of(context), p);
  }
}

constexpr MergeKernel kStates[] = {{"merge_states_rows", never_refuses, run_states, nullptr}};
constexpr MergeKernel kParts[] = {{"merge_attention_vectors", merge_vectors_refuse, run_merge_vectors, nullptr},
                                  {"merge_parts_rows", parts_refuse, run_parts, nullptr}};

}  // namespace

std::span<const MergeKernel> merge_states_kernels() { return kStates; }
std::span<const MergeKernel> merge_parts_kernels() { return kParts; }

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
