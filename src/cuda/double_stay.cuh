// softmax and log_softmax of plain long rows of float64, by clusters that stay for many of them: a row waits in
// registers between its sum and its write, while the next one arrives in shared memory.
#pragma once

#include "cuda/double_elements.cuh"
#include "cuda/double_nodes.cuh"
#include "cuda/in_order.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct DoubleStay {
  RowProblem rows;
  std::int64_t x_stride, y_stride;  ///< bytes between rows
  CounterWord* taken;               ///< RowSource's counter
};

/// n > 0 neighbours of float64, the first of them at `first`, on their way to shared memory and there: whole vectors of
/// 16 bytes by the copy engine, what is left at either end by the copies of a lane.
struct DoubleLanding {
  static constexpr int kBytes = whole_lines(8 * lift::kChunk + 16), kArrivals = 2;  ///< of its barrier

  char* memory;
  const double* first;
  int n;

  __device__ __forceinline__ int head() const { return reinterpret_cast<std::uintptr_t>(first) % 16 != 0 ? 1 : 0; }
  __device__ __forceinline__ double* place() const { return reinterpret_cast<double*>(memory) + head(); }
  /// By one lane.
  __device__ __forceinline__ void fetch(CopyBarrier& landed) const {
    const int begin = head(), whole = (n - begin) / 2 * 2;
    landed.expect(8 * whole);
    fence_for_copy();  // what a lane copied of the row before may lie where the copy engine writes now
    if (whole > 0) landed.copy(place() + begin, first + begin, 8 * whole);
    if (begin != 0) copy_one(place(), first);
    if (begin + whole < n) copy_one(place() + n - 1, first + n - 1);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&landed.word)) : "memory");
  }

 private:
  static __device__ __forceinline__ void copy_one(double* to, const double* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
};

/// The states of one row's chunks. Lanes read runs of up to 8 neighbours: with a gap after every 8 they do not meet in
/// a bank.
struct DoubleBox {
  using State = fold::LogSumExp<double>::State;
  State* states;
  __device__ __forceinline__ State& operator[](int chunk) const { return states[chunk + chunk / 8]; }
  static constexpr SOFTFOLD_HD int bytes(int chunks) { return (chunks + chunks / 8) * static_cast<int>(sizeof(State)); }
};

/// A cluster of blocks a row, a chunk a warp; the last block's last warps may have none: they only wait for the others'
/// end.
template <bool kLog>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_double_stays(const __grid_constant__ DoubleStay p, int clusters) {
  begin_in_order();
  using Lse = fold::LogSumExp<double>;
  using Cluster = lift::Cluster;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ MailTurns mail;
  __shared__ CopyBarrier landed[kStayWarps];
  using Source = RowSource<>;
  __shared__ Source::Queue queue;
  const RowProblem& rows = p.rows;
  const int count = static_cast<int>(rows.rows), chunks = static_cast<int>(lift::chunk_count(rows.n));
  Source source({p.taken, static_cast<unsigned>(count)}, clusters, queue);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ChunkShare share = ChunkShare::one_each(chunks);
  const std::int64_t begin = static_cast<std::int64_t>(share.chunk) * lift::kChunk;
  const int n = static_cast<int>(clamp(rows.n - begin, lift::kChunk));
  const auto x_of = [&](int row) { return rows[Slot::x].data + row * p.x_stride; };
  const auto landing_of = [&](int row) {
    return DoubleLanding{landing_memory + warp * DoubleLanding::kBytes,
                         reinterpret_cast<const double*>(x_of(row)) + begin, n};
  };
  const auto fetch = [&](int row) {
    if (lane == 0 && row < count && share.chunks > 0) landing_of(row).fetch(landed[warp]);
  };
  const auto box_of = [&](int step) {
    char* boxes = landing_memory + warps * DoubleLanding::kBytes;
    return DoubleBox{
        reinterpret_cast<Lse::State*>(boxes + static_cast<int>(mail.place(step)) * DoubleBox::bytes(chunks))};
  };
  const int mail_bytes = chunks * static_cast<int>(sizeof(Lse::State)) + Source::kBytes;
  if (lane == 0) landed[warp].init(DoubleLanding::kArrivals);
  CopyBarrier::publish();
  fetch(source.by_stride(0));
  const RowCounter::Word seen = source.init();
  mail.init();
  CopyBarrier::publish();
  mail.expect(mail_bytes);
  Cluster::arrive_shared();
  source.begin(seen);
  Cluster::wait();
  source.resume();

#pragma unroll 1
  for (int step = 0; share.chunks > 0 && source.row(step) < count; ++step) {
    const int row = source.row(step);
    double scale = rows.scale;
    asm volatile("" : "+d"(scale));  // or what follows from it is found once for all rows, and spilled
    DoubleElements<32, lift::kPerLane> tile(rows, x_of(row), begin);
    landed[warp].wait(static_cast<unsigned>(step) & 1U);
    const int waited = tile.take(landing_of(row).place(), n);
    source.keep();
    __syncwarp();
    fetch(source.row(step + 1) + waited);
    const auto own = tile.template fold<kLog>(RowFactor<double>(scale));
    for (unsigned to = thread_index() % 32; to < Cluster::size(); to += 32)
      send_words(Cluster::map(&box_of(step)[share.chunk], to), Cluster::map(&mail.barrier(step), to),
                 fold::bits_as<std::uint64_t>(own.m), fold::bits_as<std::uint64_t>(own.d));
    source.send(step, mail.barrier(step));
    mail.wait(step, mail_bytes);
    source.ask();
    const auto root = merge_all<Lse>([&](int i) { return box_of(step)[i]; }, chunks);
    const DoubleResults to{row, rows[Slot::y].data + row * p.y_stride, scale};
    tile.template write<kLog>(rows, to, begin, n, root, own.m);
  }
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
  source.end();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
