#include "cuda/ragged_chunks.cuh"

#include "cuda/levels.cuh"

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// How many chunks a row has; 0 behind the last. Offsets outside x are clamped as row_at() has it, for which on a GPU
/// p.n is ragged_elements.
struct ChunksOfRow {
  const char* offsets;
  std::int64_t stride, rows, elements;
  DType dtype;

  __device__ std::int64_t operator()(std::int64_t row) const {
    if (row >= rows) return 0;
    const char* at = offsets + row * stride;
    const std::int64_t begin = clamp(integer_at(dtype, at), elements);
    return lift::chunk_count(clamp(clamp(integer_at(dtype, at + stride), elements) - begin, elements));
  }
};

auto counts_of(const RowProblem& p) {
  const Operand& o = p[Slot::offsets];
  return thrust::make_transform_iterator(thrust::counting_iterator<std::int64_t>(0),
                                         ChunksOfRow{o.data, o.strides[0], p.rows, p.ragged_elements, o.dtype});
}

std::size_t sums_bytes(const RowProblem& p) {
  constexpr auto aligned = static_cast<std::int64_t>(kWorkspaceAlignment);
  return static_cast<std::size_t>(ceil_div((p.rows + 1) * 8, aligned) * aligned);
}

/// Of the device that the rows are on: the scan's way depends on it.
std::size_t scan_bytes(const RowProblem& p) {
  const DeviceOf device(p[Slot::offsets].data);
  std::size_t bytes = 0;
  check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, counts_of(p), static_cast<std::int64_t*>(nullptr), p.rows + 1),
        "DeviceScan");
  return bytes;
}

}  // namespace

std::size_t first_chunk_bytes(const RowProblem& p) { return sums_bytes(p) + scan_bytes(p); }

const std::int64_t* find_first_chunks(const RowProblem& p, char* memory, std::size_t bytes, Stream stream) {
  auto* first = reinterpret_cast<std::int64_t*>(memory);
  bytes -= sums_bytes(p);  // the scan's
  cudaGetLastError();      // CUB would take an error that another call has left for its own
  check(cub::DeviceScan::ExclusiveSum(memory + sums_bytes(p), bytes, counts_of(p), first, p.rows + 1, stream.handle),
        "DeviceScan");
  return first;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
