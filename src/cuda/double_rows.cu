// softmax, log_softmax, logsumexp and state of float64: which kernels take what, and how they are launched.
#include "cuda/double_rows.cuh"

#include "cuda/double_rows.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<double>;

/// Measured: blocks of more than 8 warps leave a processor idle while they wait for each other.
const char* refuses_softmax_cluster(const RowProblem& p) {
  if (const char* why = refuses_double_cluster(p, Rung::fused)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool many = p.rung == Rung::automatic && chunks > 128 && !are_fewer_chunks(p, 8);
  return many ? "two reads are faster" : nullptr;
}

/// The same where a row's result is one number.
template <class Go>
void with_fold_shape(std::int64_t n, const Go& go) {
  if (n <= 8) return go.template operator()<1, 8>();
  if (n <= 16) return go.template operator()<2, 8>();
  if (n <= 32) return go.template operator()<2, 16>();
  if (n <= 64) return go.template operator()<4, 16>();
  if (n <= 128) return go.template operator()<8, 16>();
  if (n <= 256) return go.template operator()<16, 16>();
  if (n <= 512) return go.template operator()<16, 32>();
  go.template operator()<32, 32>();
}

bool is_log(const RowProblem& p) { return p.op == Op::log_softmax; }

void run_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_double_shape(p.n, [&]<int kLanes, int kCount>() {
    using Elements = DoubleElements<kLanes, kCount>;
    const auto by = [&](auto kernel) {
      launch("softmax_double_rows", kernel, grid_of_groups(p.rows, kLanes), stream_of(context), p);
    };
    is_log(p) ? by(softmax_double_rows<Elements, true>) : by(softmax_double_rows<Elements, false>);
  });
}

void run_cluster(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const auto by = [&](auto kernel) {
    launch("softmax_double_cluster", kernel, grid_of_clusters(p, 8, kWarpsPerBlock), stream_of(context), p);
  };
  is_log(p) ? by(softmax_double_cluster<true>) : by(softmax_double_cluster<false>);
}

std::size_t fold_workspace(const RowProblem& p, const Context&) {
  return p.n <= lift::kChunk ? 0 : double_state_bytes(p);
}

/// The chunks' states.
Lse::State* fold_chunks_of(const RowProblem& p, char* memory, Stream stream) {
  auto* states = reinterpret_cast<Lse::State*>(memory);
  const std::int64_t items = p.rows * lift::chunk_count(p.n);
  launch("fold_double_rows", fold_double_rows<DoubleElements<32, lift::kPerLane>>, grid_of_groups(items, 32), stream, p,
         items, states);
  return states;
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  const Stream stream = stream_of(context);
  if (p.n > lift::kChunk) return merge_to_results<double>(p, fold_chunks_of(p, scratch.data(), stream), stream);
  with_fold_shape(p.n, [&]<int kLanes, int kCount>() {
    using Elements = DoubleElements<kLanes, kCount>;
    launch("fold_double_rows", fold_double_rows<Elements>, grid_of_groups(p.rows, kLanes), stream, p, p.rows,
           static_cast<Lse::State*>(nullptr));
  });
}

}  // namespace

const Lse::State* double_states(const RowProblem& p, char* memory, Stream stream) {
  return merge_levels<Lse>(p, fold_chunks_of(p, memory, stream), stream);
}

const RowKernel softmax_double_rows_kernel{
    "softmax_double_rows", [](const RowProblem& p, const Context&) { return refuses_double_rows(p, Rung::fused); },
    run_rows, nullptr};
const RowKernel softmax_double_cluster_kernel{
    "softmax_double_cluster", [](const RowProblem& p, const Context&) { return refuses_softmax_cluster(p); },
    run_cluster, nullptr};
const RowKernel fold_double_rows_kernel{
    "fold_double_rows", [](const RowProblem& p, const Context&) { return refuses_double(p, Rung::tiled); }, run_fold,
    fold_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
