// softmax_block_rows: what it takes, and how it is launched.
#include "cuda/softmax_block.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Chunks from which on a block a row fills the device.
constexpr std::int64_t kFewestChunks = 4096;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks < 2) return "a row fits a warp";
  if (chunks > kBlockChunks) return "a row is longer than a block holds well (16384)";
  if (p.rows * chunks < kFewestChunks) return "so few rows are spread over clusters";
  if (p.rows > 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  if (size_of(p[Slot::x].dtype) == 2 && (p.n % (2 * lift::kChunk) != 0 || !plain_rows(p).joined))
    return "16-bit rows that do not fill their warps are faster by others";
  return nullptr;
}

template <class E, Leaves kLeaves>
void launch_rows(const PlainRows& p, int runs, Stream stream) {
  using Shape = BlockShape<E>;
  const auto warps = static_cast<int>((lift::chunk_count(p.n) + Shape::kGroups - 1) / Shape::kGroups);
  const Grid grid{(p.rows + runs - 1) / runs, warps * 32, 1, warps * runs * Shape::kRoom};
  launch("softmax_block_rows", softmax_block_rows<E, kLeaves>, grid, stream, p, runs);
}

template <Leaves kLeaves>
void launch_leaves(const PlainRows& p, DType dtype, Stream stream) {
  const DeviceOf device(p.x);
  // Measured: two rows a block where few blocks fit a processor, or have much to do.
  constexpr std::int64_t single = (kLeaves == Leaves::log_softmax ? 4 : 10) * lift::kChunk;
  const bool pairs = p.n > single && p.rows >= 8 * traits_of(device.device()).processors;
  with_element(dtype, [&]<class E>() { launch_rows<E, kLeaves>(p, pairs ? BlockShape<E>::kMostRuns : 1, stream); });
}

void run(const RowProblem& p, const Context& context) {
  const DType dtype = p[Slot::x].dtype;
  if (p.op == Op::log_softmax) return launch_leaves<Leaves::log_softmax>(plain_rows(p), dtype, stream_of(context));
  launch_leaves<Leaves::softmax>(plain_rows(p), dtype, stream_of(context));
}

}  // namespace

bool blocks_for_gradient(const RowProblem& p) { return refuses(p, {}) == nullptr; }
void launch_blocks_gradient(const PlainRows& rows, DType dtype, Stream stream) {
  launch_leaves<Leaves::gradient>(rows, dtype, stream);
}

const RowKernel softmax_block_rows_kernel{"softmax_block_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
