// softmax and logsumexp along an outer axis: what the kernels take, and how they are launched.
#include "cuda/fold_across.cuh"
#include "cuda/softmax_across.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

#include <algorithm>
#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung)) return why;
  const bool writes = p[Slot::y].given;
  if (p.is_double()) return "float64 has no tiles";
  if (p[Slot::offsets].given) return "rows are ragged";
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  if (writes && y.dtype != x.dtype) return "x and y have different dtypes";
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  const auto last = static_cast<std::size_t>(std::max(p.outer_rank - 1, 0));
  if (p.outer_rank == 0 || p.n < 2 || x.strides[last] != size || (writes && y.strides[last] != size))
    return "rows do not lie side by side";
  // A block has 8 rows or more of up to 1024 elements, a cluster of 16 blocks those of longer ones.
  if (p.rows >= std::int64_t{0x7FFFFFFF} / 2) return "more rows than a grid has";
  return nullptr;
}

/// Blocks of a cluster share longer rows.
AcrossShare share_of(const RowProblem& p, int most_blocks) {
  const auto ceil = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto groups = static_cast<unsigned>(ceil(std::min<std::int64_t>(p.n, lift::kChunk), kAcrossCount));
  const int classes = static_cast<int>(std::bit_ceil(groups));
  const auto chunks = std::bit_ceil(static_cast<std::uint64_t>(ceil(lift::chunk_count(p.n), most_blocks)));
  return {classes, std::countr_zero(static_cast<unsigned>(classes)), std::min(32, kAcrossThreads / classes),
          static_cast<int>(chunks), ceil(p.rows, std::int64_t{kAcrossThreads} / classes)};
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const AcrossShare share = share_of(p, std::min(traits_of(device.device()).largest_cluster, kAcrossBlocks));
  const auto blocks = static_cast<int>((lift::chunk_count(p.n) + share.chunks - 1) / share.chunks);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto kernel = p.op == Op::log_softmax ? softmax_across_rows<E, true> : softmax_across_rows<E, false>;
    launch("softmax_across_rows", kernel, {share.groups * blocks, kAcrossThreads, blocks}, stream_of(context), p,
           share);
  });
}

using Lse = fold::LogSumExp<float>;

const char* refuses_fold(const RowProblem& p, const Context& context) {
  if (const char* why = refuses_chunks(p)) return why;
  return refuses(p, context);
}

std::size_t fold_workspace(const RowProblem& p, const Context&) { return state_bytes<Lse::State>(p); }

template <class E>
void fold_across(const RowProblem& p, Lse::State* states, Stream stream) {
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  const AcrossShare share = share_of(p, chunks);
  launch("fold_across_chunks", fold_across_chunks<E>, {share.groups * chunks, kAcrossThreads}, stream, p, share, chunks,
         states);
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  const Stream stream = stream_of(context);
  auto* states = reinterpret_cast<Lse::State*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() { fold_across<E>(p, states, stream); });
  merge_to_results<float>(p, states, stream);
}

}  // namespace

const RowKernel softmax_across_rows_kernel{"softmax_across_rows", refuses, run, nullptr};
const RowKernel fold_across_rows_kernel{"fold_across_rows", refuses_fold, run_fold, fold_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
