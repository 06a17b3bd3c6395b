// Long rows of plain problems: one read while a grid holds them on chip, else two.
#pragma once

#include "cuda/fold_runs.cuh"
#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/parked_results.cuh"
#include "cuda/row_results.cuh"
#include "cuda/softmax_plain.cuh"
#include "softfold/lift/grid.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGridWarps = 8;
/// Rows of one group whose nodes may be in use at a time: a block sends a row's node while another still reads those of
/// two rows before, so a set of nodes may be written again four rows later.
inline constexpr int kRowsInFlight = 4;

/// How the blocks of a cooperative grid share the rows: `groups` groups of `blocks` blocks, a row a group at a time.
struct GridShare {
  fold::LogSumExp<float>::State* nodes;  ///< [groups][kRowsInFlight][blocks]
  unsigned* arrived;                     ///< [rows], zero
  int groups, blocks;
};

/// Bytes of a warp's terms that wait in shared memory for their row's state, in the registers' layout.
inline constexpr int kWaitingBytes = lift::kChunk * 4;

/// What a warp must remember of a chunk until its row's state is known.
struct Pending {
  double m;
  float unit;
  bool dense;
};

/// The results of a chunk whose terms (for log_softmax, elements) have waited at `waiting`, a vector at a time: the
/// registers hold the next row already.
template <class E, bool kLog>
__device__ __forceinline__ void write_waiting(const PlainRows& p, const lift::Factor& factor,
                                              const fold::LogSumExp<float>::State& row, const Pending& chunk,
                                              const float4* waiting, char* y, const char* first, int n, int lane) {
  using Elements = Tile<E, 32>;
  const fold::Normaliser<float> norm(row);
  if (!norm.regular) {
    fill<E, kLog>(y, nullptr, 0, lane, 32, n, n, constant_of<kLog>(row, p.empty));
    return;
  }
  const Elements tile(first);
  const float multiplier = fold::Scalar<float>::mul(norm.multiplier(chunk.m), chunk.unit);
  fold::LogNormaliser<float> log_norm(row, p.scale);
  log_norm.set_c(factor.c);
  const bool dense = chunk.dense && multiplier >= 0x1p-60F;
#pragma unroll
  for (int j = 0; j < Elements::kVectors; ++j) {
    float v[Elements::kWidth];
#pragma unroll
    for (int q = 0; q < Elements::kWidth / 4; ++q) {
      const float4 f = waiting[(j * (Elements::kWidth / 4) + q) * 32];
      v[4 * q] = f.x, v[4 * q + 1] = f.y, v[4 * q + 2] = f.z, v[4 * q + 3] = f.w;
    }
#pragma unroll
    for (int k = 0; k < Elements::kWidth; ++k) {
      if constexpr (kLog) {
        v[k] = log_norm.log_probability(v[k]);
      } else {
        v[k] = fold::Scalar<float>::mul(v[k], multiplier);
        if (!dense && v[k] < fold::Real<float>::kSmallest) v[k] = 0.F;
      }
    }
    tile.store_vector(y, n, j, v);
  }
}

