// softmax on the CPU: y = 2^t / sum 2^t.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const char* fused_refuses(const RowProblem& p, const Context& context) {
  const std::int64_t limit = p.is_double() ? RowWorker<double>::kFusedLimit : RowWorker<float>::kFusedLimit;
  if (p.n > limit) return "a row's terms do not fit the cache";
  if (p.rung == Rung::automatic && splits_inside_rows(p, context)) return "few long rows: threads share each of them";
  return refuses_rung(p, Rung::fused);
}

/// Whether every row is contiguous, stored alike in x and y, and scaled by one c > 0, with all of its elements there.
template <class T>
bool is_plain(const RowProblem& p) {
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (p[Slot::offsets].given || p[Slot::length].given || p[Slot::mask].given || p[Slot::scales].given) return false;
  if (p.causal || x.dtype != y.dtype || p.n == 0) return false;
  const T c = fold::make_scale<T>(p.scale).c;
  return (p.n == 1 || (x.axis_stride == size && y.axis_stride == size)) && c > T(0);
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
    const bool stream = streams(p), small = p.n <= lift::kChunk && is_plain<T>(p);
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      RowWorker<T> worker(p, Result::softmax, stream);
      if (small) {
        fused_small(p, worker, first, last);
      } else {
        RowCursor cursor(p, first);
        for (; first < last; ++first, cursor.next()) worker.fused(cursor.row());
      }
      if (stream) hwy::FlushStream();
    });
  });
}

const char* tiled_refuses(const RowProblem& p, const Context&) { return refuses_rung(p, Rung::tiled); }

void tiled(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { run_tiled<T>(p, context, Result::softmax); });
}

constexpr Kernel<RowProblem> kKernels[] = {
    {"softmax_fused", fused_refuses, fused, nullptr},        {"softmax_tiled", tiled_refuses, tiled, nullptr},
    {"softmax_online", online_refuses, run_ladder, nullptr}, {"softmax_safe", safe_refuses, run_ladder, nullptr},
    {"softmax_naive", naive_refuses, run_ladder, nullptr},
};

}  // namespace

RowKernels softmax_kernels() { return kKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
