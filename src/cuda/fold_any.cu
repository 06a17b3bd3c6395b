// fold_any_rows: what it takes, and how it is launched.
#include "cuda/fold_any.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<float>;

constexpr int kFoldThreads = 256;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::tiled) return "another rung is asked for";
  if (p.n == 0) return "rows of no elements";
  if (p[Slot::offsets].given) return "rows are ragged";
  if (const char* why = refuses_chunks(p)) return why;
  return refuses_vectors(p);
}

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<Lse::State>(p); }

template <class E, int kLanes>
void launch_lanes(const RowProblem& p, Lse::State* states, Stream stream) {
  const std::int64_t items = p.rows * lift::chunk_count(p.n);
  const Grid grid{ceil_div(items, kFoldThreads / kLanes), kFoldThreads};
  const auto by = [&](auto kernel) { launch("fold_any_chunks", kernel, grid, stream, p, items, states); };
  p[Slot::mask].given ? by(fold_any_chunks<E, kLanes, true>) : by(fold_any_chunks<E, kLanes, false>);
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const Stream stream = stream_of(context);
  auto* states = reinterpret_cast<Lse::State*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.n > kGroupElements) return launch_lanes<E, 32>(p, states, stream);
    with_group_lanes(p.n, [&]<int kLanes>() { launch_lanes<E, kLanes>(p, states, stream); });
  });
  merge_to_results<float>(p, states, stream);
}

}  // namespace

const RowKernel fold_any_rows_kernel{"fold_any_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
