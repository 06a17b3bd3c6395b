#include "cuda/sm90/tensor_map.hpp"

#include "cuda/launch.hpp"

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// The driver's encoder, found at run time: a machine without driver loads the library too.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result),
          "looking up cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess)
      throw Error(Code::device, "a driver without cuTensorMapEncodeTiled", "driver 525 or later", "update the driver");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(f);
  }();
  return found;
}

CUtensorMap encoded(CUtensorMapDataType type, unsigned rank, void* data, const cuuint64_t* sizes,
                    const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle,
                    CUtensorMapL2promotion fetched) {
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encoder()(&map, type, rank, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    swizzle, fetched, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(Code::device, "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)),
                "a tensor that the copy engine can read");
  return map;
}

}  // namespace

const char* refuses_tiles(const AttentionTensor& x, std::int64_t batches, std::int64_t heads, std::int64_t tokens) {
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) return "q, k or v is not aligned to 16 bytes";
  const std::int64_t sizes[] = {tokens, heads, batches}, strides[] = {x.token, x.head, x.batch};
  for (int i = 0; i < 3; ++i) {
    if (sizes[i] <= 1) continue;
    if (strides[i] <= 0 || strides[i] >= std::int64_t{1} << 39)
      return "a stride of q, k or v is not positive or too large";
    if (strides[i] % 8 != 0) return "a stride of q, k or v is not a multiple of 16 bytes";
    if (sizes[i] > INT32_MAX) return "an axis of q, k or v is 2^31 or longer";
  }
  return nullptr;
}

CUtensorMap tile_map(const AttentionTensor& x, std::int64_t batches, std::int64_t heads, std::int64_t tokens,
                     std::int64_t columns, int rows) {
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(std::max<std::int64_t>(n, 1)); };
  const auto bytes = [](std::int64_t n, std::int64_t stride) {
    return static_cast<cuuint64_t>(n > 1 ? 2 * stride : 16);
  };
  const cuuint64_t sizes[] = {size(columns), size(tokens), size(heads), size(batches)};
  const cuuint64_t strides[] = {bytes(tokens, x.token), bytes(heads, x.head), bytes(batches, x.batch)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1, 1};
  const auto type = x.dtype == DType::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encoded(type, 4, x.data, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

CUtensorMap box_map(const Operand& x, const std::array<std::int64_t, 4>& sizes,
                    const std::array<std::int64_t, 3>& strides, int columns, int rows, int fetched) {
  const auto unsign = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t all[] = {unsign(sizes[0]), unsign(sizes[1]), unsign(sizes[2]), unsign(sizes[3])};
  const cuuint64_t bytes[] = {unsign(strides[0]), unsign(strides[1]), unsign(strides[2])};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), 1, static_cast<cuuint32_t>(rows), 1};
  const auto type = x.dtype == DType::bfloat16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : x.dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return encoded(type, 4, x.data, all, bytes, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                 fetched == 0     ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                 : fetched == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                  : CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
