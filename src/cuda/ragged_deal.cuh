// How rows that follow one another are dealt out to the warps of a cluster, without gaps and some steps ahead, in units
// of two chunks, and how the sums of these cross.
#pragma once

#include "cuda/softmax_length.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct RaggedUnitRows {
  RowProblem p;
  Extent x;  ///< its memory
  float c;   ///< the scale's, plain
  std::int64_t longest;
  RaggedQueue source;  ///< if given, of the rows on it, else of all
  RaggedQueue longer;  ///< for longer ones
  RaggedQueue missed;  ///< for those that their frame does not hold
};

/// A warp's unit of a step. It waits in shared memory.
struct alignas(16) RaggedUnit {
  static constexpr int kNone = -1;
  const char* from;       ///< what the copy engine brings: whole vectors
  int bytes;              ///< of them; 0 where these would reach beyond x's memory
  int n;                  ///< elements: 0 if the step has none for this warp, kNone behind the last step
  float first;            ///< an element that gives the row's frame
  int shift;              ///< bytes from `from` to its own first
  int slot;               ///< where its sum goes (UnitSums)
  int first_slot;         ///< where that of the row's first unit does
  int units;              ///< of the row
  int index;              ///< among them
  int first_wait, waits;  ///< which groups the row's units are of (UnitSums)
  int low;                ///< its least exponent over the frame, once it has been folded
  std::int64_t begin;     ///< its first element in x
  int row, length;        ///< the row, and its elements
};

/// Barriers for the sums of all warps' units, which all blocks of a cluster send to each, NaN where a frame does not
/// hold a unit: of the last kSteps steps, a barrier for kEach warps of every block, so that nobody waits for more than
/// what its row's units need.
template <int kWarps>
struct UnitSums {
  static constexpr int kSteps = 16, kEach = 4, kGroups = (kWarps + kEach - 1) / kEach;
  CopyBarrier arrived[kSteps * kGroups];

  static __device__ __forceinline__ int place(int step) {
    return static_cast<int>(static_cast<unsigned>(step) % kSteps);
  }
  __device__ __forceinline__ CopyBarrier& barrier(int step, int warp) {
    return arrived[place(step) * kGroups + warp / kEach];
  }
  /// By all threads.
  __device__ __forceinline__ void init() {
    for (int i = static_cast<int>(threadIdx.x); i < kSteps * kGroups; i += static_cast<int>(blockDim.x))
      arrived[i].init(1);
  }
  __device__ __forceinline__ void expect() {
    for (int i = static_cast<int>(threadIdx.x); i < kSteps * kGroups; i += static_cast<int>(blockDim.x)) expect(i);
  }
  /// For the count groups from one on that is the first-th, counted over all steps.
  __device__ __forceinline__ void wait(int first, int count) {
#pragma unroll 1
    for (int i = first; i < first + count; ++i) {
      const auto group = static_cast<unsigned>(i);
      wait_for_words<true>(arrived[group % (kSteps * kGroups)], group / (kSteps * kGroups) % 2);
    }
  }
  /// By the lanes of one warp once for each step, in order: waits, and is ready for the step kSteps later.
  __device__ __forceinline__ void pass(int step) {
    wait(step * kGroups, kGroups);
    if (lane_index() < kGroups) expect(place(step) * kGroups + lane_index());
  }

 private:
  __device__ __forceinline__ void expect(int i) {
    const int warps = min(kWarps - i % kGroups * kEach, kEach);
    arrived[i].expect(warps * static_cast<int>(lift::Cluster::size() * sizeof(float)));
  }
};

/// How a block's warps go over their units. The last one deals them out.
template <class E>
struct RaggedUnits {
  using Unit = LengthUnit<E, true, true>;
  using Place = typename Unit::Place;
  static constexpr int kSize = Unit::kSize, kElements = Unit::kElements;
  static constexpr int kKept = Unit::kBytes, kWarpBytes = kKept + kElements * static_cast<int>(sizeof(float));
  static constexpr int kWarps = ragged_unit_warps(kSize);  ///< of a block, that take units
  static constexpr int kJobs = 8;                          ///< steps that are dealt out ahead, or still needed
  /// A step is dealt out when all sums of so many steps before have come: units of two steps before that are done with.
  static constexpr int kAhead = kJobs - 2;
  using Sums = UnitSums<kWarps>;
  /// Who is furthest behind reads sums of up to two steps before his own.
  static_assert(Sums::kSteps > kAhead + 2);

