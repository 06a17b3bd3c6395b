// How kernels whose clusters stay for many rows are launched.
#pragma once

#include "cuda/launch.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Blocks of a cluster, and warps of a block.
struct StaySpread {
  int blocks, warps;
};

/// Warps that the registers of a processor hold, of kernels that keep 64 of them a lane for elements.
inline constexpr int kStayWarps = 16;

/// Chunks a processor below which it is not worth staying for rows: those of about two rows a cluster.
inline constexpr std::int64_t kFewestStayChunks = 48;

/// Rows that an H100 or H200 holds at once, a cluster each, where a processor holds so many blocks: all blocks of a
/// cluster lie in one of the groups (GPC) that the processors come in.
constexpr int rows_at_once(const StaySpread& s, int held) {
  return 2 * (18 * held / s.blocks) + 6 * (16 * held / s.blocks);
}
/// Processors that these rows take.
constexpr double processors_taken(const StaySpread& s, int held) {
  return static_cast<double>(rows_at_once(s, held) * s.blocks) / held;
}

/// The shape of most worth of all of so many warps; of equals that of the fewest blocks. What does not fit has none;
/// blocks = 0 if nothing does.
template <class Worth>
constexpr StaySpread best_spread(int fewest, int most, const Worth& worth) {
  StaySpread best{};
  double highest = 0;
  for (int blocks = 2; blocks <= 16; ++blocks)
    for (int warps = std::max((fewest + blocks - 1) / blocks, 1); warps <= std::min(most / blocks, kStayWarps);
         ++warps) {
      const double own = worth(StaySpread{blocks, warps});
      if (own > highest) highest = own, best = {blocks, warps};
    }
  return best;
}

/// What a kernel whose warps hold two chunks each asks of the shape of its clusters.
struct SpreadNeeds {
  bool wide, on_vectors;      ///< memory is at its best as for elements of 4 bytes; as for rows of whole vectors
  double instructions;        ///< times that processors full of warps could issue them while memory brings elements
  int warp_bytes = 8 * 1024;  ///< of shared memory; of so little it is never what limits the blocks of a processor
  double one_warp = 0.75;     ///< speed of blocks of a single warp, of that by what else is known
  double each_block = 0.;     ///< of the speed is lost by one more block of a cluster
};

/// The worth of a shape for rows of so many chunks, two to a warp: the fourth power of a speed. Memory is fastest with
/// so much under way to a processor, and loses by more. A warp takes as many instructions for one chunk as for two, and
/// a processor of one block idles while it waits for others, the more of them there are, of two or three a little.
/// Fitted to the times of all shapes, for 20 to 50 lengths each of 33 ways (what is asked, masks, elements, how rows
/// and results lie): on average within 0.1 to 1 percent of the best.
constexpr double spread_worth(const StaySpread& s, std::int64_t chunks, const SpreadNeeds& needs) {
  struct Memory {
    double best, more;  // chunks under way to a processor; lost by one more
  };
  const double full = static_cast<double>(chunks) / (2 * s.blocks * s.warps);
  constexpr Memory kMemory[2][2] = {{{32., 0.033}, {30., 0.004}}, {{20.8, 0.0085}, {18.3, 0.0053}}};
  constexpr double kProcessors = 132, kLess = 0.018, kHalfFull = 0.12, kIssued[] = {0.47, 0.805, 0.925, 1.};
  constexpr std::int64_t kSharedBytes = 227 * 1024, kOfBlock = 1024, kOfChunk = 18;  // about: barriers; mail
  const std::int64_t bytes = s.warps * needs.warp_bytes + chunks * kOfChunk + kOfBlock;
  const int held = std::min(kStayWarps / s.warps, static_cast<int>(kSharedBytes / bytes));
  if (held == 0) return 0.;
  const int rows = rows_at_once(s, held);
  const double taken = processors_taken(s, held) / kProcessors;
  const Memory memory = kMemory[needs.wide ? 1 : 0][needs.on_vectors ? 1 : 0];
  const double far = static_cast<double>(rows * chunks) / kProcessors - memory.best;
  const auto fourth = [](double a) { return a * a * a * a; };
  const double fast = fourth((1. - (far < 0. ? -kLess : memory.more) * far) * (4. + taken) / 5.);
  const double issued =
      fourth(needs.instructions * full * (1. - kHalfFull * (1. - full)) * taken * kIssued[std::min(held, 4) - 1]);
  const double alone = held > 1 ? 1. : std::max(1. - 0.275 * (s.blocks - 2), 0.01);
  // Blocks of two and three warps are a little faster than others where rows are whole vectors.
  const double small = s.warps == 1 ? needs.one_warp : s.warps <= 3 && needs.on_vectors ? 1.02 - 0.006 * s.warps : 1.;
  return fast * issued / (fast + issued) * fourth(alone * small * (1. - needs.each_block * s.blocks));
}
/// Warps that are at least five eighths full, so that there are more chunks than warps.
constexpr StaySpread best_spread(std::int64_t chunks, const SpreadNeeds& needs) {
  const auto all = static_cast<int>(chunks);
  return best_spread((all + 1) / 2, 4 * all / 5, [&](const StaySpread& s) { return spread_worth(s, chunks, needs); });
}
/// A chunk to a warp, bound by memory; the last block's last warps may have none. Of the times of all shapes for 65
/// lengths on average within 0.4 percent of the best, within 2 for each.
constexpr StaySpread most_processors(std::int64_t chunks) {
  const auto all = static_cast<int>(chunks);
  return best_spread(all, all + kStayWarps - 1, [all](const StaySpread& s) {
    const int idle = s.blocks * s.warps - all, held = kStayWarps / s.warps;
    if (idle >= s.warps) return 0.;
    const double full = static_cast<double>(all) / (all + idle);
    return processors_taken(s, held) * (0.7 + 0.3 * full) * (s.warps >= 5 && s.warps <= 8 ? 1.03 : 1.) *
           (held == 1 ? 0.9 : 1.);
  });
}

/// Clusters of a kernel that run at once.
template <class... Parameters>
int clusters_at_once(const char* name, void (*kernel)(Parameters...), const Grid& grid) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
  allow_shared_memory(name, reinterpret_cast<const void*>(kernel));
  const LaunchConfig config(grid, Stream(nullptr), true);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config.of), name);
  return std::max(clusters, 1);
}

/// What clusters take rows by (RowCounter); it may hold anything before.
using CounterWord = unsigned long long;
/// Workspace for it.
inline std::size_t counter_bytes(const RowProblem&, const Context&) { return sizeof(CounterWord); }

/// As many clusters as run at once, or as there are rows; their number is the kernel's last argument. Unless `early`
/// they begin when all before them has ended: while many other blocks still leave, clusters take other places than they
/// would, and fewer of them may find one (measured: twice the time).
template <class Problem>
void launch_to_stay(const char* name, void (*kernel)(Problem, int), const StaySpread& spread, int shared_bytes,
                    std::int64_t rows, Stream stream, const Problem& problem, bool early = false) {
  Grid grid{spread.blocks, spread.warps * 32, spread.blocks, shared_bytes};
  grid.shares_processors = true;
  const auto clusters = std::min<std::int64_t>(clusters_at_once(name, kernel, grid), rows);
  grid.blocks = clusters * spread.blocks;
  launch(name, kernel, grid, Stream(stream.handle, early), problem, static_cast<int>(clusters));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
