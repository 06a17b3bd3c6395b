// logsumexp and states of rows whose lengths only the device knows (ragged rows, lengths, causal masks), in one read:
// what is there of each row is cut into chunks, as runs on a list that one kernel makes; a second folds them like those
// of plain rows (fold_runs.cuh), and a third merges each row's states.
#pragma once

#include "cuda/fold_runs.cuh"
#include "cuda/lane_sums.cuh"
#include "cuda/ragged_any.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A chunk of a row.
struct alignas(16) ListedRun {
  std::int64_t begin;  ///< bytes from x's data
  unsigned state;      ///< where its state goes
  int n;
};

/// The runs of all rows: full ones, neighbours in a row one behind the other, and others, those of about a length
/// together. A row's states lie one behind the other.
struct RunList {
  using State = fold::LogSumExp<float>::State;
  struct Counters {
    unsigned long long full;  ///< also such as had no room
    unsigned cut, states;
  };
  struct alignas(8) OfRow {
    unsigned first, count;  ///< of its states
  };
  static constexpr unsigned kUnlisted = ~0U;  ///< as the first: the list has no room for the row's runs

  Counters* counters;  ///< 0 before the list is made
  ListedRun *full, *cut;
  OfRow* of_rows;
  State* states;
  unsigned capacity;  ///< of full runs
  unsigned rows;      ///< of x: there are no more others, and with them room for states

  /// One more, for what nobody reads.
  SOFTFOLD_HD std::int64_t state_count() const { return std::int64_t{capacity} + rows + 1; }
};

/// What a block puts on the list: up to kThreads rows, a thread each. Of those that are no full run the lengths that
/// are about the same come together, as a tile of runs takes as long as its longest.
class RunLister {
 public:
  static constexpr int kThreads = 256, kClasses = 16;
  struct Storage {
    std::int64_t begin[kThreads];
    unsigned full_up_to[kThreads], state[kThreads];
    std::uint64_t of_warp[kThreads / 32];
    unsigned of_class[kClasses];
    unsigned full, cut, states;  ///< the block's first
    bool fits;
  };

  __device__ __forceinline__ RunLister(const RowProblem& p, const RunList& list, int rows, Storage& storage)
      : p_(p), list_(list), storage_(storage), row_(std::int64_t{blockIdx.x} * rows + threadIdx.x) {
    has_row_ = static_cast<int>(threadIdx.x) < rows && row_ < p.rows;
    if (has_row_) {
      const Row r = row_at(p, RowPlace(p, row_));
      begin_ = r.x - p[Slot::x].data;
      full_ = r.length / lift::kChunk, rest_ = static_cast<int>(r.length % lift::kChunk);
    }
  }
  __device__ __forceinline__ void run() {
    Storage& s = storage_;
    if (threadIdx.x < kClasses) s.of_class[threadIdx.x] = 0;
    __syncthreads();
    const unsigned of = static_cast<unsigned>(rest_) * kClasses / lift::kChunk;
    unsigned cut = 0;
    if (rest_ > 0) cut = atomicAdd(s.of_class + of, 1U);
    const std::uint64_t up_to = counts_up_to();
    const auto full_up_to = up_to >> kCutBits;
    const auto states_before = static_cast<unsigned>(full_up_to - full_ + (up_to & kCutMask) - (rest_ > 0 ? 1 : 0));
    s.begin[threadIdx.x] = begin_;
    s.full_up_to[threadIdx.x] = static_cast<unsigned>(full_up_to);
    if (threadIdx.x == kThreads - 1) take(full_up_to, static_cast<unsigned>(up_to & kCutMask));
    __syncthreads();
    const unsigned state = s.states + states_before;
    s.state[threadIdx.x] = state;
    if (has_row_)
      list_.of_rows[row_] = {s.fits ? state : RunList::kUnlisted, static_cast<unsigned>(full_) + (rest_ > 0 ? 1U : 0U)};
    if (s.fits && rest_ > 0) {
      for (unsigned i = 0; i < of; ++i) cut += s.of_class[i];
      list_.cut[s.cut + cut] = {begin_ + full_ * lift::kChunk * size(), state + static_cast<unsigned>(full_), rest_};
    }
    __syncthreads();
    if (s.fits) {
      put_full();
    } else {
      put_nothing();
    }
  }

 private:
  static constexpr int kCutBits = 16;  ///< of a count of rows; above it, one of full runs
  static constexpr std::uint64_t kCutMask = (1U << kCutBits) - 1U;

