// kl_divergence and its backward pass: how their steps follow each other on a stream.
#include "cuda/kl_short.cuh"
#include "cuda/kl_small.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/generic_items.cuh"
#include "cuda/kernels.hpp"
#include "cuda/small_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using KlKernel = Kernel<KlProblem>;

bool writes(const KlProblem& p) { return p[Slot::y].given || p[KlSlot::dq].given; }

/// Measured: elements of all rows up to which kl_small_rows is the fastest.
std::int64_t most_small(const KlProblem& p) {
  constexpr std::int64_t any = std::int64_t{1} << 62;
  if (p.n <= 32) return any;
  if (!writes(p)) return 1 << 21;
  return on_whole_vectors(p) ? 1 << 22 : any;
}

/// What is known of all plain rows.
PlainKlRows plain_rows(const KlProblem& p) {
  const KlFactor<float> factor(p.scale);
  return {factor.of_tiles(), factor.scale, fold::KlScale<float>(factor.scale)};
}

/// The states of chunks, those of rows, what is asked of them, the gradients. kTiles: of rows that tiles of vectors
/// move.
template <class T, bool kTiles>
class KlRun {
 public:
  using State = fold::KlState<T>;

  KlRun(const KlProblem& p, Parts& parts) : p_(p), items_(p, parts), nodes_(p, parts) {
    if (kTiles && writes(p)) rows_ = parts.take<KlGradientRow>(p.rows);
  }

  void run(Stream stream) {
    if (p_.rows == 0) return;
    items_.find(stream);
    fold_chunks_of_rows(stream);
    State* const roots = nodes_.merge(items_.chunks(), stream);
    stream = stream.following();
    const Grid a_row_a_thread{ceil_div(p_.rows, kThreads), kThreads};
    if constexpr (kTiles) {
      if (writes(p_)) {
        launch("prepare_kl_gradients", prepare_kl_gradients, a_row_a_thread, stream, p_, roots, rows_);
        return write_tiles(roots, stream);
      }
    }
    launch("finish_kl", finish_kl<T>, a_row_a_thread, stream, p_, roots);
    if (!writes(p_)) return;
    const bool across = is_across(p_[Slot::y].given ? static_cast<const RowProblem&>(p_) : rows_of_q(p_));
    const GenericItems items = items_.results(across);
    launch("write_kl_gradients", write_kl_gradients<T>, warps_for(items.count), stream, p_, items, roots);
  }

 private:
  void fold_chunks_of_rows(Stream stream) const {
    const GenericItems items = items_.chunks();
    if constexpr (kTiles) {
      with_tiles([&]<class E, bool kPlain>() {
        launch("fold_kl_tiles", fold_kl_tiles<E, kPlain>, warps_for(items.count), stream, p_, lift::chunk_count(p_.n),
               plain_rows(p_), nodes_.chunks());
      });
    } else {
      launch("fold_kl_chunks", fold_kl_chunks<T>, warps_for(items.count), stream, p_, items, nodes_.chunks());
    }
  }

  void write_tiles(const State* roots, Stream stream) const {
    const std::int64_t chunks = lift::chunk_count(p_.n);
    with_tiles([&]<class E, bool kPlain>() {
      launch("write_kl_tiles", write_kl_tiles<E, kPlain>, {ceil_div(p_.rows * chunks, 8), 256}, stream, p_, chunks,
             plain_rows(p_), roots, rows_);
    });
  }

  template <class F>
  void with_tiles(const F& f) const {
    const bool plain = refuses_plain(p_) == nullptr && refuses_plain(rows_of_q(p_)) == nullptr;
    with_element(p_[Slot::x].dtype, [&]<class E>() {
      if (plain) return f.template operator()<E, true>();
      f.template operator()<E, false>();
    });
  }

  const KlProblem& p_;
  Items items_;
  Nodes<KlFold<T>, true> nodes_;
  KlGradientRow* rows_ = nullptr;
};

