// entropy and its backward pass: how their steps follow each other on a stream.
#include "cuda/entropy_short.cuh"
#include "cuda/entropy_small.cuh"

#include "cuda/choose.hpp"
#include "cuda/generic_items.cuh"
#include "cuda/kernels.hpp"
#include "cuda/small_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: elements of all rows up to which entropy_small_rows is the fastest.
std::int64_t most_small(std::int64_t n) {
  constexpr std::int64_t any = std::int64_t{1} << 62;
  return n <= 16 ? any : n <= 32 ? 1 << 19 : 1 << 18;
}

/// The states of chunks, those of rows, what is asked of them, the gradient.
template <class T>
class EntropyRun {
 public:
  using Fold = fold::EntropySum<T>;
  using State = typename Fold::State;

  EntropyRun(const LossProblem& p, Parts& parts)
      : p_(p),
        items_(p, parts),
        nodes_(p, parts),
        rows_(p[Slot::y].given ? parts.take<EntropyRow<T>>(p.rows) : nullptr) {}

  void run(Stream stream) {
    if (p_.rows == 0) return;
    items_.find(stream);
    const bool plain = refuses_plain(p_) == nullptr;
    fold_chunks_of_rows(plain, stream);
    const State* roots = nodes_.merge(items_.chunks(), stream);
    stream = stream.following();
    launch("finish_entropy", finish_entropy<T>, {ceil_div(p_.rows, kThreads), kThreads}, stream, p_, roots, rows_);
    if (rows_ != nullptr) write_gradients<T>(p_, rows_, plain, items_.results(), stream);
  }

 private:
  void fold_chunks_of_rows(bool plain, Stream stream) const {
    const GenericItems items = items_.chunks();
    if constexpr (std::is_same_v<T, float>) {
      if (plain)
        return with_element(p_[Slot::x].dtype, [&]<class E>() {
          launch("fold_plain_entropy", fold_plain_entropy<E>, warps_for(items.count), stream, p_,
                 lift::chunk_count(p_.n), factor_of(p_), nodes_.chunks());
        });
    }
    launch("fold_entropy_chunks", fold_entropy_chunks<T>, warps_for(items.count), stream, p_, items, nodes_.chunks());
  }

  const LossProblem& p_;
  Items items_;
  Nodes<Fold> nodes_;
  EntropyRow<T>* rows_;
};

const char* refuses(const LossProblem& p, const Context&) { return refuses_items(p); }

std::size_t workspace(const LossProblem& p, const Context&) {
  Parts parts(nullptr);
  with_fold_type(p, [&]<class T>(T) { EntropyRun<T>(p, parts); });
  return parts.used();
}

void run(const LossProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  Parts parts(scratch.data());
  with_fold_type(p, [&]<class T>(T) { EntropyRun<T>(p, parts).run(stream_of(context)); });
}

const char* refuses_short(const LossProblem& p, const Context&) {
  if (p.n == 0) return "rows of no elements";
  if (p.n > kGroupElements) return "rows of more than 512 elements";
  return refuses_plain(p);
}

void run_short(const LossProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_group_lanes(p.n, [&]<int kLanes>() {
      launch("entropy_short_rows", entropy_short_rows<E, kLanes>, {ceil_div(p.rows * kLanes, kThreads), kThreads},
             stream_of(context), p, factor_of(p));
    });
  });
}

const char* refuses_small_rows(const LossProblem& p, const Context&) {
  if (p.n > 128 || p.rows * p.n > most_small(p.n)) return "lanes with more elements are faster";
  return refuses_plain_small(p);
}

void run_small_rows(const LossProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_small_shape<4>(p.n, [&]<int kLanes, int kCount>() {
      launch("entropy_small_rows", entropy_small_rows<E, kLanes, kCount>, small_grid<kLanes>(p.rows),
             stream_of(context), p, small_rows(p));
    });
  });
}

constexpr LossKernel kShort{"entropy_short_rows", refuses_short, run_short, nullptr};
constexpr LossKernel kEntropy[] = {{"entropy_small_rows", refuses_small_rows, run_small_rows, nullptr},
                                   kShort,
                                   {"entropy_chunks", refuses, run, workspace}};
constexpr LossKernel kEntropyBackward[] = {kShort, {"entropy_backward_chunks", refuses, run, workspace}};

}  // namespace

std::span<const LossKernel> entropy_kernels(Op op) {
  if (op == Op::entropy) return kEntropy;
  return kEntropyBackward;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
