// attention on the CPU: tiles of query rows in parallel, and where those are fewer than the threads, their keys too.
#include "cpu/attention_ladder.hpp"
#include "cpu/attention_tiles.hpp"
#include "cpu/parallel.hpp"
#include "front/kernel.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// How an attention is cut. Bits depend on none of it: whatever a tile's rows and whoever computes them, a row's chunks
/// are the same and meet in the same tree.
struct Cut {
  std::int64_t group;      ///< query heads a key head
  std::int64_t rows;       ///< a tile
  std::int64_t row_tiles;  ///< a sequence and key head, of the longest sequence
  std::int64_t items;      ///< row tiles in all
  int node_level = 0;      ///< a task folds nodes of 2^node_level chunks
  std::int64_t nodes = 1;  ///< a row tile, of the longest sequence

  Cut(const AttentionProblem& p, std::int64_t tile_rows, int threads) : group(p.q_heads / p.kv_heads) {
    const auto cut = [&](std::int64_t n) {
      rows = n;
      row_tiles = (group * p.tq + rows - 1) / rows;
      items = p.sequences * p.kv_heads * row_tiles;
    };
    cut(tile_rows);
    if (tile_rows == kAmxTileRows && items < 4 * threads) cut(kTileRows);
    const std::int64_t chunks = std::max<std::int64_t>(1, lift::chunk_count(p.tk)), enough = 4 * threads;
    const std::int64_t wanted = threads <= 1 ? 1 : (enough + items - 1) / std::max<std::int64_t>(1, items);
    while ((std::int64_t{1} << node_level) < chunks && (chunks >> node_level) >= 2 * wanted) ++node_level;
    if (wanted == 1) node_level = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(chunks - 1)));
    nodes = (chunks + (std::int64_t{1} << node_level) - 1) >> node_level;
  }
  /// What a tile's memory is made for.
  int most() const { return static_cast<int>(std::max<std::int64_t>(rows, kTileRows)); }
};

/// The rows that a tile may have.
template <class S, class T>
std::int64_t tile_rows(const AttentionProblem& p) {
  if (p.rung == Rung::tiled) return 1;
  return p.tq > kAmxQueries && TileFold<S, T>::can_use_amx(p) ? kAmxTileRows : kTileRows;
}

/// Calls body(tile, sequence) with the `item`th tile of rows, if its sequence has it.
template <class Body>
void with_tile(const AttentionProblem& p, const Cut& cut, std::int64_t item, const Body& body) {
  const std::int64_t tile = cut.row_tiles - 1 - item % cut.row_tiles;  // of causal ones those that see most come first
  item /= cut.row_tiles;
  const AttentionSequence s(p, item / p.kv_heads);
  const std::int64_t rows = cut.group * s.queries, first = tile * cut.rows;
  if (first >= rows) return;
  body(TileRows{&s, item % p.kv_heads, cut.group, first, static_cast<int>(std::min(cut.rows, rows - first))});
}

template <class S, class T>
void run_whole(const AttentionProblem& p, const Cut& cut, Executor& executor) {
  parallel_for(executor, cut.items, [&](std::int64_t item) {
    with_tile(p, cut, item, [&](const TileRows& rows) {
      Scratch& scratch = thread_scratch();
      TileFold<S, T> fold(p, rows, cut.most(), scratch, cut.node_level);
      const int stride = fold.stride_of(p);
      const auto state = StatePool<T>::laid_out(
          scratch.get<T>(Scratch::attention_state, StatePool<T>::size(cut.most(), stride)), cut.most());
      fold.fold(0, chunks_of(*rows.sequence), state);
      write_rows(p, rows, state, stride);
    });
  });
}

/// Few tiles and many keys: every node of the tree is a task, and what they left is merged tile by tile.
template <class S, class T>
void run_split(const AttentionProblem& p, const Cut& cut, Executor& executor) {
  using Pool = StatePool<T>;
  const int stride = TileFold<S, T>::stride_of(p);
  const std::size_t size = Pool::size(cut.most(), stride), count = static_cast<std::size_t>(cut.items * cut.nodes);
  const Scratch::Held<T> states(thread_scratch(), Scratch::attention_state, size * count);
  const auto state = [&](std::int64_t item, std::int64_t node) {
    return Pool::laid_out(states.data() + static_cast<std::size_t>(item * cut.nodes + node) * size, cut.most());
  };
  parallel_for(executor, cut.items * cut.nodes, [&](std::int64_t task) {
    const std::int64_t item = task / cut.nodes, node = task % cut.nodes;
    with_tile(p, cut, item, [&](const TileRows& rows) {
      TileFold<S, T> fold(p, rows, cut.most(), thread_scratch(), cut.node_level);
      const std::int64_t chunks = chunks_of(*rows.sequence), from = std::min(chunks, node << cut.node_level);
      fold.fold(from, std::min(chunks, (node + 1) << cut.node_level), state(item, node));
    });
  });
  parallel_for(executor, cut.items, [&](std::int64_t item) {
    with_tile(p, cut, item, [&](const TileRows& rows) {
      const auto& ops = tile_ops<T>();
      const std::int64_t chunks = chunks_of(*rows.sequence), unit = std::int64_t{1} << cut.node_level;
      for (std::int64_t n = (chunks + unit - 1) / unit, step = 1; step < n; step *= 2)
        for (std::int64_t i = 0; i + step < n; i += 2 * step)
          ops.merge(rows.count, stride, state(item, i), state(item, i + step));
      write_rows(p, rows, state(item, 0), stride);
    });
  });
}

template <class S>
void run_as(const AttentionProblem& p, const Context& context) {
  using T = fold::FoldType<S>;
  Executor& executor = executor_of(context);
  const Cut cut(p, tile_rows<S, T>(p), executor.concurrency());
  if (cut.nodes == 1) return run_whole<S, T>(p, cut, executor);
  run_split<S, T>(p, cut, executor);
}

void run(const AttentionProblem& p, const Context& context) {
  with_dtype(p.q.dtype, [&]<class S>(S) { run_as<S>(p, context); });
}

const char* tiles_refuse(const AttentionProblem& p, const Context&) { return refuses_rung(p.rung, Rung::fused); }
const char* rows_refuse(const AttentionProblem& p, const Context&) {
  return p.rung == Rung::tiled ? nullptr : "a rung of the ladder: only when asked for";
}

constexpr Kernel<AttentionProblem> kAttentionKernels[] = {
    {"attention_fused", tiles_refuse, run, nullptr},
    {"attention_tiled", rows_refuse, run, nullptr},
    {"attention_online", online_refuses, run_attention_ladder, nullptr},
    {"attention_merged", merged_refuses, run_attention_ladder, nullptr},
    {"attention_safe", safe_refuses, run_attention_ladder, nullptr},
    {"attention_naive", naive_refuses, run_attention_ladder, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<AttentionProblem>> cpu_attention_kernels() { return cpu::kAttentionKernels; }

}  // namespace v0
}  // namespace softfold
