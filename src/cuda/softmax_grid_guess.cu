// softmax_grid_guesses: what it takes, and how it is launched.
#include "cuda/softmax_grid_guess.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

bool is_wide(const RowProblem& p) { return size_of(p[Slot::x].dtype) == 4; }

/// How a processor holds rows and their terms, as much of them as its shared memory has room for.
struct GroupShape {
  int warps, blocks;  ///< of a block, of a processor
  bool tight = false;

  constexpr std::int64_t most_chunks(int processors) const { return std::int64_t{2} * warps * blocks * processors; }
};
/// Measured: of 16 bit two blocks to a processor, which then may have rows of different groups, unless a row takes more
/// than half of the device.
constexpr GroupShape kWide{12, 1}, kWidest{14, 1, true}, kHalves{8, 2}, kWhole{16, 1};
constexpr GroupShape shape_of(bool wide, std::int64_t chunks, int processors) {
  if (wide) return chunks <= kWide.most_chunks(processors) ? kWide : kWidest;
  return chunks <= 2048 ? kHalves : kWhole;
}
GroupShape shape_of(const RowProblem& p, const DeviceTraits& device) {
  return shape_of(is_wide(p), lift::chunk_count(p.n), device.processors);
}
constexpr int kMostChunks = 4096;
/// The kernel for rows of so many chunks: kChunks of softmax_grid_guesses.
constexpr int instance_of(std::int64_t chunks, bool tight) {
  return tight || chunks > 2048 ? kMostChunks : chunks > 1024 ? 2048 : 1024;
}
constexpr int kTightRun = run_warps(true, kMostChunks, true);
static_assert(kMostChunks <= GroupLooks<kTightRun>::kMostRuns * 2 * kTightRun);
static_assert((kWide.warps | kHalves.warps | kWhole.warps) % 4 == 0 && kWidest.warps % kTightRun == 0);
/// What a block may have of a processor's 228 KB; all of its blocks have as much together (the launch checks it).
constexpr int kSharedBytes = 227 * 1024;
/// Measured: which rows clusters take as fast or faster. Those of 16 bit that are a little longer than 256 chunks have
/// one block of few warps a processor there (H200: 0.59 to 0.66 of a copy, here 0.77; on an H100 only to 290 chunks).
constexpr bool clusters_take(std::int64_t chunks, bool wide) {
  return chunks <= 256 || (chunks <= 512 && (wide || chunks > 340));
}
/// Rows a group below which it is not worth staying: the first and the last one are alone.
constexpr std::int64_t kFewestRows = 4;

/// As many groups as run at once, which share all processors; without the call's memory.
GroupRows share_rows(const RowProblem& p, const DeviceTraits& device) {
  GroupRows rows{plain_rows(p)};
  const GroupShape shape = shape_of(p, device);
  const std::int64_t chunks = lift::chunk_count(p.n);
  const int warps = run_warps(is_wide(p), instance_of(chunks, shape.tight), shape.tight);
  rows.runs = static_cast<int>(ceil_div(chunks, 2 * warps));
  const auto fewest = static_cast<int>(ceil_div(rows.runs, shape.warps / warps));
  const int all = device.processors * shape.blocks;
  rows.groups = all / fewest;
  rows.blocks = std::min(all / rows.groups, rows.runs);
  rows.word_pitch = (rows.runs + 1) / 2 * 2;
  return rows;
}

/// How much memory a call takes, and how much of it, from its beginning, is to be 0.
struct Needs {
  std::size_t zeros, bytes;
};
Needs lay_out(GroupRows& rows, char* memory) {
  Parts parts(memory);
  rows.words = parts.take<std::uint64_t>(static_cast<std::int64_t>(rows.groups) * GroupRows::kPlaces * rows.word_pitch);
  rows.arrived = parts.take<unsigned>(rows.rows);
  const std::size_t zeros = parts.used();
  rows.nodes = parts.take<GroupRows::State>(static_cast<std::int64_t>(rows.groups) * 2 * rows.runs);
  return {zeros, parts.used()};
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  if (p.op != Op::softmax) return "log_softmax wants each row's largest element, which groups do not tell";
  if (clusters_take(lift::chunk_count(p.n), is_wide(p))) return "clusters are as fast";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  if (!plain_rows(p).joined || p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)) % 16 != 0)
    return "rows begin or end inside vectors";
  const DeviceTraits& device = traits_of(DeviceOf(p[Slot::x].data).device());
  if (device.shared_bytes < kSharedBytes) return "blocks of this device have too little shared memory";
  if (const GroupShape shape = shape_of(p, device);
      lift::chunk_count(p.n) > std::min<std::int64_t>(shape.most_chunks(device.processors), kMostChunks))
    return "the device does not hold a row and its terms";
  if (p.rows < kFewestRows * share_rows(p, device).groups) return "too few rows to stay for";
  if (p.rows >= 0x7FFFFFFF / 2) return "more rows than a block counts";
  return nullptr;
}

std::size_t workspace(const RowProblem& p, const Context&) {
  GroupRows rows = share_rows(p, traits_of(DeviceOf(p[Slot::x].data).device()));
  return lay_out(rows, nullptr).bytes;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  GroupRows rows = share_rows(p, traits_of(device.device()));
  const std::size_t zeros = lay_out(rows, scratch.data()).zeros;
  check(cudaMemsetAsync(scratch.data(), 0, zeros, stream_of(context)), "softmax_grid_guesses");
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const GroupShape shape = shape_of(p, traits_of(device.device()));
    const auto go = [&]<int kChunks, bool kTight>() {
      const Grid grid{static_cast<std::int64_t>(rows.groups) * rows.blocks, shape.warps * 32, 1,
                      shape.warps * GuessShape<E, kGroupForm<kChunks, kTight>>::kWarpBytes, true};
      const typename GuessPart<E, kGroupForm<kChunks, kTight>>::Problem problem{rows};
      launch("softmax_grid_guesses", softmax_grid_guesses<E, kChunks, kTight>, grid, stream_of(context), problem);
    };
    if constexpr (sizeof(E) == 4)
      if (shape.tight) return go.template operator()<kMostChunks, true>();
    switch (instance_of(lift::chunk_count(p.n), false)) {
      case 1024: return go.template operator()<1024, false>();
      case 2048: return go.template operator()<2048, false>();
      default: go.template operator()<kMostChunks, false>();
    }
  });
}

}  // namespace

const RowKernel softmax_grid_guesses_kernel{"softmax_grid_guesses", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
