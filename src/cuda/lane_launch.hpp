// How kernels of a lane a row are launched.
#pragma once

#include "cuda/lane_rows.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// go.operator()<kVectors>(rows, grid), by the vectors of p's rows, for a kernel that reads kStreams operands. Few rows
/// are spread over the device.
template <int kStreams, int kVectors = 1, class Go>
void launch_lane_rows(const PlainRows& p, const DeviceTraits& device, const Go& go) {
  if constexpr (kVectors < kLaneVectors)
    if (p.x_stride > kVectors * 16) return launch_lane_rows<kStreams, kVectors + 1>(p, device, go);
  constexpr std::int64_t lanes = 32 * kLaneWarps * kLaneSets, at_once = 6 / kStreams;
  const std::int64_t each =
      std::clamp<std::int64_t>(p.rows / (lanes * at_once * device.processors), 1, kLaneVectors / kVectors);
  const Grid grid{(p.rows + lanes * each - 1) / (lanes * each), 32 * kLaneWarps, 1,
                  kStreams * kLaneWarps * kLaneSets * LaneSets<kVectors>::kRoom};
  go.template operator()<kVectors>(LaneRows{p, static_cast<int>(each)}, grid);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
