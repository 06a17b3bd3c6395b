// Which rows the kernels for small problems take, and in which shapes.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"
#include "cuda/small_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if they take p's rows, else why not.
const char* refuses_small(const RowProblem& p, const Context&);
SmallRows small_rows(const RowProblem& p);
/// Whether PlainAccess serves.
bool is_plain_small(const RowProblem& p);

/// go.operator()<lanes a row, elements a lane>(). Few elements a lane: a warp has no other to wait for.
template <class Go>
void with_small_shape(const RowProblem& p, const Go& go) {
  if (p.n <= 2) return go.template operator()<1, 2>();
  if (p.n <= 4) return go.template operator()<1, 4>();
  // Neighbouring lanes to neighbouring rows.
  if (p.n <= 8 && is_across(p)) return go.template operator()<1, 8>();
  if (p.n <= 8) return go.template operator()<2, 4>();
  if (p.n <= 16) return go.template operator()<4, 4>();
  if (p.n <= 32) return go.template operator()<8, 4>();
  if (p.n <= 64) return go.template operator()<16, 4>();
  if (p.n <= 128) return go.template operator()<32, 4>();
  if (p.n <= 256) return go.template operator()<32, 8>();
  if (p.n <= 512) return go.template operator()<32, 16>();
  go.template operator()<32, 32>();
}

/// Launches launch_one.operator()<Access, lanes, elements a lane>(grid) for p's rows.
template <class Go>
void launch_small_rows(const RowProblem& p, const Go& launch_one) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_small_shape(p, [&]<int kLanes, int kCount>() {
    const Grid grid{ceil_div(p.rows, kSmallThreads / kLanes), kSmallThreads};
    if (!is_plain_small(p)) return launch_one.template operator()<AnyAccess, kLanes, kCount>(grid);
    if constexpr (kLanes * kCount != 8 || kLanes != 1)
      with_element(p[Slot::x].dtype,
                   [&]<class E>() { launch_one.template operator()<PlainAccess<E>, kLanes, kCount>(grid); });
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
