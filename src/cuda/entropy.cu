// entropy and its backward pass: how their steps follow each other on a stream.
#include "cuda/entropy_short.cuh"

#include "cuda/choose.hpp"
#include "cuda/kernels.hpp"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// The states of chunks, those of rows, what is asked of them, the gradient.
template <class T>
class EntropyRun {
 public:
  using Fold = fold::EntropySum<T>;
  using State = typename Fold::State;

  EntropyRun(const LossProblem& p, Parts& parts)
      : p_(p),
        states_(parts.bytes_for<State>(state_bytes<State>(p))),
        rows_(p[Slot::y].given ? parts.take<EntropyRow<T>>(p.rows) : nullptr) {}

  void run(Stream stream) const {
    if (p_.rows == 0) return;
    const bool plain = refuses_plain(p_) == nullptr;
    const State* roots = fold_rows(plain, stream);
    stream = stream.following();
    launch("finish_entropy", finish_entropy<T>, {ceil_div(p_.rows, kThreads), kThreads}, stream, p_, roots, rows_);
    if (rows_ != nullptr) write_gradients<T>(p_, rows_, plain, stream);
  }

 private:
  const State* fold_rows(bool plain, Stream stream) const {
    const std::int64_t chunks = lift::chunk_count(p_.n), items = p_.rows * chunks;
    if (items == 0) {
      launch("merge_nodes", merge_nodes<Fold>, warps_for(p_.rows), stream, states_, std::int64_t{0}, states_,
             std::int64_t{1}, p_.rows);
      return states_;
    }
    fold_chunks_of_rows(plain, chunks, items, stream);
    return merge_levels<Fold>(p_, states_, stream);
  }

  void fold_chunks_of_rows(bool plain, std::int64_t chunks, std::int64_t items, Stream stream) const {
    if constexpr (std::is_same_v<T, float>) {
      if (plain)
        return with_element(p_[Slot::x].dtype, [&]<class E>() {
          launch("fold_plain_entropy", fold_plain_entropy<E>, warps_for(items), stream, p_, chunks, factor_of(p_),
                 states_);
        });
    }
    launch("fold_entropy_chunks", fold_entropy_chunks<T>, warps_for(items), stream, p_, items, states_);
  }

  const LossProblem& p_;
  State* states_;
  EntropyRow<T>* rows_;
};

const char* refuses(const LossProblem& p, const Context&) { return refuses_chunks(p); }

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

constexpr LossKernel kShort{"entropy_short_rows", refuses_short, run_short, nullptr};
constexpr LossKernel kEntropy[] = {kShort, {"entropy_chunks", refuses, run, workspace}};
constexpr LossKernel kEntropyBackward[] = {kShort, {"entropy_backward_chunks", refuses, run, workspace}};

}  // namespace

std::span<const LossKernel> entropy_kernels(Op op) {
  if (op == Op::entropy) return kEntropy;
  return kEntropyBackward;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
