// finish_*: from merged states to a shard's results. The states are checked before anything is written.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"
#include "cpu/row_states.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

template <Result result>
void finish(const RowProblem& p, const Context& context) {
  check_states(p);
  with_fold_type(p, [&]<class T>(T) {
    const auto state = [](const Row& r) { return state_of<T>(stored_state(r)); };
    if (splits_inside_rows(p, context)) {
      for_blocks(p, context, Blocks(p.n),
                 [&](const Row& r, std::int64_t, std::int64_t, std::int64_t begin, std::int64_t end) {
                   if (begin < r.n) RowWorker<T>(p, result).write_given(r, state(r), begin, end);
                 });
      return;
    }
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      RowWorker<T> worker(p, result);
      RowCursor cursor(p, first);
      for (; first < last; ++first, cursor.next()) {
        const Row r = cursor.row();
        worker.write_given(r, state(r), 0, r.n);
      }
    });
  });
}

void run_logsumexp(const RowProblem& p, const Context&) {
  check_states(p);
  RowCursor cursor(p, 0);
  for (std::int64_t i = 0; i < p.rows; ++i, cursor.next()) {
    const Row r = cursor.row();
    const StoredState s = stored_state(r);
    const auto put = [&](auto lse) {
      with_dtype(p[Slot::row].dtype, [&]<class S>(S) { *reinterpret_cast<S*>(r.result) = fold::narrow<S>(lse); });
    };
    if (s.digits == fold::Real<double>::kDigits) {
      put(chunk_ops<double>().finish(state_of<double>(s), fold::make_scale<double>(s.scale)));
    } else {
      put(chunk_ops<float>().finish(state_of<float>(s), fold::make_scale<float>(s.scale)));
    }
  }
}

constexpr Kernel<RowProblem> kFinishSoftmax[] = {
    {"finish_softmax_tiled", tiled_refuses, finish<Result::softmax>, nullptr}};
constexpr Kernel<RowProblem> kFinishLogSoftmax[] = {
    {"finish_log_softmax_tiled", tiled_refuses, finish<Result::log_softmax>, nullptr}};
constexpr Kernel<RowProblem> kFinishLogSumExp[] = {{"finish_logsumexp", tiled_refuses, run_logsumexp, nullptr}};

}  // namespace

RowKernels finish_kernels(Op op) {
  switch (op) {
    case Op::finish_softmax: return kFinishSoftmax;
    case Op::finish_log_softmax: return kFinishLogSoftmax;
    default: return kFinishLogSumExp;
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
