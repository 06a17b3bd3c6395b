// Launching on a caller's stream: errors become softfold::Error, nothing is synchronised, nothing is kept.
#pragma once

#include "front/problem.hpp"
#include "softfold/error.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Throws for anything but success: Code::out_of_memory or Code::device. Clears the runtime's last error, so that one
/// that is not sticky does not reach the next call.
void check(cudaError_t status, const char* what);

/// The stream of a call, and whether its kernels may begin while the one before them ends (in_order.cuh).
struct Stream {
  Stream(cudaStream_t of, bool overlaps_ = false) : handle(of), overlaps(overlaps_) {}
  operator cudaStream_t() const { return handle; }
  /// For a kernel after another one of the same call, whether the caller asks for overlap or not.
  Stream following() const { return {handle, true}; }
  cudaStream_t handle;
  bool overlaps;
};

inline Stream stream_of(const Context& context) { return {static_cast<cudaStream_t>(context.stream), context.overlap}; }

/// Makes the device that `data` lies on current, for as long as it lives.
class DeviceOf {
 public:
  explicit DeviceOf(const void* data);
  ~DeviceOf();
  DeviceOf(const DeviceOf&) = delete;
  DeviceOf& operator=(const DeviceOf&) = delete;
  int device() const { return device_; }

 private:
  int device_ = 0, before_ = 0;
};

/// What the schedules ask about a device; read once a device.
struct DeviceTraits {
  /// Shared memory that a processor keeps of each block's, beside what the block opts in to.
  static constexpr int kReservedBytes = 1024;

  int processors;       ///< streaming multiprocessors
  int shared_bytes;     ///< that a block can opt in to
  int largest_cluster;  ///< blocks in a cluster of the row kernels; 1 where the device has no clusters
  bool is_hopper;       ///< compute capability 9.0: runs code for sm_90a
};
const DeviceTraits& traits_of(int device);

/// Where a workspace and each part of one begin: a multiple of this, which cuBLASLt's kernels want.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Memory for the time of a call: the caller's workspace, or stream-ordered memory where the caller lent none.
class Scratch {
 public:
  Scratch(std::size_t bytes, const Context& context);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  cudaStream_t stream_;
  bool owned_ = false;
};

struct Grid {
  std::int64_t blocks;
  int threads;
  int cluster = 1;
  int shared_bytes = 0;
  bool cooperative = false;
  /// Blocks of a cluster may lie on the same processor, so that more clusters find a place: those of an H200 come in
  /// groups of 18, 16, 8 and 2, and by default a cluster's blocks are spread over as many. Of 16 blocks, four of which
  /// a processor holds, 30 clusters run at once so, and else 28. (Where all find a place anyway, some processors have
  /// two then, and others none.)
  bool shares_processors = false;
};

/// Lets the kernel have as much dynamic shared memory as the current device allows. Always the same limit: one for this
/// call alone could be below what another thread's call is about to ask for.
void allow_shared_memory(const char* name, const void* kernel);

/// Shared memory for a block, at least `bytes`, of which a processor of the current device holds `blocks` at most:
/// where more bytes are under way than memory needs, it is slower.
int bytes_of_blocks(int blocks, int bytes);

/// Throws Code::shape for more blocks than a grid has.
void check_blocks(const char* name, std::int64_t blocks);

/// A launch as the runtime takes it. as_cluster: a block by itself is a cluster, too, for who asks about clusters.
struct LaunchConfig {
  cudaLaunchAttribute attributes[4];
  cudaLaunchConfig_t of{};

  LaunchConfig(const Grid& grid, const Stream& stream, bool as_cluster = false);
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
            Arguments&&... arguments) {
  if (grid.blocks == 0) return;
  check_blocks(name, grid.blocks);
  if (grid.cluster > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
  if (grid.shared_bytes > 0) allow_shared_memory(name, reinterpret_cast<const void*>(kernel));
  const LaunchConfig config(grid, stream);
  check(cudaLaunchKernelEx(&config.of, kernel, static_cast<Parameters>(arguments)...), name);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