  Sums mail;
  CopyBarrier dealt[kJobs], landed[kWarps];
  RaggedUnit jobs[kJobs][kWarps];
  uint4 ends[kWarps];

  /// Up to 32 rows, a lane each.
  struct Page {
    std::int64_t begin[32];
    int row[32], length[32];
    int behind[32];  ///< units of the rows up to this one
    float first[32];
    std::int64_t next, end, stride;  ///< rows to look at yet
  } page;

  static int shared_bytes(int blocks) {
    return kWarps * kWarpBytes + Sums::kSteps * blocks * kWarps * static_cast<int>(sizeof(float));
  }
  static __device__ __forceinline__ int warps() { return kWarps * static_cast<int>(lift::Cluster::size()); }
  /// Of the step's jobs.
  static __device__ __forceinline__ unsigned place(int step) { return static_cast<unsigned>(step) % kJobs; }
  __device__ __forceinline__ void wait_for_jobs(int step) {
    dealt[place(step)].wait(static_cast<unsigned>(step) / kJobs % 2);
  }
  static __device__ __forceinline__ char* room(int warp) {
    extern __shared__ __align__(kCopyLine) char landing_memory[];
    return landing_memory + warp * kWarpBytes;
  }
  static __device__ __forceinline__ float* sums() { return reinterpret_cast<float*>(room(kWarps)); }

  /// By all threads.
  __device__ __forceinline__ void init() {
    if (threadIdx.x < kJobs) dealt[threadIdx.x].init(1);
    if (threadIdx.x < kWarps) jobs[kJobs - 1][threadIdx.x].n = 0;  // before the first step there is none
    if (threadIdx.x < kWarps) landed[threadIdx.x].init(1);
    mail.init();
    CopyBarrier::publish();
    mail.expect();
    __syncthreads();
  }
  /// By the last warp: all steps, each a lane a warp. Of a step whose sums have all come the warps have left the units
  /// of the one before the last.
  __device__ __forceinline__ void deal(const RaggedUnitRows& rows, int clusters) {
    const auto blocks = static_cast<int>(lift::Cluster::size()), cluster = static_cast<int>(blockIdx.x) / blocks;
    const bool all = !rows.source.given();
    Run run{cluster, 0};
    if (all) {
      run = run_of(rows.p, cluster, clusters);
    } else {
      run.end = rows.source.count();
    }
    const int lane = lane_index();
    page.behind[lane] = 0;
    if (lane == 0) page.next = run.begin, page.end = run.end, page.stride = all ? 1 : clusters;
    __syncwarp();
    const int unit = lane * blocks + static_cast<int>(lift::Cluster::rank());
    int from = 0;  // the step's first unit, from the page's first on
    bool more = true;
#pragma unroll 1
    for (int step = 0; more; ++step) {
      if (step >= kAhead) mail.pass(step - kAhead);
      more = false;
      RaggedUnit own{};
      own.n = RaggedUnit::kNone;
      own.slot = Sums::place(step) * warps() + unit;
      int to = from + warps();
      bool found = false;
#pragma unroll 1
      while (true) {
        const int units = page.behind[31], at = from + unit;
        if (from < units) more = true;
        if (!found && at >= 0 && at < units) found = true, put(rows, own, at, unit, step);
        if (to <= units || page.next >= page.end) break;
        from -= units, to -= units;
        turn(rows, page);
      }
      if (more && !found) own.n = 0;
      from = to;
      if (lane < kWarps) jobs[place(step)][lane] = own;
      __syncwarp();
      if (lane == 0) dealt[place(step)].arrive();
      if (more) continue;
      // Nobody leaves before all that is sent to it has come.
      for (int last = max(step - kAhead + 1, 0); last < step; ++last) mail.pass(last);
    }
  }

