// Which rows the kernels of a lane a narrow row take, and how they are launched.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/narrow_rows.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if they are rows of as few elements, end to end, else why not.
const char* refuses_narrow(const RowProblem& p, const PlainRows& rows);
/// The same of plain rows, whose results may lie anywhere.
const char* refuses_plain_narrow(const RowProblem& p);

/// Whether softmax_narrow_rows or backward_narrow_rows takes p's rows.
bool takes_narrow(const RowProblem& p);

/// Measured: log-probabilities of 33 to 56 elements, and their gradients, ask for more registers than a lane has.
constexpr bool is_narrow_log(std::int64_t n) { return n <= 32 || n > 56; }

/// go.operator()<kN>(), of rows that refuses_narrow() takes, and is_narrow_log() if kLog.
template <class E, bool kLog, int kN = 2, class Go>
void with_narrow(std::int64_t n, const Go& go) {
  constexpr int exact = kNarrowExact<E>, step = kN < exact ? 1 : kN == exact ? 5 : kN < 32 ? 4 : 8;
  if constexpr (kN + step <= kNarrowMost<E>)
    if (n > kN) return with_narrow<E, kLog, kN + step>(n, go);
  if constexpr ((kN > exact || kN * sizeof(E) % 16 != 0) && (!kLog || is_narrow_log(kN))) go.template operator()<kN>();
}

/// The rows that a lane has in a set, of `most`: few are spread over the device.
inline int each_of(std::int64_t rows, int most, int streams, const DeviceTraits& device) {
  constexpr std::int64_t lanes = 32 * kOddWarps * kOddRuns;
  return static_cast<int>(std::clamp<std::int64_t>(rows / (lanes * (6 / streams) * device.processors), 1, most));
}

/// The grid of a kernel that reads so many operands; p becomes rows that lie end to end.
template <class E>
Grid narrow_grid(PlainRows& p, int each, int streams) {
  p.joined = true, p.pitch = OddPlace<E>::pitch(p);
  const std::int64_t rows = std::int64_t{32} * each * kOddWarps * kOddRuns;
  return {(p.rows + rows - 1) / rows, 32 * kOddWarps, 1,
          streams * kOddWarps * kOddRuns * OddPlace<E>::bytes(p, 32 * each)};
}

/// go.operator()<E, kN>(rows, grid) for a kernel of one operand.
template <bool kLog, class Go>
void launch_narrow(const RowProblem& p, const Go& go) {
  const DeviceOf device(p[Slot::x].data);
  LaneRows rows{plain_rows(p), 1};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_narrow<E, kLog>(p.n, [&]<int kN>() {
      rows.each = each_of(p.rows, kNarrowEach<E, kN>, 1, traits_of(device.device()));
      const Grid grid = narrow_grid<E>(rows.rows, rows.each, 1);
      go.template operator()<E, kN>(rows, grid);
    });
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
