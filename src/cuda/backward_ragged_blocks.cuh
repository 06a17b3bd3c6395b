// Gradients of ragged rows of several chunks, a chunk a warp: y and dy wait in registers for their row's sum, while the
// warp's next chunk arrives in shared memory. Rows with no more chunks than a block has warps follow one another
// without gaps; a longer one has the block to itself, which reads what registers do not hold once more.
#pragma once

#include "cuda/backward_ragged.cuh"
#include "cuda/lane_sums.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A chunk of a row.
struct GradientChunk {
  std::int64_t first;  ///< its first element in x
  int n = 0;           ///< elements; 0: there is no such chunk
  int index, count;    ///< among the row's chunks, and how many these are
  int number;          ///< of the row among those that the block has

  __device__ __forceinline__ GradientChunk() {}
  __device__ __forceinline__ GradientChunk(const RaggedRow& r, int index_, int count_ = 0, int number_ = 0)
      : first(r.begin + std::int64_t{index_} * lift::kChunk),
        n(static_cast<int>(min(r.n - std::int64_t{index_} * lift::kChunk, std::int64_t{lift::kChunk}))),
        index(index_),
        count(count_),
        number(number_) {}
};

/// A warp's way: its next chunk is on its way to shared memory while it has one in registers.
template <class E, template <class> class Gradient>
struct GradientWarp {
  static constexpr int kVectors = lift::kPerLane * static_cast<int>(sizeof(E)) / 16;
  using Tile = OddTile<E, 32, kVectors, 0>;
  using Vectors = GradientVectors<E, Gradient, 32, kVectors>;
  using Place = GradientPlace<E>;
  using Part = WarpPart<E, 32, lift::kPerLane>;

  const RaggedGradient<E>& of;
  CopyBarrier& landed;
  char* memory;
  unsigned parity = 0;
  int waited = 0;  ///< WarpPart::loaded() of what was taken last
  typename Vectors::Vectors y, dy;

  /// rooms: of all warps of the block. By all lanes; `landed_` is the warp's own.
  __device__ __forceinline__ GradientWarp(const RaggedGradient<E>& of_, CopyBarrier& landed_, char* rooms)
      : of(of_), landed(landed_), memory(rooms + threadIdx.x / 32 * Place::kBytes) {
    if (threadIdx.x % 32 == 0) landed.init(1);
    CopyBarrier::publish();
    __syncwarp();
  }
  /// Once all lanes have taken what was there.
  __device__ __forceinline__ void fetch(const GradientChunk& chunk) const {
    __syncwarp();
    const std::int64_t first = chunk.first + waited;
    if (chunk.n > 0 && threadIdx.x % 32 == 0) Place(of, memory, first).fetch(of, landed, first, chunk.n);
    __syncwarp();
  }
  /// What fetch() has brought.
  __device__ __forceinline__ void take(const GradientChunk& chunk) {
    landed.wait(parity);
    parity ^= 1U;
    const Place place(of, memory, chunk.first);
    const Tile tile(place.y(0), chunk.n);
    tile.gather_only(y, place.y(0), Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, place.dy(0), Packed<E>::narrow(-0.F));
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    waited = Part::loaded(y) | Part::loaded(dy);
  }
  __device__ __forceinline__ lift::SumNode sum() {
    lift::SumNode own = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    own.any = __any_sync(lift::kWholeWarp, own.any != 0) ? 1U : 0U;
    return own;
  }
  __device__ __forceinline__ void write(const GradientChunk& chunk, const lift::SumNode& row) {
    const Gradient<float> through{row.sum, static_cast<float>(of.p.scale)};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) y[j] = Vectors::result(through, row.any != 0, y[j], dy[j]);
    char* dx = of.dx(chunk.first);
    Tile(dx, chunk.n).write_vectors(dx, [&](int j) { return y[j]; });
  }
};

/// The sums of rows whose chunks the warps of a block have at the same time: of two pages of rows. A warp goes to the
/// next page but one when all have left the one before.
struct HeldRows {
  static constexpr int kPage = 32, kRows = 2 * kPage;
  CopyBarrier whole[kRows], left[2];
  lift::SumNode sums[kRows][kHeldWarps];

