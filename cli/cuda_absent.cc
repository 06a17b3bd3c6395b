// A build without CUDA: nothing is found, and what needs it is refused.
#include "cuda.hpp"

#include "softfold/error.hpp"

namespace softfold::cli {

struct CudaDevice::State {};

CudaFound find_cuda() {
  CudaFound found;
  found.why_not = "compiled without CUDA; try: build with nvcc and -DSOFTFOLD_CUDA=ON";
  return found;
}

void require_cuda_build() {
  throw Error(Code::unsupported, "--backend cuda", "cpu: this build was compiled without CUDA",
              "--backend cpu, or build with nvcc and -DSOFTFOLD_CUDA=ON");
}

CudaDevice::CudaDevice() { require_cuda_build(); }
CudaDevice::~CudaDevice() = default;
std::uint64_t CudaDevice::free_bytes() const { return 0; }
std::string CudaDevice::run(Op, std::span<const View>, std::span<const View>, OpOptions) { return {}; }

struct CudaTrack::State {};

CudaTrack::CudaTrack(std::span<const std::byte>, std::size_t) { require_cuda_build(); }
CudaTrack::~CudaTrack() = default;
const void* CudaTrack::x() const { return nullptr; }
void* CudaTrack::y() const { return nullptr; }
Plan CudaTrack::plan(const std::function<Plan(const Context&)>& make) { return make({}); }
void CudaTrack::run(const Plan&, std::span<std::byte>) {}
Timed CudaTrack::timed(const Plan&) { return {}; }
Timed CudaTrack::timed_copy(std::size_t) { return {}; }

}  // namespace softfold::cli