/// A group of blocks a row, one chunk a warp. A row's results are written one step after its states were sent out, so
/// that the exchange and the next row's arrival and fold hide each other.
template <class E, bool kLog>
__global__ void __launch_bounds__(kGridWarps * 32, 3)
    softmax_grid_row(const __grid_constant__ PlainRows p, const __grid_constant__ GridShare share) {
  begin_in_order();
  using Place = Landing<E, 32>;
  using Fold = lift::WarpFold<Place::kWidth>;
  using State = fold::LogSumExp<float>::State;
  extern __shared__ __align__(16) char memory[];
  __shared__ State chunk_states[kGridWarps], row_state;
  __shared__ CopyBarrier barriers[kGridWarps];
  const int group = static_cast<int>(blockIdx.x) / share.blocks, block = static_cast<int>(blockIdx.x) % share.blocks;
  if (group >= share.groups) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t begin = (static_cast<std::int64_t>(block) * kGridWarps + warp) * lift::kChunk;
  const int n = static_cast<int>(clamp(p.n - begin, lift::kChunk));
  const int chunks = static_cast<int>(clamp(lift::chunk_count(p.n) - block * kGridWarps, kGridWarps));
  char* place = memory + kGridWarps * kWaitingBytes + warp * Place::kBytes;
  float4* waiting = reinterpret_cast<float4*>(memory + warp * kWaitingBytes) + lane;
  CopyBarrier& barrier = barriers[warp];
  const lift::Factor& factor = p.factor;
  const char* x = p.x + begin * Place::kSize;
  char* y = p.y + begin * Place::kSize;
  const auto fetch = [&](std::int64_t row) {
    if (lane != 0 || n == 0 || row >= p.rows) return;
    const char* first = x + row * p.x_stride;
    Place(place, first, n).fetch(barrier, first, p);
  };
  const auto exchange = [&](std::int64_t row, int step) {
    return lift::GridExchange{share.nodes + (group * kRowsInFlight + step % kRowsInFlight) * share.blocks,
                              share.arrived + row, share.blocks};
  };
  if (lane == 0) {
    barrier.init(1);
    CopyBarrier::publish();
  }
  __syncwarp();
  fetch(group);
  Pending before{0., 1.F, false};
  int step = 0;
  for (std::int64_t row = group; row - share.groups < p.rows; row += share.groups, ++step) {
    float v[lift::kPerLane];
    Pending now{0., 1.F, false};
    if (row < p.rows && n > 0) {
      const char* first = x + row * p.x_stride;
      barrier.wait(static_cast<unsigned>(step) & 1U);
      const auto extremes = Place(place, first, n).read(v, first, factor, p);
      __syncwarp();
      fetch(row + share.groups);
      const auto own = kLog ? Fold::reduce(v, factor.c, extremes) : Fold::terms(v, factor.c, extremes);
      if (lane == 0) chunk_states[warp] = own.state;
      now = {own.state.m, own.unit, own.dense};
    }
    __syncthreads();
    const std::int64_t last = row - share.groups;
    if (warp == 0 && row < p.rows) {
      const auto node = lift::merge_states([&](int i) { return chunk_states[i]; }, chunks);
      lift::GridFold::send(exchange(row, step), node, block);
    } else if (warp == 1 && last >= 0) {
      const auto whole = lift::GridFold::receive(exchange(last, step - 1));
      if (lane == 0) row_state = whole;
    }
    __syncthreads();
    if (last >= 0 && n > 0) {
      const auto whole = row_state;
      write_waiting<E, kLog>(p, factor, whole, before, waiting, y + last * p.y_stride, x + last * p.x_stride, n, lane);
    }
    if (row < p.rows) {
#pragma unroll
      for (int q = 0; q < lift::kPerLane / 4; ++q)
        waiting[q * 32] = make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
    }
    before = now;
  }
}

/// A chunk of a plain problem by its index, a warp a chunk.
template <class E>
struct ChunkOf {
  std::int64_t row;
  const char* first;
  std::int64_t begin;
  int n;
  __device__ __forceinline__ ChunkOf(const PlainRows& p, std::int64_t item, std::int64_t chunks)
      : row(chunks == 1 ? item : quotient(item, chunks)),
        begin((item - row * chunks) * lift::kChunk),
        n(static_cast<int>(clamp(p.n - begin, lift::kChunk))) {
    first = p.x + row * p.x_stride + begin * static_cast<std::int64_t>(sizeof(E));
  }
};

