// How kernels of a lane a row are launched.
#pragma once

#include "cuda/lane_rows.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// go.operator()<kVectors>(), by the vectors of p's rows.
template <int kVectors = 1, class Go>
void with_lane_vectors(const PlainRows& p, const Go& go) {
  if constexpr (kVectors < kLaneVectors)
    if (p.x_stride > kVectors * 16) return with_lane_vectors<kVectors + 1>(p, go);
  go.template operator()<kVectors>();
}

/// go(rows, grid) for a kernel that reads kStreams operands by kLaneSets sets a warp. Few rows are spread over the
/// device.
template <int kVectors, int kStreams, class Go>
void launch_lane_rows(const PlainRows& p, const DeviceTraits& device, const Go& go) {
  constexpr std::int64_t lanes = 32 * kLaneWarps * kLaneSets, at_once = 6 / kStreams;
  const std::int64_t each =
      std::clamp<std::int64_t>(p.rows / (lanes * at_once * device.processors), 1, kLaneVectors / kVectors);
  const Grid grid{(p.rows + lanes * each - 1) / (lanes * each), 32 * kLaneWarps, 1,
                  kStreams * kLaneWarps * kLaneSets * LaneSets<kVectors>::kRoom};
  go(LaneRows{p, static_cast<int>(each)}, grid);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
