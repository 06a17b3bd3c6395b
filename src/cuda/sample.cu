// sample: how it is launched.
#include "cuda/sample.cuh"

#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const SampleProblem& p, const Context&) {
  return p.n < 0xFFFFFFFFLL ? nullptr : "a row is longer than 2^32 - 2";
}

std::int64_t blocks_for(const SampleProblem& p) {
  return std::min<std::int64_t>(p.rows, 2 * traits_of(DeviceOf(p[Slot::x].data).device()).processors);
}

/// States of all levels of a row's tree.
std::int64_t room_for(const SampleProblem& p) { return 2 * lift::chunk_count(p.n) + lift::kMaxLevels; }

std::size_t workspace(const SampleProblem& p, const Context&) {
  return static_cast<std::size_t>(blocks_for(p) * room_for(p)) * sizeof(SampleBlock::State);
}

void run(const SampleProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  launch("sample_rows", sample_rows, {blocks_for(p), kSampleThreads}, stream_of(context), p,
         reinterpret_cast<SampleBlock::State*>(scratch.data()), room_for(p));
}

constexpr Kernel<SampleProblem> kKernels[] = {{"sample_rows", refuses, run, workspace}};

}  // namespace
}  // namespace cuda

std::span<const Kernel<SampleProblem>> cuda_sample_kernels() { return cuda::kKernels; }

}  // namespace v0
}  // namespace softfold
