// Gradients of ragged rows: what their kernels take, and how they are launched.
#include "cuda/backward_long.cuh"
#include "cuda/backward_ragged_blocks.cuh"
#include "cuda/backward_ragged_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/outside.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung)) return why;
  if (!p[Slot::offsets].given) return "rows are not ragged";
  if (p.rows >= 0x3FFFFFFF) return "more rows than 32 bits number";
  if (p[Slot::mask].given) return "some elements are hidden";
  if (p[Slot::scales].given) return "rows have scales of their own";
  if (const char* why = refuses_vectors(p)) return why;
  if (const char* why = refuses_other_vectors(p, Slot::dy, "dy lies otherwise than y")) return why;
  const bool fits = with_element(p[Slot::x].dtype, [&]<class E>() {
    return kHeldBytes<E> <= traits_of(DeviceOf(p[Slot::x].data).device()).shared_bytes;
  });
  return fits ? nullptr : "blocks have too little shared memory";
}

/// Where things lie in the workspace.
struct Memory {
  GradientQueue queue{};
  GradientList list{};

  Memory(const RowProblem& p, Parts& parts) {
    queue.counters = parts.take<GradientQueue::Counters>(1);
    queue.capacity = static_cast<unsigned>(std::min(p.rows, p.ragged_elements / lift::kChunk));
    queue.rows = parts.take<int>(queue.capacity);
    list.capacity =
        p.ragged_elements <= std::int64_t{kOwnChunks} * lift::kChunk ? 0 : GradientList::most_groups(p.ragged_elements);
    list.taken = &queue.counters->groups;
    list.states = parts.take<GradientList::State>(list.capacity);
    list.groups = parts.take<GradientList::Group>(list.capacity);
  }
};

constexpr int kBeginThreads = 256;

/// Nothing is on the queue and the list, and where no row is there are zeros.
template <class S>
__global__ void __launch_bounds__(kBeginThreads)
    backward_ragged_begin(const __grid_constant__ RowProblem p, GradientQueue::Counters* counters, S outside) {
  begin_in_order();
  if (blockIdx.x == 0 && threadIdx.x == 0) *counters = {};
  fill_outside_rows(p, outside);
}

template <class E, template <class> class Gradient>
void launch_all(const RowProblem& p, const Memory& memory, Stream stream) {
  const int processors = traits_of(DeviceOf(p[Slot::x].data).device()).processors;
  constexpr int kBytes = GradientPlace<E>::kBytes;
  const std::int64_t blocks = std::int64_t{kRaggedGradientBlocks<E>} * processors;
  // Few rows are for all warps, and all of these have as many pages.
  const std::int64_t warps = blocks * kRaggedGradientWarps, pages = ceil_div(p.rows, 32 * warps);
  const auto rows = static_cast<int>(ceil_div(p.rows, pages * warps));
  launch("backward_ragged_rows", backward_ragged_rows<E, Gradient>,
         {std::min(blocks, ceil_div(p.rows, std::int64_t{rows} * kRaggedGradientWarps)), kRaggedGradientThreads, 1,
          kRaggedGradientWarps * static_cast<int>(sizeof(GradientRoom<E>))},
         stream, p, memory.queue, rows);
  if (memory.queue.capacity == 0) return;
  launch("backward_ragged_blocks", backward_ragged_blocks<E, Gradient>,
         {std::min<std::int64_t>(processors, memory.queue.capacity), 32 * kHeldWarps, 1, kHeldWarps * kBytes}, stream,
         p, memory.queue, memory.list);
  if (memory.list.capacity == 0) return;
  launch_long_gradients<E, Gradient>(p, memory.list, memory.list.capacity, stream);
}

std::size_t workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)Memory(p, parts);
  return parts.used();
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const Stream stream = stream_of(context);
  Parts parts(scratch.data());
  const Memory memory(p, parts);
  with_outside_bits(p, [&]<class S>(S outside) {
    const std::int64_t blocks =
        std::min<std::int64_t>(traits_of(device.device()).processors, ceil_div(p.ragged_elements, kBeginThreads));
    launch("backward_ragged_begin", backward_ragged_begin<S>, {std::max<std::int64_t>(blocks, 1), kBeginThreads},
           stream, p, memory.queue.counters, outside);
  });
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op,
                  [&]<template <class> class Gradient>() { launch_all<E, Gradient>(p, memory, stream.following()); });
  });
}

}  // namespace

const RowKernel backward_ragged_kernel{"backward_ragged", refuses, run, workspace, true};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