  __device__ __forceinline__ std::int64_t size() const { return p_[Slot::x].axis_stride; }
  /// Full runs and others of the block's rows up to the thread's.
  __device__ __forceinline__ std::uint64_t counts_up_to() const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    std::uint64_t sum = sum_up_to(static_cast<std::uint64_t>(full_) << kCutBits | (rest_ > 0 ? 1U : 0U));
    if (lane == 31) storage_.of_warp[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; ++i) sum += storage_.of_warp[i];
    return sum;
  }
  /// Room on the list. Offsets that lie may make rows overlap, and so more runs than there is room for.
  __device__ __forceinline__ void take(std::uint64_t full, unsigned cut) const {
    const unsigned long long first = atomicAdd(&list_.counters->full, static_cast<unsigned long long>(full));
    storage_.fits = full == 0 || first + full <= list_.capacity;
    storage_.full = static_cast<unsigned>(first < list_.capacity ? first : list_.capacity);
    if (!storage_.fits) return;
    storage_.cut = atomicAdd(&list_.counters->cut, cut);
    storage_.states = atomicAdd(&list_.counters->states, static_cast<unsigned>(full) + cut);
  }
  /// A run a thread, whatever row it is of.
  __device__ __forceinline__ void put_full() const {
    const unsigned all = storage_.full_up_to[kThreads - 1];
#pragma unroll 1
    for (unsigned at = threadIdx.x; at < all; at += kThreads) {
      unsigned row = 0;  // the first whose runs do not all lie before this one
#pragma unroll
      for (unsigned step = kThreads / 2; step > 0; step /= 2)
        if (storage_.full_up_to[row + step - 1] <= at) row += step;
      const unsigned i = at - (row == 0 ? 0U : storage_.full_up_to[row - 1]);
      list_.full[storage_.full + at] = {storage_.begin[row] + i * (lift::kChunk * size()), storage_.state[row] + i,
                                        lift::kChunk};
    }
  }
  /// Where the list ends, places that have been taken, but not all that would be wanted: x's first chunk.
  __device__ __forceinline__ void put_nothing() const {
    const auto none = static_cast<unsigned>(list_.state_count() - 1);
    for (unsigned at = storage_.full + threadIdx.x; at < list_.capacity; at += kThreads)
      list_.full[at] = {0, none, lift::kChunk};
  }

  const RowProblem& p_;
  const RunList& list_;
  Storage& storage_;
  std::int64_t row_, begin_ = 0, full_ = 0;
  int rest_ = 0;
  bool has_row_;
};

__global__ void __launch_bounds__(RunLister::kThreads)
    list_runs(const __grid_constant__ RowProblem p, const __grid_constant__ RunList list, int rows) {
  begin_in_order();
  __shared__ RunLister::Storage storage;
  RunLister(p, list, rows, storage).run();
}

/// A lane's run of a tile.
template <class E, int kLanes>
struct ListedRunOf {
  const char* first;
  unsigned state;
  int n;
  bool exists;  ///< false: the last one, once more

  template <class Tiles>
  __device__ __forceinline__ ListedRunOf(const PlainRows& p, const Tiles& tiles, unsigned tile, unsigned place) {
    const ListedRun run = *tiles.listed(tile, place, exists);
    first = p.x + run.begin, state = run.state, n = run.n;
  }
  __device__ __forceinline__ typename Landing<E, 32>::Span span(const PlainRows& p) const {
    return {first, n, p.x_begin, p.x_end};
  }
};

/// Tiles of the runs on a list that has been made, as RunTiles are of plain rows.
template <class E, int kLanes>
struct ListedTiles {
  template <class, int>
  using Run = ListedRunOf<E, kLanes>;
  static constexpr bool kListed = true, dense = false;

  const RunList& list;
  unsigned full_runs, cut_runs;
  unsigned full, all;  ///< tiles, each with those before
  bool looks_up;