 private:
  /// The unit at that place of the page.
  __device__ __forceinline__ void put(const RaggedUnitRows& rows, RaggedUnit& own, int at, int unit, int step) const {
    int row = 0;  // the first whose units do not all lie before it
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
      if (page.behind[row + half - 1] <= at) row += half;
    const int before = row > 0 ? page.behind[row - 1] : 0;
    own.index = at - before, own.length = page.length[row], own.row = page.row[row], own.first = page.first[row];
    own.units = page.behind[row] - before;
    own.begin = page.begin[row] + own.index * kElements;
    own.n = min(own.length - own.index * kElements, kElements);
    own.first_slot = own.slot - own.index;
    if (own.first_slot < 0) own.first_slot += Sums::kSteps * warps();
    const int each = Sums::kEach * static_cast<int>(lift::Cluster::size()), first = unit - own.index;
    const auto group = [&](int of) {  // a row has no more units than a step
      if (of < 0) return (step - 1) * Sums::kGroups + (of + warps()) / each;
      if (of >= warps()) return (step + 1) * Sums::kGroups + (of - warps()) / each;
      return step * Sums::kGroups + of / each;
    };
    own.first_wait = group(first), own.waits = group(first + own.units - 1) + 1 - own.first_wait;
    const char* x = rows.p[Slot::x].data + own.begin * kSize;
    own.shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(x) % 16);
    own.from = x - own.shift;
    own.bytes = (own.shift + own.n * kSize + 15) & ~15;
    if (own.from < rows.x.begin || own.from + own.bytes > rows.x.end) own.bytes = 0;
  }
  struct Run {
    std::int64_t begin, end;
  };
  /// The first row of the `cluster`-th of `clusters` runs of about as many elements, and the first behind it. By all
  /// lanes. Of offsets that go back, too, no run begins before the one before it: where it is looked for follows from
  /// the number of rows alone, and a larger bound goes to the right wherever a smaller one does.
  static __device__ __noinline__ Run run_of(const RowProblem& p, int cluster, int clusters) {
    const RaggedRow front = ragged_row(p, 0), back = ragged_row(p, p.rows - 1);
    const std::int64_t each = max(back.begin + back.n - front.begin, std::int64_t{0}) / clusters;
    struct Search {
      std::int64_t bound, low, high;
      __device__ __forceinline__ void step(const RowProblem& p) {
        const std::int64_t step = (high - low + 31) / 32, own = low + lane_index() * step;
        const bool is_before = own < high && ragged_row(p, own).begin < bound;
        const unsigned others = ~__ballot_sync(lift::kWholeWarp, is_before);
        const std::int64_t passed = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
        high = min(low + passed * step, high);
        if (passed > 0) low += (passed - 1) * step + 1;
      }
    };
    Search begin{front.begin + cluster * each, 0, cluster == 0 ? 0 : p.rows},
        end{begin.bound + each, cluster + 1 == clusters ? p.rows : 0, p.rows};
#pragma unroll 1
    while (begin.low < begin.high || end.low < end.high) begin.step(p), end.step(p);
    return {begin.low, end.low};
  }
  /// The next page, of rows that clusters stay for; longer ones to the queue, by one warp of a cluster.
  static __device__ __noinline__ void turn(const RaggedUnitRows& rows, Page& page) {
    const RowProblem& p = rows.p;
    const int lane = lane_index();
    const std::int64_t end = page.end, stride = page.stride;
    std::int64_t first = page.next;
    int count = 0;
    __syncwarp();  // all have read the page
    page.length[lane] = 0;
    __syncwarp();
#pragma unroll 1
    while (count < 32 && first < end) {
      std::int64_t own = first + lane * stride;
      RaggedRow r{own, 0, 0};
      if (own < end) {
        if (rows.source.given()) own = rows.source.row(static_cast<unsigned>(own));
        r = ragged_row(p, own);
      }
      const bool takes = r.n > 0 && r.n <= rows.longest;
      const unsigned found = __ballot_sync(lift::kWholeWarp, takes);
      const int at = count + __popc(found & ((1U << lane) - 1U));
      if (takes && at < 32) {
        page.begin[at] = r.begin, page.length[at] = static_cast<int>(r.n), page.row[at] = static_cast<int>(own);
        // Of a few elements the one whose term is the largest: one alone may have none.
        const E* x = reinterpret_cast<const E*>(p[Slot::x].data) + r.begin;
        const float some[3] = {fold::widen(x[0]), fold::widen(x[r.n / 2]), fold::widen(x[r.n - 1])};
        page.first[at] =
            rows.c > 0.F ? fmaxf(fmaxf(some[0], some[1]), some[2]) : fminf(fminf(some[0], some[1]), some[2]);
      }
      const unsigned full = __ballot_sync(lift::kWholeWarp, takes && at >= 32);
      const int seen = full == 0 ? 32 : __ffs(static_cast<int>(full)) - 1;
      if (r.n > rows.longest && lane < seen && lift::Cluster::rank() == 0) rows.longer.append(own, r.n);
      first += seen * stride;
      count = min(count + __popc(found), 32);
    }
    __syncwarp();
    page.behind[lane] = sum_up_to(Unit::units(page.length[lane]));
    if (lane == 0) page.next = first;
    __syncwarp();
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
