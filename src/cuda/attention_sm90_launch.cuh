// Hopper's tile shapes, which of them a problem gets, and their launch.
#pragma once

#include "cuda/attention_sm90_consume.cuh"
#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/sm90/tensor_map.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

AttentionCut cut_of(const AttentionProblem& p, int rows, int processors);

template <class C, bool kCaps>
void run_tile(const AttentionProblem& p, const Context& context) {
  const DeviceOf device(p.out.data);
  const cudaStream_t stream = stream_of(context);  // never overlapping: the kernel does not wait by itself
  const Scratch counter(attention_sm90_kernel.workspace(p, context), context);
  const int processors = traits_of(device.device()).processors;
  AttentionCut cut = cut_of(p, C::kRows, processors);
  const std::int64_t batches = p.packed ? 1 : p.sequences;
  const CUtensorMap q = tile_map(p.q, batches, p.q_heads, p.q_tokens, p.d, C::kRows);
  // Without keys no tile is read, but a map needs an address.
  AttentionTensor k = p.k, v = p.v;
  if (p.kv_tokens == 0) k.data = v.data = p.q.data;
  const std::int64_t kv_batches = p.packed ? 1 : p.kv_sequences;
  const CUtensorMap k_map = tile_map(k, kv_batches, p.kv_heads, p.kv_tokens, p.d, C::kKeys);
  const CUtensorMap v_map = tile_map(v, kv_batches, p.kv_heads, p.kv_tokens, p.dv, C::kKeys);
  if (counter.data() != nullptr) {
    cut.counter = reinterpret_cast<int*>(counter.data());
    check(cudaMemsetAsync(cut.counter, 0, sizeof(int), stream), "cudaMemsetAsync");
  }
  launch("attention_forward_sm90", attention_forward_sm90<C, kCaps>,
         {std::min(cut.tiles, processors), C::kThreads, 1, C::kShared}, stream, q, k_map, v_map, p, cut);
}

/// Attention of 16-bit elements E, with or without a soft cap. Each is compiled by itself: attention_sm90_bf16.cu,
/// attention_sm90_bf16_capped.cu and so on.
template <class E, bool kCaps>
void run_attention_sm90(const AttentionProblem& p, const Context& context) {
  const int d = std::max(p.d, p.dv);
  // Three warp-groups share the exponentials better; short sequences waste fewer rows on two.
  if (d <= 64 && (p.packed || p.tk < 2048)) return run_tile<AttentionTile<E, 64, 64, 2, 128>, kCaps>(p, context);
  if (d <= 64) return run_tile<AttentionTile<E, 64, 64, 3, 96>, kCaps>(p, context);
  if (d <= 96) return run_tile<AttentionTile<E, 96, 96, 2, 128>, kCaps>(p, context);
  if (d <= 128) return run_tile<AttentionTile<E, 128, 128, 2, 128>, kCaps>(p, context);
  if (d <= 192 && p.dv <= 128) return run_tile<AttentionTile<E, 192, 128, 2, 128>, kCaps>(p, context);
  return run_tile<AttentionTile<E, 256, 256, 2, 80>, kCaps>(p, context);
}

extern template void run_attention_sm90<fold::BFloat16, false>(const AttentionProblem&, const Context&);
extern template void run_attention_sm90<fold::BFloat16, true>(const AttentionProblem&, const Context&);
extern template void run_attention_sm90<fold::Float16, false>(const AttentionProblem&, const Context&);
extern template void run_attention_sm90<fold::Float16, true>(const AttentionProblem&, const Context&);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