  __device__ __forceinline__ ListedTiles(const RunList& list_, bool looks_up_) : list(list_), looks_up(looks_up_) {
    constexpr unsigned kRuns = Slots<E, kLanes>::kRuns;
    const RunList::Counters counters = *list.counters;
    full_runs = static_cast<unsigned>(min(counters.full, static_cast<unsigned long long>(list.capacity)));
    cut_runs = counters.cut;
    full = (full_runs + kRuns - 1) / kRuns;
    all = full + (cut_runs + kRuns - 1) / kRuns;
  }
  __device__ __forceinline__ const ListedRun* listed(unsigned tile, unsigned place, bool& exists) const {
    const bool is_full = tile < full;
    const unsigned wanted = (tile - (is_full ? 0U : full)) * Slots<E, kLanes>::kRuns + place;
    const unsigned item = min(wanted, (is_full ? full_runs : cut_runs) - 1U);
    exists = item == wanted;
    return (is_full ? list.full : list.cut) + item;
  }
  /// To the L1 cache what a tile's runs are.
  __device__ __forceinline__ void look_ahead(unsigned tile) const {
    bool exists;
    if (tile < all && threadIdx.x % 32 == 0) asm volatile("prefetch.global.L1 [%0];" ::"l"(listed(tile, 0, exists)));
  }
};

template <class E, int kLanes>
__device__ __forceinline__ void put_run(const PlainRows& p, const ListedTiles<E, kLanes>& tiles, const RunList& to,
                                        unsigned tile, const RunList::State& state) {
  const ListedRunOf<E, kLanes> run(p, tiles, tile, threadIdx.x % 32 / kLanes);
  if (run.exists) to.states[run.state] = state;
}

template <class E>
__global__ void __launch_bounds__(kSlotWarps * 32, 1)
    fold_listed_runs(const __grid_constant__ PlainRows p, const __grid_constant__ RunList list, bool looks_up) {
  begin_in_order();
  constexpr int kLanes = 8;
  static_assert(Slots<E, kLanes>::kSlots == lift::kChunk);
  const ListedTiles<E, kLanes> tiles(list, looks_up);
  fold_tiles_of_runs<E, kLanes>(p, tiles, list);
}

/// From the states of a row's chunks to its result: of a few chunks a row a thread, else a warp.
template <class E>
struct ListedRows {
  using F = fold::LogSumExp<float>;
  const RowProblem& p;
  const RunList& list;
  const RowResults& to;

  /// `rows` of them from `first` on; by a warp.
  __device__ __forceinline__ void finish(std::int64_t first, int rows, AnyStorage& any) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t row = first + lane;
    const bool has_row = lane < rows && row < p.rows;
    const RunList::OfRow own = has_row ? list.of_rows[row] : RunList::OfRow{0, 0};
    const bool listed = own.first != RunList::kUnlisted, few = listed && own.count <= kFewNodes;
    F::State state = F::identity();
    if (few)
      state = merge_few<F>([&](int i) { return list.states[own.first + static_cast<unsigned>(i)]; },
                           static_cast<int>(own.count));
    unsigned others = __ballot_sync(lift::kWholeWarp, !few);
#pragma unroll 1
    for (; others != 0; others &= others - 1) {
      const int one = __ffs(static_cast<int>(others)) - 1;
      const bool has_states = __shfl_sync(lift::kWholeWarp, static_cast<int>(listed), one) != 0;
      F::State* states = list.states + __shfl_sync(lift::kWholeWarp, own.first, one);
      const unsigned count = __shfl_sync(lift::kWholeWarp, own.count, one);
      const F::State root = has_states ? root_of(states, count) : any_row<E, RaggedLeaves::row>(p, first + one, any, 1);
      if (lane == one) state = root;
      __syncwarp();
    }
    if (has_row) to.put_state(row, state);
  }

 private:
  /// By a warp, in place: each run of nodes leaves one.
  static __device__ __forceinline__ F::State root_of(F::State* states, unsigned count) {
#pragma unroll 1
    while (count > RowNodes::kMost) {
      unsigned run = 0;
#pragma unroll 1
      for (; run * RowNodes::kMost < count; ++run) {
        const F::State node = root_of_few(states + run * RowNodes::kMost, count - run * RowNodes::kMost);
        __syncwarp();
        if (threadIdx.x % 32 == 0) states[run] = node;
        __syncwarp();
      }
      count = run;
    }
    return root_of_few(states, count);
  }
  static __device__ __noinline__ F::State root_of_few(F::State* states, unsigned count) {
    return RowNodes(states, min(count, unsigned{RowNodes::kMost}), 0).root_by_warp(0);
  }
};

inline constexpr int kFinishWarps = 4;
template <class E>
__global__ void __launch_bounds__(32 * kFinishWarps)
    finish_listed_rows(const __grid_constant__ RowProblem p, const __grid_constant__ RunList list,
                       const __grid_constant__ RowResults to, int rows) {
  begin_in_order();
  __shared__ AnyStorage any[kFinishWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kFinishWarps + warp) * rows;
  ListedRows<E>{p, list, to}.finish(first, rows, any[warp]);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