const char* refuses(const KlProblem& p, const Context&) { return refuses_items(p); }

/// p as rows, of which one operand more is said.
RowProblem rows_with(const KlProblem& p, KlSlot slot) {
  RowProblem rows = p;
  rows[Slot::dy] = p[slot];
  return rows;
}

/// Rows that tiles of vectors move, q as p, and their gradients as they are.
const char* refuses_tiles(const KlProblem& p) {
  if (p.n == 0) return "rows of no elements";
  if (const char* why = refuses_vectors(p)) return why;
  if (const char* why = refuses_other_vectors(rows_with(p, KlSlot::q), Slot::dy, "q lies differently from p"))
    return why;
  if (!p[KlSlot::dq].given) return nullptr;
  return refuses_other_vectors(rows_with(p, KlSlot::dq), Slot::dy, "dq lies differently from p");
}

const char* refuses_tiles(const KlProblem& p, const Context& context) {
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (const char* why = refuses_tiles(p)) return why;
  return refuses(p, context);
}

/// Calls f with the run of a kernel's workspace.
template <bool kTiles, class F>
void with_run(const KlProblem& p, Parts& parts, const F& f) {
  if constexpr (kTiles) {
    f(KlRun<float, true>(p, parts));
  } else {
    with_fold_type(p, [&]<class T>(T) { f(KlRun<T, false>(p, parts)); });
  }
}

template <bool kTiles>
std::size_t workspace(const KlProblem& p, const Context&) {
  Parts parts(nullptr);
  with_run<kTiles>(p, parts, [](const auto&) {});
  return parts.used();
}

template <bool kTiles>
void run(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace<kTiles>(p, context), context);
  Parts parts(scratch.data());
  with_run<kTiles>(p, parts, [&](auto&& steps) { steps.run(stream_of(context)); });
}

const char* refuses_short(const KlProblem& p, const Context& context) {
  if (p.n > kGroupElements) return "rows of more than 512 elements";
  return refuses_tiles(p, context);
}

void run_short(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_group_lanes(p.n, [&]<int kLanes>() {
      launch("kl_short_rows", kl_short_rows<E, kLanes>, {ceil_div(p.rows * kLanes, kThreads), kThreads},
             stream_of(context), p);
    });
  });
}

const char* refuses_small_rows(const KlProblem& p, const Context&) {
  if (p.n > 128 || p.rows * p.n > most_small(p)) return "lanes with more elements are faster";
  if (const char* why = refuses_plain_small(rows_with(p, KlSlot::q))) return why;
  return refuses_plain_small(rows_with(p, KlSlot::dq));
}

void run_small_rows(const KlProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const SmallRows rows = small_rows(rows_with(p, KlSlot::q));
  const SmallOperand dq = small_rows(rows_with(p, KlSlot::dq)).dy;
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_small_shape<4>(p.n, [&]<int kLanes, int kCount>() {
      launch("kl_small_rows", kl_small_rows<E, kLanes, kCount>, small_grid<kLanes>(p.rows), stream_of(context), p, rows,
             plain_rows(p), dq);
    });
  });
}

constexpr KlKernel kShort{"kl_short_rows", refuses_short, run_short, nullptr};
constexpr KlKernel kKl[] = {{"kl_small_rows", refuses_small_rows, run_small_rows, nullptr},
                            kShort,
                            {"kl_tiles", refuses_tiles, run<true>, workspace<true>},
                            {"kl_chunks", refuses, run<false>, workspace<false>}};
constexpr KlKernel kKlBackward[] = {kShort,
                                    {"kl_backward_tiles", refuses_tiles, run<true>, workspace<true>},
                                    {"kl_backward_chunks", refuses, run<false>, workspace<false>}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<KlProblem>> cuda_kl_kernels(Op op) {
  if (op == Op::kl_divergence) return cuda::kKl;
  return cuda::kKlBackward;
}

}  // namespace v0
}  // namespace softfold