/// Chunks to states, at reading speed.
template <class E>
__global__ void __launch_bounds__(256, 4)
    fold_tiles(const __grid_constant__ PlainRows p, std::int64_t chunks, fold::LogSumExp<float>::State* states) {
  begin_in_order();
  using Place = Landing<E, 32>;
  extern __shared__ __align__(16) char memory[];
  __shared__ CopyBarrier barriers[8];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * 8 + warp;
  if (item >= p.rows * chunks) return;
  const ChunkOf<E> chunk(p, item, chunks);
  const Place landing(memory + warp * Place::kBytes, chunk.first, chunk.n);
  if (lane == 0) {
    barriers[warp].init(1);
    CopyBarrier::publish();
    landing.fetch(barriers[warp], chunk.first, p);
  }
  __syncwarp();
  float v[lift::kPerLane];
  barriers[warp].wait(0);
  const auto extremes = landing.read(v, chunk.first, p.factor, p);
  const auto folded = lift::WarpFold<Place::kWidth>::terms(v, p.factor.c, extremes);
  if (lane == 0) states[item] = folded.state;
}

/// Who merges a row's nodes: a thread (merges_by_threads), a warp up to RowNodes::kWarpNodes of them, or a block.
enum class Merges { by_threads, by_warps, by_blocks };

/// From rows' nodes to their results.
template <Merges kHow>
__global__ void __launch_bounds__(kHow == Merges::by_blocks ? RowNodes::kMost / RowNodes::kWarpNodes * 32 : 128)
    write_merged_results(const __grid_constant__ RowResults to, std::int64_t rows, const RowNodes nodes) {
  begin_in_order();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = kHow == Merges::by_threads ? thread : kHow == Merges::by_warps ? thread / 32 : blockIdx.x;
  if (row >= rows) return;
  if constexpr (kHow == Merges::by_threads) {
    to.put_state(row, nodes.root_by_thread(row));
  } else {
    const auto root = kHow == Merges::by_warps ? nodes.root_by_warp(row) : nodes.root_by_block(row);
    if (threadIdx.x % (kHow == Merges::by_warps ? 32U : blockDim.x) == 0) to.put_state(row, root);
  }
}

/// The second read: every element's term again, in its row's frame. O: as of softmax_cluster_row.
template <class E, class O_, bool kLog>
__global__ void __launch_bounds__(256, 4)
    write_tiles(const __grid_constant__ PlainRows p, std::int64_t chunks, const fold::LogSumExp<float>::State* rows) {
  begin_in_order();
  constexpr bool kParks = !std::is_void_v<O_>;
  using O = std::conditional_t<kParks, O_, E>;
  using Place = Landing<E, 32>;
  extern __shared__ __align__(16) char memory[];
  __shared__ CopyBarrier barriers[8];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // From the end: what the first read has left in the L2 cache is the row's end.
  const std::int64_t item = p.rows * chunks - 1 - (static_cast<std::int64_t>(blockIdx.x) * 8 + warp);
  if (item < 0) return;
  const ChunkOf<E> chunk(p, item, chunks);
  const Place landing(memory + warp * Place::kBytes, chunk.first, chunk.n);
  if (lane == 0) {
    barriers[warp].init(1);
    CopyBarrier::publish();
    landing.fetch(barriers[warp], chunk.first, p);
  }
  __syncwarp();
  const lift::Factor& factor = p.factor;
  const auto row = rows[chunk.row];
  const fold::Normaliser<float> norm(row);
  float v[lift::kPerLane];
  barriers[warp].wait(0);
  landing.read(v, chunk.first, factor, p);
  char* y = p.y + chunk.row * p.y_stride + chunk.begin * static_cast<int>(sizeof(O));
  if (!norm.regular) {
    fill<O, kLog>(y, nullptr, 0, lane, 32, chunk.n, chunk.n, constant_of<kLog>(row, p.empty));
    return;
  }
  float unit = 1.F;
  if constexpr (!kLog) unit = terms_in_frame(v, factor.c, row.m);
  finish<kLog>(v, false, factor, fold::Scalar<float>::mul(norm.reciprocal, unit), row, p.scale);
  if constexpr (!kParks) {
    landing.store(y, v);
  } else {
    const ParkedRun<O> results{memory + 8 * Place::kBytes + warp * ParkedRun<O>::bytes(lift::kChunk), y};
    results.template park<false>(landing.tile, 0, chunk.n, v);
    results.send(chunk.n, lane, 32);
  }
  Place::drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
