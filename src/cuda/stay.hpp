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

/// The fewest blocks, two or more, whose warps have a place for every chunk, `of_warp` to a warp.
constexpr StaySpread fewest_blocks(std::int64_t chunks, int of_warp) {
  const std::int64_t most = of_warp * kStayWarps, blocks = std::max<std::int64_t>((chunks + most - 1) / most, 2);
  return {static_cast<int>(blocks), static_cast<int>((chunks + of_warp * blocks - 1) / (of_warp * blocks))};
}

/// Rows that an H100 or H200 holds at once, a cluster each: all of its blocks lie in one of the groups (GPC) that the
/// processors come in.
constexpr int rows_at_once(const StaySpread& s) {
  int rows = 0;
  for (const int processors : {18, 18, 16, 16, 16, 16, 16, 16}) rows += processors * (kStayWarps / s.warps) / s.blocks;
  return rows;
}

/// Processors that these rows take.
constexpr double processors_taken(const StaySpread& s) {
  return static_cast<double>(rows_at_once(s) * s.blocks) / (kStayWarps / s.warps);
}

/// How many warps a block may have.
struct StayWarps {
  int fewest = 4, most = kStayWarps;
};

/// The best of all shapes with a place for every chunk, up to `of_warp` to a warp, and a chunk for every warp: the one
/// of most worth, and of the fewest blocks.
template <class Worth>
constexpr StaySpread best_spread(std::int64_t chunks, int of_warp, const StayWarps& of_block, const Worth& worth) {
  StaySpread best{};
  double most = 0;
  for (int blocks = 2; blocks <= 16; ++blocks)
    for (int warps = of_block.fewest; warps <= of_block.most; ++warps) {
      const StaySpread s{blocks, warps};
      if (blocks * warps > chunks || of_warp * blocks * warps < chunks) continue;
      const double own = worth(s);
      if (own > most) most = own, best = s;
    }
  return best;
}

/// Two chunks to a warp, bound by instructions (16 bit): a warp's cost the same whether it has one chunk or two. Blocks
/// of up to 8 warps, so that one row's compute while another's wait; 6 and 7 leave places free. Within 6 percent of the
/// best of all shapes, measured for 41 lengths; on average within 1. Of long rows blocks of 4 are as good as others for
/// softmax, and 1 to 2 percent better for gradients beside a loss, for which they are so from 32 chunks on.
/// fewest_warps: of a block; fewer than 4 are for short rows, and blocks of one are slower by a tenth or more.
constexpr StaySpread fewest_instructions(std::int64_t chunks, std::int64_t long_chunks = 64, int fewest_warps = 4) {
  return best_spread(chunks, 2, {fewest_warps, 8}, [chunks, long_chunks](const StaySpread& s) {
    const double worth = processors_taken(s) / (s.blocks * s.warps);
    const double size = s.warps == 6 || s.warps == 7            ? 0.9375
                        : s.warps == 4 && chunks >= long_chunks ? 1.01
                        : s.warps == 1                          ? 0.86
                                                                : 1.;
    return worth * size;
  });
}
/// What float32 rows want of a shape, by what is asked of them and how they lie.
struct UnderWay {
  double best;          ///< chunks under way to a processor, of which memory is fastest
  double more;          ///< of its speed is lost by one more
  double instructions;  ///< times that a processor whose warps are full could issue them while memory brings them

  static constexpr UnderWay of(bool log, bool masked, bool on_vectors) {
    constexpr UnderWay kAll[2][2][2] = {{{{19.6, 0.0086, 2.8}, {14.7, 0.0197, 4.8}},    // softmax: anywhere, on vectors
                                         {{20.2, 0.0147, 2.2}, {14.9, 0.0226, 2.4}}},   // masked
                                        {{{20.7, 0.0051, 4.5}, {15.6, 0.0223, 1.9}},    // log_softmax
                                         {{21.3, 0.0033, 2.5}, {16.3, 0.0152, 2.1}}}};  // masked
    return kAll[log ? 1 : 0][masked ? 1 : 0][on_vectors ? 1 : 0];
  }
};
/// Two chunks to a warp, bound by memory, and by instructions where warps are few or half empty. A block that is alone
/// on its processor idles while it waits for others. Fitted to the times of all shapes for 38 lengths, in all eight
/// ways: on average within 0.4 percent of the best, within 2 for each.
constexpr StaySpread best_under_way(std::int64_t chunks, const UnderWay& of) {
  constexpr double kProcessors = 132, kLess = 0.034, kBusyWarps = 11.7, kLeastFull = 0.625;
  return best_spread(chunks, 2, {2, kStayWarps}, [&of, chunks](const StaySpread& s) {
    const double full = static_cast<double>(chunks) / (2 * s.blocks * s.warps);
    if (full < kLeastFull) return 0.;
    const int rows = rows_at_once(s);
    const double taken = static_cast<double>(rows * s.blocks) / (kStayWarps / s.warps) / kProcessors;
    const double far = static_cast<double>(rows * chunks) / kProcessors - of.best;
    const double memory = (1. - (far < 0. ? -kLess : of.more) * far) * (3. + taken) / 4.;
    const double busy = std::min(taken, rows * s.blocks * s.warps / (kProcessors * kBusyWarps));
    const auto fourth = [](double a) { return a * a * a * a; };
    const double fast = fourth(memory), issued = fourth(of.instructions * full * busy);
    return fast * issued / (fast + issued) * (s.warps > kStayWarps / 2 ? 0.988 - 0.135 * (s.blocks - 2) : 1.);
  });
}
/// A chunk to a warp, bound by memory; blocks = 0 if none fits. Within 2 percent of the best, of 30 lengths.
constexpr StaySpread most_processors(std::int64_t chunks) {
  return best_spread(chunks, 1, {}, [](const StaySpread& s) {
    return processors_taken(s) * (s.warps >= 6 && s.warps <= 8 ? 1.03 : 1.);
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
