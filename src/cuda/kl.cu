// kl_divergence and its backward pass: how their steps follow each other on a stream.
#include "cuda/kl_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using KlKernel = Kernel<KlProblem>;

bool is_backward(const KlProblem& p) { return p.op == Op::kl_divergence_backward; }
bool writes(const KlProblem& p) { return p[Slot::y].given || p[KlSlot::dq].given; }

/// The states of both rows, the sums, the divergences, the gradients.
template <class T>
class KlRun {
 public:
  KlRun(const KlProblem& p, const Context& context, char* workspace) : p_(p), context_(context), parts_(workspace) {
    sums_ = parts_.bytes_for<KlNode<T>>(state_bytes<KlNode<T>>(p));
    if (is_backward(p)) return;
    p_states_.lay_out(p, parts_, context);
    q_states_.lay_out(rows_of_q(p), parts_, context);
  }

  std::size_t bytes() const { return parts_.used(); }

  void run() {
    const cudaStream_t stream = stream_of(context_);
    KlProblem p = p_;
    if (!is_backward(p)) {
      p_states_.run(context_);
      q_states_.run(context_);
      p[Slot::states] = p_states_.operand();
      p[KlSlot::q_states] = q_states_.operand();
    }
    const std::int64_t chunks = p.rows * lift::chunk_count(p.n);
    const KlNode<T>* sums = nullptr;
    if (chunks > 0) {
      launch("sum_kl_chunks", sum_kl_chunks<T>, warps_for(chunks), stream, p, chunks, sums_);
      sums = merge_levels<KlFold<T>>(p, sums_, stream);
    }
    if (!is_backward(p)) launch("finish_kl", finish_kl<T>, {ceil_div(p.rows, kThreads), kThreads}, stream, p, sums);
    if (!writes(p)) return;
    const bool across = is_across(p[Slot::y].given ? static_cast<const RowProblem&>(p) : rows_of_q(p));
    const std::int64_t items = write_items(p, across);
    launch("write_kl_gradients", write_kl_gradients<T>, warps_for(items), stream, p, items, across, sums);
  }

 private:
  const KlProblem& p_;
  const Context& context_;
  Parts parts_;
  KlNode<T>* sums_;
  RowStates p_states_, q_states_;
};

const char* refuses(const KlProblem& p, const Context& context) {
  if (const char* why = refuses_chunks(p)) return why;
  if (is_backward(p)) return nullptr;
  if (const char* why = refuses_states(p, context)) return why;
  return refuses_states(rows_of_q(p), context);
}

std::size_t workspace(const KlProblem& p, const Context& context) {
  std::size_t bytes = 0;
  with_fold_type(p, [&]<class T>(T) { bytes = KlRun<T>(p, context, nullptr).bytes(); });
  return bytes;
}

void run(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  with_fold_type(p, [&]<class T>(T) { KlRun<T>(p, context, scratch.data()).run(); });
}

/// Rows that tiles of vectors move, q as p, and their gradients as they are.
const char* refuses_cluster(const KlProblem& p, const Context&) {
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n == 0) return "rows of no elements";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= 0x7FFFFFFF / 16) return "more rows than a grid has";
  RowProblem rows = p;
  if (const char* why = refuses_vectors(rows)) return why;
  rows[Slot::dy] = p[KlSlot::q];
  if (const char* why = refuses_other_vectors(rows, Slot::dy, "q lies differently from p")) return why;
  if (!p[KlSlot::dq].given) return nullptr;
  rows[Slot::dy] = p[KlSlot::dq];
  return refuses_other_vectors(rows, Slot::dy, "dq lies differently from p");
}

void run_cluster(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  // Both rows fill the registers: blocks of 8 warps leave room for another.
  const Spread spread = spread_row(p.rows, lift::chunk_count(p.n), traits_of(device.device()), kWarpsPerBlock / 2);
  const Grid grid{p.rows * spread.blocks, spread.warps * 32, spread.blocks};
  with_element(p[Slot::x].dtype,
               [&]<class E>() { launch("kl_cluster_rows", kl_cluster_rows<E>, grid, stream_of(context), p); });
}

constexpr KlKernel kCluster{"kl_cluster_rows", refuses_cluster, run_cluster, nullptr};
constexpr KlKernel kKl[] = {kCluster, {"kl_divergence_states", refuses, run, workspace}};
constexpr KlKernel kKlBackward[] = {kCluster, {"kl_divergence_backward_generic", refuses, run, workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<KlProblem>> cuda_kl_kernels(Op op) {
  if (op == Op::kl_divergence) return cuda::kKl;
  return cuda::kKlBackward;
}

}  // namespace v0
}  // namespace softfold
