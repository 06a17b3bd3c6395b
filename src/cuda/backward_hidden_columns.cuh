// The gradients of softmax and log_softmax of rows that lie side by side and of which something is hidden, or with
// scales of their own, or to another dtype: by columns, as backward_across_columns.
#pragma once

#include "cuda/backward_columns.cuh"
#include "cuda/backward_columns_twice.cuh"
#include "cuda/hidden_columns.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct BackwardHiddenColumns {
  BackwardColumns of;
  HiddenColumns hidden;
};

/// From y and dy of E to dx of Y.
template <class E, class Y, template <class> class Gradient, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 28 / kWarps)
    backward_across_hidden(const __grid_constant__ BackwardHiddenColumns p) {
  begin_in_order();
  constexpr int kCount = GradientColumn<E, Gradient, kRows, kWarps>::kCount, kBatch = 16;
  const auto shown_at = [&](const ColumnPlace& at, const auto& load) {
    ShownColumn<kRows, kCount> shown(p.hidden, at);
    load(shown.reach);
    shown.template hide<kBatch>(p.hidden, at);
    return shown;
  };
  backward_columns<E, Y, Gradient, kRows, kWarps>(p.of, shown_at, [&](unsigned outer, std::int64_t row) {
    return static_cast<float>(p.hidden.scale_of(outer, row));
  });
}

/// The same of rows of any length, as add_across_columns and write_across_columns.
struct HiddenSums {
  GradientSums of;
  HiddenColumns hidden;
};
template <class E, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 2) add_across_hidden(const __grid_constant__ HiddenSums p) {
  begin_in_order();
  add_columns<E, Gradient, kRows>(p.of, [&](unsigned outer, unsigned column, std::int64_t begin) {
    return HiddenWord<kRows>(p.hidden, outer, column, begin);
  });
}
template <class E, class Y, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 2)
    write_gradient_hidden(const __grid_constant__ HiddenSums p, const GradientState<float>* roots) {
  begin_in_order();
  write_columns<E, Y, Gradient, kRows>(
      p.of, roots,
      [&](unsigned outer, unsigned column, std::int64_t begin) {
        return HiddenWord<kRows>(p.hidden, outer, column, begin);
      },
      [&](unsigned outer, std::int64_t row) { return static_cast<float>(p.hidden.scale_of(outer, row)); });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
