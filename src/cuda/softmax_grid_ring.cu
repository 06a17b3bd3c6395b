// softmax_grid_ring: what it takes, and how it is launched.
#include "cuda/softmax_grid_ring.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// A block's tiles of a row, at most. The rest of its ring is for what lands, or waits while a row's last nodes cross:
/// measured, longer rows are faster by two reads.
constexpr std::int64_t kMostTiles = kGridRingSlots - 20;

/// Of a block.
constexpr int kSharedBytes = kGridRingSlots * kGridRingPitch<float> + static_cast<int>(sizeof(GridRingShared<false>));
static_assert(kGridRingPitch<float> == kGridRingPitch<fold::BFloat16> && kSharedBytes <= 227 * 1024 &&
              sizeof(GridRingShared<true>) <= sizeof(GridRingShared<false>));

std::int64_t tiles_of(const RowProblem& p) {
  return ceil_div(lift::chunk_count(p.n), p[Slot::x].dtype == DType::float32 ? 1 : 2);
}

/// How the call lays its memory out, and how many bytes it takes.
GridRingPlan plan_of(const RowProblem& p, char* memory, std::size_t& bytes) {
  GridRingPlan plan{};
  plan.rows = static_cast<int>(p.rows);
  plan.tiles = static_cast<int>(tiles_of(p));
  plan.count = static_cast<int>(lift::chunk_count(p.n));
  plan.pitch = static_cast<int>(ceil_div(plan.count, kNodeRun) * kNodeRun);
  const std::int64_t nodes = p.rows * plan.pitch;
  plan.words = ceil_div(nodes + p.rows, 2);
  Parts parts(memory);
  plan.nodes = parts.take<uint4>(plan.words);
  plan.chunks = {reinterpret_cast<lift::Node*>(plan.nodes), parts.take<double>(nodes)};
  plan.roots = {plan.chunks.nodes + nodes, parts.take<double>(p.rows)};
  bytes = parts.used();
  return plan;
}

/// Measured beside the kernels that take what is refused here.
const char* refuses_measured(const RowProblem& p) {
  constexpr std::int64_t million = 1000 * 1000;
  static_assert(4 * million <= kRingLongest);
  const bool wide = p[Slot::x].dtype == DType::float32;
  if (p.n <= 128 * lift::kChunk) return "a row is short enough for a block or a cluster";
  if (p.n > (wide ? 3 * million : p.op == Op::softmax ? 3 * million / 2 : 4 * million)) return "two reads are faster";
  if (p.rows * p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) < std::int64_t{128} << 20)
    return "fewer bytes than rings are worth";
  return nullptr;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (const char* why = refuses_plain(p)) return why;
  if (const char* why = refuses_measured(p)) return why;
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.shared_bytes < kSharedBytes || ceil_div(tiles_of(p), traits.processors) > kMostTiles)
    return "rings of this device do not hold a row";
  if (p.rows * (lift::chunk_count(p.n) + kNodeRun) > 0x7FFFFFFF / 2) return "more chunks than rings count";
  return nullptr;
}

std::size_t workspace(const RowProblem& p, const Context&) {
  std::size_t bytes = 0;
  plan_of(p, nullptr, bytes);
  return bytes;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  std::size_t bytes = 0;
  const GridRingPlan plan = plan_of(p, scratch.data(), bytes);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto run_kind = [&]<bool kLog>() {
      const Grid grid{traits_of(device.device()).processors, kGridRingThreads, 1, kGridRingSlots * kGridRingPitch<E>,
                      true};
      launch("softmax_grid_ring", softmax_grid_ring<E, kLog>, grid, stream_of(context), plain_rows(p), plan);
    };
    if (p.op == Op::log_softmax) {
      run_kind.template operator()<true>();
    } else {
      run_kind.template operator()<false>();
    }
  });
}

}  // namespace

const RowKernel softmax_grid_ring_kernel{"softmax_grid_ring", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
