#include "cuda/launch.hpp"

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
  if (status == cudaErrorMemoryAllocation)
    throw Error(Code::out_of_memory, got, "what is free on the device", "lend a smaller Context::workspace");
  throw Error(Code::device, got, "a working CUDA device and driver", "see `softfold doctor`");
}

DeviceOf::DeviceOf(const void* data) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "looking up a tensor's memory");
  if (attributes.type == cudaMemoryTypeUnregistered)
    throw Error(Code::device, "a tensor that is said to be on a CUDA device and lies in pageable host memory",
                "memory that the device can read", "copy the tensor to the device, or plan it on the CPU");
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
    int major = 0;
    check(cudaDeviceGetAttribute(&t.processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&t.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    t.largest_cluster = major < 9 ? 1 : major == 12 ? 8 : 16;
  });
  return traits[at];
}

Scratch::Scratch(std::size_t bytes, const Context& context) : stream_(stream_of(context)) {
  if (bytes == 0) return;
  if (context.workspace != nullptr) {
    if (context.workspace->bytes < bytes || context.workspace->data == nullptr)
      throw Error(Code::option, "a workspace of " + std::to_string(context.workspace->bytes) + " bytes",
                  "at least " + std::to_string(bytes) + " bytes", "ask Plan::workspace_bytes()");
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
