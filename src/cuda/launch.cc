#include "cuda/launch.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

namespace softfold {
inline namespace v0 {
namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const std::string got = std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status);
  switch (status) {
    case cudaErrorMemoryAllocation:
      throw Error(Code::out_of_memory, got, "what is free on the device", "free memory, or lend Context::workspace");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      throw Error(Code::device, got, "a device that this build's kernels are compiled for",
                  "build with SOFTFOLD_CUDA_ARCHITECTURES for it");
    // These stay with the process.
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
      throw Error(Code::device, got, "a device on which no earlier work failed",
                  "start the process anew: its CUDA context is lost; compute-sanitizer finds the work that failed");
    default: throw Error(Code::device, got, "a working CUDA device and driver", "see `softfold doctor`");
  }
}

DeviceOf::DeviceOf(const void* data) {
  cudaPointerAttributes attributes{};  // those of an operand that check_memory() let through
  check(cudaPointerGetAttributes(&attributes, data), "looking up a tensor's memory");
  check(cudaGetDevice(&before_), "cudaGetDevice");
  device_ = attributes.type == cudaMemoryTypeDevice ? attributes.device : before_;
  if (device_ != before_) check(cudaSetDevice(device_), "cudaSetDevice");
}

DeviceOf::~DeviceOf() {
  if (device_ != before_) cudaSetDevice(before_);
}

const DeviceTraits& traits_of(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<DeviceTraits, kMaxDevices> traits;
  static std::array<std::once_flag, kMaxDevices> once;
  if (device < 0 || device >= kMaxDevices)
    throw Error(Code::device, "device " + std::to_string(device), "devices 0 .. " + std::to_string(kMaxDevices - 1));
  const auto at = static_cast<std::size_t>(device);
  std::call_once(once[at], [&] {
    DeviceTraits& t = traits[at];
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&t.processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&t.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
    t.is_hopper = major == 9 && minor == 0;
    t.largest_cluster = major < 9 ? 1 : major == 12 ? 8 : 16;
  });
  return traits[at];
}

namespace {
const DeviceTraits& current_traits() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return traits_of(device);
}
}  // namespace

LaunchConfig::LaunchConfig(const Grid& grid, const Stream& stream, bool as_cluster) {
  of.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  of.blockDim = dim3(static_cast<unsigned>(grid.threads));
  of.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  of.stream = stream.handle;
  of.attrs = attributes;
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[of.numAttrs].id = id;
    return attributes[of.numAttrs++].val;
  };
  if (grid.cluster > 1 || as_cluster) {
    auto& cluster = add(cudaLaunchAttributeClusterDimension).clusterDim;
    cluster.x = static_cast<unsigned>(grid.cluster);
    cluster.y = cluster.z = 1;
  }
  if (grid.shares_processors)
    add(cudaLaunchAttributeClusterSchedulingPolicyPreference).clusterSchedulingPolicyPreference =
        cudaClusterSchedulingPolicyLoadBalancing;
  if (grid.cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
  if (stream.overlaps && !grid.cooperative)
    add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
}

void allow_shared_memory(const char* name, const void* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), name);
  const int most = current_traits().shared_bytes - static_cast<int>(attributes.sharedSizeBytes);
  if (attributes.maxDynamicSharedSizeBytes == most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), name);
}

int bytes_of_blocks(int blocks, int bytes) {
  constexpr int kReserved = DeviceTraits::kReservedBytes;
  return std::max(bytes, (current_traits().shared_bytes + kReserved) / (blocks + 1) - kReserved + 16);
}

void check_blocks(const char* name, std::int64_t blocks) {
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  if (blocks <= kMost) return;
  throw Error(Code::shape, std::to_string(blocks) + " blocks of " + name, "at most " + std::to_string(kMost),
              "give the rows in several calls");
}

Scratch::Scratch(std::size_t bytes, const Context& context) : stream_(stream_of(context)) {
  if (bytes == 0) return;
  if (context.workspace != nullptr) {
    if (context.workspace->bytes < bytes || context.workspace->data == nullptr)
      throw Error(Code::option, "a workspace of " + std::to_string(context.workspace->bytes) + " bytes",
                  "at least " + std::to_string(bytes) + " bytes", "ask Plan::workspace_bytes()");
    if (reinterpret_cast<std::uintptr_t>(context.workspace->data) % kWorkspaceAlignment != 0)
      throw Error(Code::option, "a workspace that does not begin at a multiple of 256 bytes", "one that does",
                  "memory as cudaMalloc gives it");
    data_ = static_cast<char*>(context.workspace->data);
    return;
  }
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, bytes, stream_), "a workspace in stream order");
  data_ = static_cast<char*>(memory);
  owned_ = true;
}

Scratch::~Scratch() {
  if (owned_) cudaFreeAsync(data_, stream_);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
