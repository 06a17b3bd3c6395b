// softmax_ring: what it takes, and how it is launched.
#include "cuda/softmax_ring.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kSlack = 3;
/// Slots beyond the fewest, for tiles on their way; and bytes from a tile's end to the next slot: on lines of 128, as
/// long as there is room, or the least. All measured.
constexpr int kSpare = 6, kBeside = 128, kLeastBeside = 32;

/// Elements of a row.
constexpr std::int64_t kLongest = 256 * lift::kChunk;

constexpr int ceil_of(int a, int b) { return (a + b - 1) / b; }

/// Bytes of a block's shared memory that the plan asks for.
template <class E>
constexpr int ring_bytes(const RingPlan& plan) {
  return plan.slots * plan.pitch + plan.boxes * (StayBox::bytes(plan.chunks) + static_cast<int>(sizeof(RingMerged)));
}

/// A ring of as many slots as there is room for, for blocks of which `plan.blocks` share a row; false if they do not
/// hold it. What must hold, T being a block's tiles of a row:
/// slots >= T + slack + workers, so that a warp that folds a tile has looked for one as late itself, and is done where
/// there is none.
/// boxes: who sends a row's mail has written what was in its slot before, `slots` earlier, so all blocks have folded
/// that one's row; and a block that has folded a row has written all but the last T + slack + workers tiles of it.
/// first_steps: before the first row is merged, no tile is fetched that is `slots` behind its first.
template <class E>
constexpr bool fits(RingPlan& plan, int shared_bytes, int spare) {
  const int fewest = plan.tiles / plan.blocks, needed = ceil_of(plan.tiles, plan.blocks) + plan.slack + kRingWorkers;
  const int room = shared_bytes - whole_lines(static_cast<int>(sizeof(RingShared)));
  for (plan.slots = fewest > 0 ? kRingSlots : 0; plan.slots >= needed + spare; --plan.slots) {
    plan.boxes = ceil_of(plan.slots, fewest) + ceil_of(kRingWorkers + plan.slack, fewest) + 1;
    plan.first_steps = ceil_of(plan.slots, fewest);
    if (plan.boxes <= kRingBoxes && ring_bytes<E>(plan) <= room) return true;
  }
  return false;
}

/// The fewest blocks, of 2, 4 and 8 (others leave processors idle), whose rings hold a row of n; 0 if none do. Float32
/// is faster by more blocks where few slots would be left for tiles on their way; in 16 bit the warp that merges is
/// then too slow.
template <class E>
constexpr RingPlan plan_of(std::int64_t n, int shared_bytes) {
  RingPlan plan{};
  plan.chunks = static_cast<int>(lift::chunk_count(n));
  plan.tiles = ceil_of(plan.chunks, RingTile<E, true>::kChunks);
  plan.slack = kSlack;
  for (const int beside : {kBeside, kLeastBeside}) {
    plan.pitch = RingTile<E, true>::kBytes + beside;
    for (const int blocks : {2, 4, 8}) {
      plan.blocks = blocks;
      const bool spares = sizeof(E) == 4 && beside == kBeside;
      if (fits<E>(plan, shared_bytes, spares ? kSpare : 0)) return plan;
    }
  }
  plan.blocks = 0;
  return plan;
}

/// As much as a block of Hopper's can have.
constexpr int kHopperBytes = 227 * 1024;
template <class E>
constexpr bool holds_every_row() {
  for (std::int64_t n = 25 * lift::kChunk; n <= kLongest; n += lift::kChunk)
    if (plan_of<E>(n, kHopperBytes).blocks == 0) return false;
  return true;
}
static_assert(holds_every_row<float>() && holds_every_row<fold::BFloat16>());

/// Measured beside the other kernels; below so many bytes beginning and end count for more than what is between.
const char* refuses_measured(const RowProblem& p) {
  constexpr std::int64_t k = lift::kChunk, mega = 1 << 20;
  if (p.op != Op::log_softmax) return "softmax is faster by clusters that stay";
  if (p.n <= 32 * k) return "a row is shorter than rings are worth";
  if (p.n > kLongest) return "a row is longer than rings hold well";
  const auto size = static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  const auto between = [&](std::int64_t above, std::int64_t to) { return p.n > above * k && p.n <= to * k; };
  const bool own = size == 4 ? between(104, 240) : between(80, 90) || between(96, 111) || between(160, 232);
  if (!own && clusters_stay_for(p)) return "clusters that stay are faster";
  if (p.rows * p.n * size < (size == 4 ? 128 : 256) * mega) return "fewer bytes than rings are worth";
  return nullptr;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (const char* why = refuses_plain(p)) return why;
  if (const char* why = refuses_measured(p)) return why;
  if (p.rows > 0x7FFFFFFF / 2) return "more rows than rings count";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const int blocks =
      with_element(p[Slot::x].dtype, [&]<class E>() { return plan_of<E>(p.n, traits.shared_bytes).blocks; });
  if (blocks == 0) return "rings of this device do not hold a row";
  if (traits.largest_cluster < blocks) return "the device has no clusters of so many blocks";
  return nullptr;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    RingPlan plan = plan_of<E>(p.n, traits_of(device.device()).shared_bytes);
    const char* const name = "softmax_ring";
    plan.rows = static_cast<int>(p.rows);
    plan.taken = reinterpret_cast<CounterWord*>(scratch.data());
    Grid grid{plan.blocks, kRingThreads, plan.blocks, ring_bytes<E>(plan)};
    plan.clusters = std::min(clusters_at_once(name, softmax_ring<E>, grid), plan.rows);
    grid.blocks *= plan.clusters;
    launch(name, softmax_ring<E>, grid, stream, plain_rows(p), plan);
  });
}

}  // namespace

const RowKernel softmax_ring_kernel{"softmax_ring", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
