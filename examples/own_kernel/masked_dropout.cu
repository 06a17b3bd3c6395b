// A kernel of one's own from softfold's device layer: scale, mask, softmax and dropout in one read and one write.
// Before the dropout its numbers are the library's, bit for bit; main() compares them with the CPU's.
#include "softfold/lift/block.cuh"
#include "softfold/softfold.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

using namespace softfold;

/// Whether dropout keeps element i: a hash of seed and place (splitmix64), so it does not depend on the schedule.
__host__ __device__ inline bool keeps(std::uint64_t seed, std::int64_t i, float keep) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(i + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<float>((z ^ (z >> 31)) >> 40) < keep * 0x1p24F;
}

constexpr int kWarps = 8;  // of a block; a chunk of 1024 elements each, so rows have up to 8192

/// y[row] = dropout(softmax(scale * x[row])) over the elements whose mask is not 0. A block a row.
__global__ void __launch_bounds__(kWarps * 32) masked_dropout(const float* x, const unsigned char* mask, float* y,
                                                              int n, double scale, float keep, std::uint64_t seed) {
  using Warp = lift::WarpFold<4>;
  using Block = lift::BlockFold<kWarps>;
  using S = fold::Scalar<float>;
  __shared__ Block::Storage storage;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * n;
  const float c = fold::make_scale<float>(scale).c;
  // WarpFold's layout: slot i of a lane holds this element of the row.
  const auto element = [&](int i) { return warp * lift::kChunk + 4 * (lane + 32 * (i / 4)) + i % 4; };

  float v[lift::kPerLane];
#pragma unroll
  for (int i = 0; i < lift::kPerLane; ++i) {
    const int e = element(i);
    v[i] = e < n && mask[first + e] != 0 ? x[first + e] : lift::absent(c);
  }
  const auto chunk = Warp::terms(v, c);  // the chunk's state; v becomes 2^(t - m)
  const auto row = Block::fold(storage, chunk.state, warp, static_cast<int>(lift::chunk_count(n)));

  const fold::Normaliser<float> norm(row);
  const float multiplier = S::mul(norm.multiplier(chunk.state.m), chunk.unit);
#pragma unroll
  for (int i = 0; i < lift::kPerLane; ++i) {
    const int e = element(i);
    if (e >= n) continue;
    float p = norm.regular ? norm.probability(v[i], multiplier) : norm.empty ? 0.F : fold::canonical_nan<float>();
    if (mask[first + e] == 0) p = 0.F;
    y[first + e] = keeps(seed, first + e, keep) ? S::div(p, keep) : 0.F;
  }
}

template <class T>
T* on_device(const std::vector<T>& host) {
  void* memory = nullptr;
  cudaMalloc(&memory, host.size() * sizeof(T));
  cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  return static_cast<T*>(memory);
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  constexpr std::int64_t rows = 64, n = 5001;
  constexpr double scale = 0.125;
  constexpr float keep = 0.9F;
  constexpr std::uint64_t seed = 42;
  std::vector<float> x(rows * n), expected(x.size()), y(x.size(), -1.F);
  std::vector<unsigned char> mask(x.size());
  for (std::int64_t i = 0; i < rows * n; ++i) {
    x[static_cast<std::size_t>(i)] = static_cast<float>((i * 7919) % 1001) * 0.1F - 50.F;
    mask[static_cast<std::size_t>(i)] = i / n == 3 ? 0 : i % 5 != 2;  // row 3 has nothing in it
  }

  const std::int64_t shape[] = {rows, n};
  RowOptions options;
  options.scale = scale;
  options.mask = View(static_cast<const void*>(mask.data()), DType::boolean, shape);
  softmax(View(static_cast<const void*>(x.data()), DType::float32, shape),
          View(static_cast<void*>(expected.data()), DType::float32, shape), options);
  for (std::int64_t i = 0; i < rows * n; ++i) {
    float& p = expected[static_cast<std::size_t>(i)];
    p = keeps(seed, i, keep) ? p / keep : 0.F;
  }

  float* const result = on_device(y);
  masked_dropout<<<rows, kWarps * 32>>>(on_device(x), on_device(mask), result, static_cast<int>(n), scale, keep, seed);
  const cudaError_t status = cudaMemcpy(y.data(), result, y.size() * sizeof(float), cudaMemcpyDeviceToHost);
  if (status != cudaSuccess) {
    std::printf("CUDA: %s\n", cudaGetErrorString(status));
    return 1;
  }
  const bool same = std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0;
  std::printf("%lld rows of %lld: %s\n", static_cast<long long>(rows), static_cast<long long>(n),
              same ? "the CPU's bits" : "OTHER BITS");
  return same ? 0 : 1;
}
