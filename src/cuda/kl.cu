// kl_divergence and its backward pass: how their steps follow each other on a stream.
#include "cuda/kl_plain.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using KlKernel = Kernel<KlProblem>;

bool is_backward(const KlProblem& p) { return p.op == Op::kl_divergence_backward; }
bool writes(const KlProblem& p) { return p[Slot::y].given || p[KlSlot::dq].given; }

/// The elements' factor: of plain rows one for all.
lift::Factor factor_of(const KlProblem& p) {
  const float c = fold::make_scale<float>(p.scale).c;
  lift::Factor factor(std::fabs(c));
  if (c < 0.F) factor.times = -factor.times, factor.plain = false;
  return factor;
}

/// The states of both rows, the sums, the divergences, the gradients. kPlain: of plain rows.
template <class T, bool kPlain>
class KlRun {
 public:
  KlRun(const KlProblem& p, const Context& context, char* workspace)
      : p_(p), context_(context), parts_(workspace), stream_(stream_of(context)) {
    sums_ = parts_.bytes_for<KlNode<T>>(state_bytes<KlNode<T>>(p));
    if (kPlain) rows_ = parts_.take<KlPlainRow>(p.rows);
    if (is_backward(p)) return;
    p_states_.lay_out(p, parts_, context);
    q_states_.lay_out(rows_of_q(p), parts_, context);
  }

  std::size_t bytes() const { return parts_.used(); }

  void run() {
    KlProblem p = p_;
    if (!is_backward(p)) {
      p_states_.run(context_);
      q_states_.run(context_);
      p[Slot::states] = p_states_.operand();
      p[KlSlot::q_states] = q_states_.operand();
    }
    if constexpr (kPlain) {
      run_plain(p);
    } else {
      run_any(p);
    }
  }

 private:
  static Grid a_row_a_thread(const KlProblem& p) { return {ceil_div(p.rows, kThreads), kThreads}; }

  void run_plain(const KlProblem& p) {
    const std::int64_t chunks = lift::chunk_count(p.n);
    const Grid grid{ceil_div(p.rows * chunks, 8), 256};
    const KlNode<float>* none = nullptr;
    launch("prepare_plain_kl", prepare_plain_kl, a_row_a_thread(p), stream_, p, none, rows_);
    with_element(p[Slot::x].dtype, [&]<class E>() {
      launch("sum_plain_kl", sum_plain_kl<E>, grid, stream_, p, chunks, factor_of(p), rows_, sums_);
    });
    const KlNode<float>* sums = merge_levels<KlFold<float>>(p, sums_, stream_);
    KlPlainRow* rows = writes(p) ? rows_ : nullptr;
    launch("prepare_plain_kl", prepare_plain_kl, a_row_a_thread(p), stream_, p, sums, rows);
    if (!writes(p)) return;
    with_element(p[Slot::x].dtype, [&]<class E>() {
      launch("write_plain_kl", write_plain_kl<E>, grid, stream_, p, chunks, factor_of(p), rows_, sums);
    });
  }

  void run_any(const KlProblem& p) {
    const std::int64_t chunks = p.rows * lift::chunk_count(p.n);
    const KlNode<T>* sums = nullptr;
    if (chunks > 0) {
      launch("sum_kl_chunks", sum_kl_chunks<T>, warps_for(chunks), stream_, p, chunks, sums_);
      sums = merge_levels<KlFold<T>>(p, sums_, stream_);
    }
    if (!is_backward(p)) launch("finish_kl", finish_kl<T>, a_row_a_thread(p), stream_, p, sums);
    if (!writes(p)) return;
    const bool across = is_across(p[Slot::y].given ? static_cast<const RowProblem&>(p) : rows_of_q(p));
    const std::int64_t items = write_items(p, across);
    launch("write_kl_gradients", write_kl_gradients<T>, warps_for(items), stream_, p, items, across, sums);
  }

  const KlProblem& p_;
  const Context& context_;
  Parts parts_;
  Stream stream_;
  KlNode<T>* sums_;
  KlPlainRow* rows_ = nullptr;
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
  with_fold_type(p, [&]<class T>(T) { bytes = KlRun<T, false>(p, context, nullptr).bytes(); });
  return bytes;
}

void run(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  with_fold_type(p, [&]<class T>(T) { KlRun<T, false>(p, context, scratch.data()).run(); });
}

/// Rows that tiles of vectors move, q as p, and their gradients as they are.
const char* refuses_tiles(const KlProblem& p) {
  if (p.n == 0) return "rows of no elements";
  RowProblem rows = p;
  if (const char* why = refuses_vectors(rows)) return why;
  rows[Slot::dy] = p[KlSlot::q];
  if (const char* why = refuses_other_vectors(rows, Slot::dy, "q lies differently from p")) return why;
  if (!p[KlSlot::dq].given) return nullptr;
  rows[Slot::dy] = p[KlSlot::dq];
  return refuses_other_vectors(rows, Slot::dy, "dq lies differently from p");
}

const char* refuses_cluster(const KlProblem& p, const Context&) {
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (p.n > 256 * lift::kChunk) return "a row is longer than a cluster holds (262144)";
  if (p.rows >= 0x7FFFFFFF / 16) return "more rows than a grid has";
  return refuses_tiles(p);
}

const char* refuses_plain_rows(const KlProblem& p, const Context& context) {
  // A cluster's one read takes as long as all of these launches.
  constexpr std::int64_t kFewChunks = 1024;
  if (p.rows * lift::chunk_count(p.n) < kFewChunks) return "few chunks, which one read of a cluster's has sooner";
  if (const char* why = refuses_plain(p)) return why;
  if (const char* why = refuses_plain(rows_of_q(p))) return why;
  if (const char* why = refuses_tiles(p)) return why;
  return refuses(p, context);
}

std::size_t plain_workspace(const KlProblem& p, const Context& context) {
  return KlRun<float, true>(p, context, nullptr).bytes();
}

void run_plain_rows(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(plain_workspace(p, context), context);
  KlRun<float, true>(p, context, scratch.data()).run();
}

void run_cluster(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  // Both rows fill the registers: blocks of 8 warps leave room for another.
  const Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()), kWarpsPerBlock / 2);
  with_element(p[Slot::x].dtype,
               [&]<class E>() { launch("kl_cluster_rows", kl_cluster_rows<E>, grid, stream_of(context), p); });
}

constexpr KlKernel kCluster{"kl_cluster_rows", refuses_cluster, run_cluster, nullptr};
constexpr KlKernel kPlain{"kl_plain_rows", refuses_plain_rows, run_plain_rows, plain_workspace};
constexpr KlKernel kKl[] = {kPlain, kCluster, {"kl_divergence_states", refuses, run, workspace}};
constexpr KlKernel kKlBackward[] = {kPlain, kCluster, {"kl_divergence_backward_generic", refuses, run, workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<KlProblem>> cuda_kl_kernels(Op op) {
  if (op == Op::kl_divergence) return cuda::kKl;
  return cuda::kKlBackward;
}

}  // namespace v0
}  // namespace softfold