  __device__ __forceinline__ void init() {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += static_cast<int>(blockDim.x)) whole[i].init(kHeldWarps);
    if (threadIdx.x < 2) left[threadIdx.x].init(kHeldWarps);
  }
  /// By a warp that has done with `page`, or has nothing of it, and with all before. Returns the next one.
  __device__ __forceinline__ int leave(int page) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) left[page % 2].arrive();
    if (page > 0) left[(page - 1) % 2].wait(static_cast<unsigned>(page - 1) / 2 % 2);
    return page + 1;
  }
  /// The row's sum, by all lanes of the warps that have its chunks.
  __device__ __forceinline__ lift::SumNode sum(const GradientChunk& chunk, const lift::SumNode& own) {
    const int place = chunk.number % kRows;
    if (threadIdx.x % 32 == 0) {
      sums[place][chunk.index] = own;
      // Of a row's warps the first arrives for those that have none of its chunks.
      whole[place].arrive(chunk.index == 0 ? kHeldWarps + 1 - chunk.count : 1);
    }
    whole[place].wait(static_cast<unsigned>(chunk.number / kRows) % 2);
    return lift::sum_run<1>([&](int i) { return sums[place][i]; }, chunk.count);
  }
};

/// The chunks of the rows that a queue holds for a block, in order, of which a warp takes every kHeldWarps-th. All
/// warps of the block look at them, 32 rows at a time.
class HeldChunks {
 public:
  __device__ __forceinline__ HeldChunks(const RowProblem& p, const GradientQueue& queue)
      : p_(p), queue_(queue), count_(queue.held()), at_(static_cast<int>(threadIdx.x) / 32) {
    turn(0);
  }
  /// How many pages all of them are.
  __device__ __forceinline__ int pages() const {
    const std::int64_t rows = (count_ - blockIdx.x + gridDim.x - 1) / gridDim.x;
    return static_cast<int>(max(rows, std::int64_t{0}) + 31) / 32;
  }
  __device__ __forceinline__ GradientChunk next() {
#pragma unroll 1
    while (true) {
      const int all = __shfl_sync(lift::kWholeWarp, behind_, 31);
      if (at_ < all) break;
      if (entry(page_ + 1, 0) >= count_) return {};
      at_ -= all;
      turn(page_ + 1);
    }
    const int row = __popc(__ballot_sync(lift::kWholeWarp, behind_ <= at_));
    const int before = __shfl_sync(lift::kWholeWarp, behind_ - chunks_, row);
    const RaggedRow r{__shfl_sync(lift::kWholeWarp, static_cast<int>(own_.index), row),
                      __shfl_sync(lift::kWholeWarp, own_.begin, row),
                      __shfl_sync(lift::kWholeWarp, static_cast<int>(own_.n), row)};
    const GradientChunk chunk(r, at_ - before, __shfl_sync(lift::kWholeWarp, chunks_, row), page_ * 32 + row);
    at_ += kHeldWarps;
    return chunk;
  }

 private:
  static __device__ __forceinline__ std::int64_t entry(int page, int lane) {
    return blockIdx.x + std::int64_t{gridDim.x} * (32 * page + lane);
  }
  __device__ __forceinline__ void turn(int page) {
    page_ = page;
    const std::int64_t i = entry(page, static_cast<int>(threadIdx.x) % 32);
    own_ = i < count_ ? ragged_row(p_, queue_.rows[i]) : RaggedRow{0, 0, 0};
    // Where rows overlap, longer ones may stand in the place of these; without chunks HeldRows would not get on.
    own_.n = min(own_.n, std::int64_t{kHeldElements});
    chunks_ = static_cast<int>(lift::chunk_count(own_.n));
    behind_ = sum_up_to(chunks_);
  }

  const RowProblem& p_;
  const GradientQueue& queue_;
  std::int64_t count_;
  int at_;  ///< the warp's next chunk, from the page's first on
  int page_;
  RaggedRow own_;
  int chunks_, behind_;  ///< of the lane's row, and of the rows up to this one
};

/// One that a block has to itself.
struct LongerRow {
  static_assert(kOwnChunks <= 256);  // that sum_some() takes
  lift::SumNode sums[kOwnChunks];
  std::int64_t row;
};

/// Rows that a block has to itself, in turns with other blocks; those of more than kOwnChunks to the list.
template <class E, template <class> class Gradient>
class LongerGradients {
 public:
  __device__ __forceinline__ LongerGradients(const RowProblem& p, const GradientQueue& queue, const GradientList& list,
                                             LongerRow& storage, GradientWarp<E, Gradient>& own)
      : p_(p), queue_(queue), list_(list), storage_(storage), own_(own) {}

