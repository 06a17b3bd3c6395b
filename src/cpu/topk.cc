// topk on the CPU: which rows, or which parts of a row, run where. The order is total, so it makes no difference.
#include "cpu/row_schedules.hpp"
#include "cpu/topk_rows.hpp"
#include "front/kernel.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// Few long rows: every part gives its k best, and the best of those are the row's.
template <class T>
void shared_rows(const TopkProblem& p, const Context& context) {
  using State = typename fold::LogSumExp<T>::State;
  using Entry = fold::Ranked<T>;
  const Blocks blocks(p.n);
  const auto count = static_cast<std::size_t>(p.rows * blocks.count);
  const Scratch::Held<State> states(thread_scratch(), Scratch::blocks, count);
  const Scratch::Held<std::int64_t> counts(thread_scratch(), Scratch::block_sums, count);
  const std::int64_t most = std::min(p.k, blocks.size);  // of a part
  const Scratch::Held<Entry> entries(thread_scratch(), Scratch::block_best, count * static_cast<std::size_t>(most) + 1);
  for_blocks(p, context, blocks,
             [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
               const std::int64_t at = i * blocks.count + b;
               TopkWorker<T> worker(p);
               states.data()[at] = worker.reduce(r, begin, end, counts.data() + at);
               std::copy_n(worker.room(), counts.data()[at], entries.data() + at * most);
             });
  TopkWorker<T> worker(p);
  RowCursor cursor(p, 0);
  for (std::int64_t i = 0; i < p.rows; ++i, cursor.next()) {
    BestOf<T> best(worker.room(), p.k);
    for (std::int64_t at = i * blocks.count; p.k > 0 && at < (i + 1) * blocks.count; ++at)
      for (std::int64_t j = 0; j < counts.data()[at]; ++j) best.offer(entries.data()[at * most + j]);
    const std::int64_t found = best.finish();
    const State s = lift::reduce_nodes<fold::LogSumExp<T>>(states.data() + i * blocks.count, blocks.count);
    worker.finish(cursor.row(), i, s, best.entries(), found);
  }
}

template <class T>
void all_rows(const TopkProblem& p, const Context& context) {
  if (splits_inside_rows(p, context)) return shared_rows<T>(p, context);
  split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
    TopkWorker<T> worker(p);
    for (RowCursor cursor(p, first); first < last; ++first, cursor.next()) {
      const Row r = cursor.row();
      std::int64_t count = 0;
      const auto s = worker.reduce(r, 0, r.n, &count);
      worker.finish(r, first, s, worker.room(), count);
    }
  });
}

void run(const TopkProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { all_rows<T>(p, context); });
}

const char* refuses(const TopkProblem&, const Context&) { return nullptr; }

constexpr Kernel<TopkProblem> kTopkKernels[] = {{"topk_filter", refuses, run, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<TopkProblem>> cpu_topk_kernels() { return cpu::kTopkKernels; }

}  // namespace v0
}  // namespace softfold
