// How kernels whose clusters stay for many rows are launched.
#pragma once

#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Blocks of a cluster, and warps of a block.
struct StaySpread {
  int blocks, warps;
};

/// Warps that the registers of a processor hold, of kernels that keep 64 of them a lane for elements.
inline constexpr int kStayWarps = 16;

/// The fewest blocks, two or more, whose warps have a place for every chunk, `of_warp` to a warp.
constexpr StaySpread fewest_blocks(std::int64_t chunks, int of_warp) {
  const std::int64_t most = of_warp * kStayWarps, blocks = std::max<std::int64_t>((chunks + most - 1) / most, 2);
  return {static_cast<int>(blocks), static_cast<int>((chunks + of_warp * blocks - 1) / (of_warp * blocks))};
}

/// Clusters of a kernel that run at once.
template <class... Parameters>
int clusters_at_once(const char* name, void (*kernel)(Parameters...), const Grid& grid) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
  allow_shared_memory(name, reinterpret_cast<const void*>(kernel));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(grid.cluster);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), name);
  return std::max(clusters, 1);
}

/// As many clusters as run at once, or as there are rows; their number is the kernel's last argument.
template <class Problem>
void launch_to_stay(const char* name, void (*kernel)(Problem, int), const StaySpread& spread, int shared_bytes,
                    std::int64_t rows, Stream stream, const Problem& problem) {
  Grid grid{spread.blocks, spread.warps * 32, spread.blocks, shared_bytes};
  const auto clusters = std::min<std::int64_t>(clusters_at_once(name, kernel, grid), rows);
  grid.blocks = clusters * spread.blocks;
  launch(name, kernel, grid, stream, problem, static_cast<int>(clusters));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
