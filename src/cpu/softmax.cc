// softmax on the CPU: y = 2^t / sum 2^t.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// The longest row whose terms are kept when the rung is asked for.
constexpr std::int64_t kFusedMost = std::int64_t{1} << 18;

const char* fused_refuses(const RowProblem& p, const Context& context) {
  if (p.rung == Rung::fused) return p.n > kFusedMost ? "a row's terms do not fit the cache" : nullptr;
  const bool half = size_of(p[Slot::x].dtype) == 2;
  if (p.n > (half ? tuning().fused_half_elements : tuning().fused_elements))
    return "a row's terms do not fit the cache";
  if (p.rung == Rung::automatic && splits_inside_rows(p, context)) return "few long rows: threads share each of them";
  return refuses_rung(p.rung, Rung::fused);
}

/// Rows that fit one chunk, as many at a time as lie evenly.
template <class T>
void fused_small(const RowProblem& p, RowWorker<T>& worker, std::int64_t first, std::int64_t last) {
  const T c = fold::make_scale<T>(p.scale).c;
  RowCursor cursor(p, first);
  while (first < last) {
    const std::int64_t run = std::min(last - first, cursor.even_rows());
    std::int64_t done = worker.small_rows(cursor.row(), cursor.stride(Slot::x), cursor.stride(Slot::y), run, c);
    cursor.skip(done);
    if (done < run) {
      worker.fused(cursor.row());
      cursor.next();
      ++done;
    }
    first += done;
  }
}

void fused(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) {
    const bool plain = is_plain<T>(p), pipeline = plain && streams(p);
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      RowWorker<T> worker(p, Result::softmax);
      if (plain && p.n <= lift::kChunk) return fused_small(p, worker, first, last);
      if (pipeline) return RowPipeline<T>(p, Result::softmax, RowPipeline<T>::From::terms, worker).run(first, last);
      RowCursor cursor(p, first);
      for (; first < last; ++first, cursor.next()) worker.fused(cursor.row());
    });
  });
}

constexpr Kernel<RowProblem> kSoftmaxKernels[] = {
    {"softmax_fused", fused_refuses, fused, nullptr},
    {"softmax_tiled", tiled_refuses, tiled<Result::softmax>, nullptr},
    {"softmax_online", online_refuses, run_ladder, nullptr},
    {"softmax_safe", safe_refuses, run_ladder, nullptr},
    {"softmax_naive", naive_refuses, run_ladder, nullptr},
};

}  // namespace

RowKernels softmax_kernels() { return kSoftmaxKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