  __device__ __forceinline__ void run() {
    RaggedRow r = next();
    own_.fetch(chunk_of(r, warp()));
#pragma unroll 1
    while (r.n > 0) {
      const RaggedRow behind = next();
      const int last = find_sums(r, behind);
      __syncthreads();
      const lift::SumNode row = lift::sum_some([&](int i) { return storage_.sums[i]; }, count_of(r));
      write(r, behind, last, row);
      r = behind;
    }
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int count_of(const RaggedRow& r) {
    return static_cast<int>(lift::chunk_count(r.n));
  }
  /// Nothing of no row.
  static __device__ __forceinline__ GradientChunk chunk_of(const RaggedRow& r, int i) {
    return r.n > 0 ? GradientChunk(r, i) : GradientChunk();
  }
  /// By all threads; n: 0 behind the last.
  __device__ __forceinline__ RaggedRow next() const {
#pragma unroll 1
    while (true) {
      __syncthreads();
      if (threadIdx.x == 0) {
        const unsigned number = atomicAdd(&queue_.counters->taken, 1U);
        storage_.row = number < queue_.longer() ? queue_.longer_row(number) : -1;
      }
      __syncthreads();
      if (storage_.row < 0) return {-1, 0, 0};
      const RaggedRow r = ragged_row(p_, storage_.row);
      if (lift::chunk_count(r.n) <= kHeldWarps) continue;  // of rows that overlap
      if (lift::chunk_count(r.n) <= kOwnChunks) return r;
      list_.append(r.index, r.n);
    }
  }
  /// Leaves the warp's last chunk in registers, and returns which that is; what comes next is on its way.
  __device__ __forceinline__ int find_sums(const RaggedRow& r, const RaggedRow& behind) {
    const int count = count_of(r);
    int at = warp();
#pragma unroll 1
    while (true) {
      own_.take(chunk_of(r, at));
      const bool more = at + kHeldWarps < count;
      fetch(r, behind, more ? at + kHeldWarps : at - kHeldWarps);
      const lift::SumNode sum = own_.sum();
      if (threadIdx.x % 32 == 0) storage_.sums[at] = sum;
      if (!more) return at;
      at += kHeldWarps;
    }
  }
  /// From the warp's last chunk to its first: what the first read has left in the caches is that.
  __device__ __forceinline__ void write(const RaggedRow& r, const RaggedRow& behind, int at, const lift::SumNode& row) {
#pragma unroll 1
    while (true) {
      own_.write(chunk_of(r, at), row);
      at -= kHeldWarps;
      if (at < 0) return;
      own_.take(chunk_of(r, at));
      fetch(r, behind, at - kHeldWarps);
    }
  }
  /// Behind a row's first chunk comes the next row's.
  __device__ __forceinline__ void fetch(const RaggedRow& r, const RaggedRow& behind, int at) const {
    own_.fetch(at >= 0 ? chunk_of(r, at) : chunk_of(behind, warp()));
  }

  const RowProblem& p_;
  const GradientQueue& queue_;
  const GradientList& list_;
  LongerRow& storage_;
  GradientWarp<E, Gradient>& own_;
};

/// What a block shares beside its warps' rooms, and all of its shared memory.
struct HeldBlock {
  CopyBarrier landed[kHeldWarps];
  HeldRows held;
  LongerRow longer;
};
template <class E>
inline constexpr int kHeldBytes = kHeldWarps* GradientPlace<E>::kBytes + static_cast<int>(sizeof(HeldBlock));

template <class E, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kHeldWarps, 1)
    backward_ragged_blocks(const __grid_constant__ RowProblem p, const __grid_constant__ GradientQueue queue,
                           const __grid_constant__ GradientList list) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ HeldBlock block;
  HeldRows& held = block.held;
  const RaggedGradient<E> of{p};
  held.init();
  CopyBarrier::publish();
  __syncthreads();
  GradientWarp<E, Gradient> own(of, block.landed[threadIdx.x / 32], landing_memory);
  LongerGradients<E, Gradient>(p, queue, list, block.longer, own).run();
  HeldChunks chunks(p, queue);
  GradientChunk chunk = chunks.next();
  own.fetch(chunk);
  int page = 0;
#pragma unroll 1
  while (chunk.n > 0) {
    while (page < chunk.number / held.kPage) page = held.leave(page);
    own.take(chunk);
    const GradientChunk next = chunks.next();
    own.fetch(next);
    own.write(chunk, held.sum(chunk, own.sum()));
    chunk = next;
  }
  while (page < chunks.pages()) page = held.leave(page);  // others wait for that
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
