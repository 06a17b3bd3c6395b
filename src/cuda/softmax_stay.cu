// softmax_cluster_stays: what it takes, and how it is launched.
#include "cuda/softmax_stay.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Rows that a cluster should have for it to be worth staying.
constexpr std::int64_t kFewestRows = 2;
/// Measured: float32 rows of whole blocks are faster by other kernels.
constexpr std::int64_t kLongest = 256 * lift::kChunk, kLongestFloat = 128 * lift::kChunk;

/// Blocks of up to 8 warps, or of 16 where a cluster of 8 is then enough: larger ones leave more processors idle.
constexpr StaySpread spread(std::int64_t chunks) {
  constexpr int kGroups = 2;
  const std::int64_t most = chunks > 128 ? 16 : 8;
  const std::int64_t blocks = (chunks + kGroups * most - 1) / (kGroups * most);
  return {static_cast<int>(blocks), static_cast<int>((chunks + kGroups * blocks - 1) / (kGroups * blocks))};
}

/// The first warp of every block sets up its barriers' next phases, which only warps with a chunk do.
constexpr bool every_block_has_a_chunk() {
  for (std::int64_t chunks = 1; chunks <= kLongest / lift::kChunk; ++chunks)
    if ((spread(chunks).blocks - 1) * spread(chunks).warps * 2 >= chunks) return false;
  return true;
}
static_assert(every_block_has_a_chunk());

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::fused) return "another rung is asked for";
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (chunks <= (wide ? 32 : 16)) return "a row fits a block";
  if (p.n > (wide ? kLongestFloat : kLongest)) return "a row is longer than clusters hold well";
  if (wide && p.n % (16 * lift::kChunk) == 0) return "float32 rows of whole blocks are faster by others";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 8) return "the device has no clusters of 8 blocks";
  if (p.rows * spread(chunks).blocks < kFewestRows * 2 * traits.processors) return "too few rows to stay for";
  return refuses_plain(p);
}

template <class E, Leaves kLeaves, int kThreads>
void launch_stays(const PlainRows& p, const StaySpread& spread, cudaStream_t stream) {
  constexpr int min_blocks = 512 / kThreads;
  const auto kernel = softmax_cluster_stays<E, kLeaves, kThreads, min_blocks>;
  using Shape = StayShape<E>;
  const int shared = spread.warps * Shape::kStages * Shape::Place::kBytes;
  launch_to_stay("softmax_cluster_stays", kernel, spread, shared, p.rows, stream, p);
}

template <Leaves kLeaves>
void launch_leaves(const PlainRows& p, DType dtype, cudaStream_t stream) {
  const StaySpread s = spread(lift::chunk_count(p.n));
  with_element(dtype, [&]<class E>() {
    if constexpr (sizeof(E) == 2) {  // float32 rows are shorter here
      if (s.warps > 8) return launch_stays<E, kLeaves, 512>(p, s, stream);
    }
    launch_stays<E, kLeaves, 256>(p, s, stream);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DType dtype = p[Slot::x].dtype;
  if (p.op == Op::log_softmax) return launch_leaves<Leaves::log_softmax>(plain_rows(p), dtype, stream_of(context));
  launch_leaves<Leaves::softmax>(plain_rows(p), dtype, stream_of(context));
}

}  // namespace

bool stays_for_gradient(const RowProblem& p) { return refuses(p, {}) == nullptr; }

void launch_stays_gradient(const PlainRows& rows, DType dtype, cudaStream_t stream) {
  launch_leaves<Leaves::gradient>(rows, dtype, stream);
}

const RowKernel softmax_cluster_stays_kernel{"softmax_cluster_stays", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
