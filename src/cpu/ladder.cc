// softmax_naive, softmax_safe, softmax_online: the first rungs of the ladder as kernels one can ask for.
#include "cpu/ladder_ops.hpp"
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// They show an algorithm, so they take the plain case alone.
const char* refuses(const RowProblem& p, Rung own) {
  if (p.rung != own) return "a rung of the ladder: only when asked for";
  const Operand &x = p[Slot::x], &y = p[Slot::y];
  if (x.dtype != y.dtype || (x.dtype != DType::float32 && x.dtype != DType::float64))
    return "this rung takes float32 or float64, and gives what it took";
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (p.n > 1 && (x.axis_stride != size || y.axis_stride != size)) return "this rung takes contiguous rows";
  if (p[Slot::mask].given || p[Slot::scales].given || !(p.scale > 0))
    return "this rung takes one scale > 0 and no mask";
  return nullptr;
}

template <class T>
void run_row(const RowProblem& p, const Row& r, T c) {
  const auto& ops = ladder_ops<T>();
  const T* x = reinterpret_cast<const T*>(r.x);
  T* y = reinterpret_cast<T*>(r.y);
  if (p.rung == Rung::naive) {
    ops.naive_write(x, r.length, c, ops.naive_sum(x, r.length, c), y);
  } else {
    const auto state = (p.rung == Rung::safe ? ops.safe_sum : ops.online_sum)(x, r.length, c);
    const fold::Normaliser<T> row(state);
    if (row.empty) return std::fill(y, y + r.n, p.empty == Empty::nan ? fold::canonical_nan<T>() : T(0));
    if (row.regular) {
      ops.write(x, r.length, c, state, y);
    } else {
      std::fill(y, y + r.length, fold::canonical_nan<T>());
    }
  }
  std::fill(y + r.length, y + r.n, T(0));
}

}  // namespace

void run_ladder(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) {
    const T c = fold::make_scale<T>(p.scale).c;
    split_rows(p, context, [&](std::int64_t first, std::int64_t last) {
      RowCursor cursor(p, first);
      for (; first < last; ++first, cursor.next()) run_row<T>(p, cursor.row(), c);
    });
  });
}

const char* naive_refuses(const RowProblem& p, const Context&) { return refuses(p, Rung::naive); }
const char* safe_refuses(const RowProblem& p, const Context&) { return refuses(p, Rung::safe); }
const char* online_refuses(const RowProblem& p, const Context&) { return refuses(p, Rung::online); }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
