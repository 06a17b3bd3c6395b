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

/// Chunks a processor below which it is not worth staying: those of about two rows a cluster.
constexpr std::int64_t kFewestChunks = 48;
constexpr std::int64_t kLongest = 256 * lift::kChunk, kLongestFloat = 128 * lift::kChunk;

/// Measured: the longest rows of log_softmax are faster by whole blocks.
constexpr StaySpread spread(std::int64_t chunks, bool is_log) {
  if (is_log && chunks > 192 && chunks % 32 == 0) return fewest_blocks(chunks, 2);
  return fewest_instructions(chunks);
}

constexpr bool every_warp_has_a_chunk() {
  for (std::int64_t chunks = 17; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool is_log : {false, true}) {
      const StaySpread s = spread(chunks, is_log);
      if (s.blocks * s.warps > chunks || 2 * s.blocks * s.warps < chunks || s.warps > kStayWarps) return false;
    }
  return true;
}
static_assert(every_warp_has_a_chunk());

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::fused) return "another rung is asked for";
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (chunks <= (wide ? 32 : 16)) return "a row fits a block";
  if (p.n > (wide ? kLongestFloat : kLongest)) return "a row is longer than clusters hold well";
  if (wide && p.op == Op::log_softmax && p.n % (16 * lift::kChunk) == 0)
    return "float32 log_softmax of whole blocks is faster by others";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (p.rows * chunks < kFewestChunks * traits.processors) return "too few rows to stay for";
  if (traits.largest_cluster < spread(chunks, p.op == Op::log_softmax).blocks)
    return "the device has no clusters of so many blocks";
  return nullptr;
}

template <Leaves kLeaves>
void launch_leaves(const PlainRows& p, DType dtype, Stream stream) {
  with_element(dtype, [&]<class E>() {
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    const StaySpread s = spread(chunks, kLeaves == Leaves::log_softmax);
    const int shared = s.warps * StayShape<E>::kWarpBytes + 2 * StayBox::bytes(chunks);
    launch_to_stay("softmax_cluster_stays", softmax_cluster_stays<E, kLeaves>, s, shared, p.rows, stream, p);
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

void launch_stays_gradient(const PlainRows& rows, DType dtype, Stream stream) {
  launch_leaves<Leaves::gradient>(rows, dtype, stream);
}

const RowKernel softmax_cluster_stays_kernel{"softmax_cluster_stays", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
