// softmax of ragged rows of many chunks, by clusters that stay: rows that follow one another are dealt out to the
// cluster's warps in units of two chunks, without gaps. A row's units share a frame, which one of its elements gives,
// so that their sums add up as they are, and a unit is written when the warp's next one has been folded, while that
// one's sum is on its way.
#pragma once

#include "cuda/reciprocal.cuh"
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

/// A row's frame, from one of its elements: even, and kLead binades or up to two more under it. It holds a unit of
/// which all elements' n lie between kLowest and kHighest over it, and no two further apart than terms of one chunk may
/// be (fold::Real::kFlush); but for deep ones, which are 0 in every sum of others by definition. All sums of a row are
/// then normal numbers in it, and so is their reciprocal.
struct UnitFrame {
  using S = fold::Scalar<float>;
  static constexpr int kLead = 16, kHighest = 106, kLowest = -100, kDeep = -240;
  static constexpr int kRaised = -112;            ///< where deep ones are put, about: a quotient of numbers below 2^21
  static constexpr float kLeastTerm = 0x1p-101F;  ///< of those that are not deep
  static constexpr int kFlush = static_cast<int>(fold::Real<float>::kFlush);
  static_assert(kDeep < kLowest + kFlush - 2 && kHighest + 1 + 19 <= 126);  // rows have less than 2^19 elements
  static constexpr float kLargest = 0x1p21F;  ///< frame: within it the split of an element's t is exact

  float c, s;

  __device__ __forceinline__ UnitFrame(float first, float c_) : c(c_) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    s = S::sub(S::sub(__int_as_float(__float_as_int(S::fma(first, c, kMagic)) & ~1), kMagic), kLead);
  }
  __device__ __forceinline__ float magic() const { return S::sub(fold::Real<float>::kMagic, s); }
  __device__ __forceinline__ lift::FrameTerms terms() const { return lift::FrameTerms::in_even_frame(c, magic()); }
  /// Of what has no n near the frame a number far outside.
  __device__ __forceinline__ int n(float x) const {
    return max(__float_as_int(S::fma(x, c, magic())), 0) - __float_as_int(fold::Real<float>::kMagic);
  }
  __device__ __forceinline__ bool holds(int low, int high) const {
    return low >= kLowest && high <= kHighest && high - low <= -kFlush && fabsf(s) <= kLargest;
  }
  /// Whether the probability of an element of this n may be below kSmallest, where d is the row's sum.
  static __device__ __forceinline__ bool may_vanish(int n, float d) {
    static_assert(fold::Real<float>::kSmallest == 0x1p-124F);
    return n - ((__float_as_int(d) >> 23) - 127) < -121;
  }
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
  __device__ __forceinline__ void wait_for_job(int step) {
    dealt[static_cast<unsigned>(step) % kJobs].wait(static_cast<unsigned>(step) / kJobs % 2);
  }
  static __device__ __forceinline__ char* room(int warp) {
    extern __shared__ __align__(kCopyLine) char landing_memory[];
    return landing_memory + warp * kWarpBytes;
  }
  static __device__ __forceinline__ float* sums() {
    extern __shared__ __align__(kCopyLine) char landing_memory[];
    return reinterpret_cast<float*>(landing_memory + kWarps * kWarpBytes);
  }

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
      if (lane < kWarps) jobs[static_cast<unsigned>(step) % kJobs][lane] = own;
      __syncwarp();
      if (lane == 0) dealt[static_cast<unsigned>(step) % kJobs].arrive();
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
  /// The first row of the `cluster`-th of `clusters` runs of about as many elements, and the first behind it. By all
  /// lanes. Of offsets that go back, too, no run begins before the one before it: where it is looked for follows from
  /// the number of rows alone, and a larger bound goes to the right wherever a smaller one does.
  struct Run {
    std::int64_t begin, end;
  };
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

/// What a warp does with its units, one after another. kRun: a 32nd, or more, of the cluster's warps, a power of two.
template <class E, int kRun>
struct RaggedUnitWarp {
  using Units = RaggedUnits<E>;
  using Unit = typename Units::Unit;
  using Place = typename Unit::Place;
  using S = fold::Scalar<float>;
  using Vectors = uint4[Unit::kVectors];
  using Values = float[Unit::kCount];

  const RaggedUnitRows& rows;
  Units& units;
  int warp;  ///< as a reduction's result, which the compiler knows to be the same in all lanes

  __device__ __forceinline__ CopyBarrier& landed() const { return units.landed[warp]; }
  __device__ __forceinline__ RaggedUnit& job(int step) const {
    return units.jobs[static_cast<unsigned>(step) % Units::kJobs][warp];
  }
  __device__ __forceinline__ char* place(const RaggedUnit& job) const {
    return place_in_sectors(Units::room(warp), job.from);
  }
  __device__ __forceinline__ Place part(const RaggedUnit& job) const {
    return {place(job), job.from + job.shift, job.n, (job.n + lift::kChunk - 1) / lift::kChunk};
  }
  /// By one lane; more: 0.
  __device__ __forceinline__ void fetch(const RaggedUnit& job, int more) const {
    CopyBarrier& landed = this->landed();
    if (job.bytes > 0) {
      landed.expect(job.bytes + more);
      return landed.copy(place(job), job.from, job.bytes);
    }
    if (job.n <= 0) return landed.expect(more);
    const Place own = part(job);
    landed.expect(own.bytes(rows.x.begin, rows.x.end) + more);
    own.fetch(landed, rows.x.begin, rows.x.end);
  }
  /// Where no element is stands some other.
  __device__ __forceinline__ void read(const RaggedUnit& job, Vectors& raw) const {
    if (job.n < Unit::kElements || job.bytes == 0) part(job).template mend<true>(0.F, rows.x.begin, rows.x.end);
    const int lane = lane_index(), group = job.n > lift::kChunk ? lane / Unit::kLanes : 0;
    const char* from = place(job) + group * (lift::kChunk * Unit::kSize) + lane % Unit::kLanes * 16;
    const auto vector = [&](int j) { return *reinterpret_cast<const uint4*>(from + 16 * Unit::kLanes * j); };
#pragma unroll
    for (int j = 0; j < Unit::kVectors; ++j) raw[j] = vector(j);
    if (job.shift == 0) return;
    const uint4 behind = vector(Unit::kVectors);
    if (lane % Unit::kLanes == 0) raw[0] = joined(raw[0], behind, job.shift);
  }
  /// The sum of the unit's terms in its row's frame, which v becomes, 0 where no element is; NaN if that does not hold
  /// it.
  __device__ __forceinline__ float fold(RaggedUnit& job, Vectors& raw, Values& v) const {
    const UnitFrame frame(job.first, rows.c);
    const lift::Extremes e = extremes_by_integers<E>(raw);
    const int one = frame.n(e.low), other = frame.n(e.high);  // by the scale's sign the one is larger or the other
    const int high = __reduce_max_sync(lift::kWholeWarp, max(one, other));
    int low = __reduce_min_sync(lift::kWholeWarp, min(one, other));
    const bool some_deep = low < UnitFrame::kLowest;
    if (some_deep) low = raise_deep(frame, raw);
    if (lane_index() == 0) job.low = low;
    const bool held = frame.holds(low, max(high, low));
    const auto terms = frame.terms();
    unpack<E>(raw, v);
#pragma unroll
    for (float& x : v) x = terms.template term<false>(x);
    if (job.n < Unit::kElements || some_deep) {
      const LengthSlots<Unit> present(job.from + job.shift, job.n);
#pragma unroll
      for (int i = 0; i < Unit::kCount; ++i)
        v[i] = present(i / Unit::kWidth, i % Unit::kWidth) && v[i] >= UnitFrame::kLeastTerm ? v[i] : 0.F;
    }
    const float d = lift::add_tree<Unit::kWidth, Unit::kLanes, float, Unit::kCount>(
        [&](int j, int k) { return v[j * Unit::kWidth + k]; });
    const float sum = S::add(d, __shfl_xor_sync(lift::kWholeWarp, d, Unit::kLanes));
    return held ? sum : fold::canonical_nan<float>();
  }
  /// To all blocks.
  __device__ __forceinline__ void send(const RaggedUnit& job, int step, float sum) const {
    const auto to = static_cast<unsigned>(lane_index());
    if (to >= lift::Cluster::size()) return;
    send_u32(lift::Cluster::map(Units::sums() + job.slot, to), lift::Cluster::map(&units.mail.barrier(step, warp), to),
             __float_as_uint(sum));
  }
  /// The sum of the row that the step before had a unit of; 0 if none.
  __device__ __forceinline__ float receive(const RaggedUnit& before) const {
    if (before.n <= 0) return 0.F;
    units.mail.wait(before.first_wait, before.waits);
    const int count = before.units, all = Units::Sums::kSteps * Units::warps(), first = before.first_slot;
    const float* sums = Units::sums();
    float of[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int unit = kRun * lane_index() + i, at = first + min(unit, count - 1);
      const float its = sums[at < all ? at : at - all];
      of[i] = unit < count ? its : 0.F;
    }
#pragma unroll
    for (int stride = 1; stride < kRun; stride *= 2)
#pragma unroll
      for (int i = 0; i < kRun; i += 2 * stride) of[i] = S::add(of[i], of[i + stride]);
    float sum = of[0];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      sum = S::add(sum, __shfl_xor_sync(lift::kWholeWarp, sum, distance));
    return sum;
  }
  /// Keeps the terms v, and makes results of those that have been kept; sum: their row's, or 0.
  __device__ __forceinline__ void put(const RaggedUnit& before, float sum, const Values& v) const {
    if (UnitFrame::may_vanish(before.low, sum)) return put<true>(before, sum, v);
    put<false>(before, sum, v);
  }

 private:
  /// Deep elements to where their terms are less than any other's; the least n of the others, or kLowest if there is
  /// none.
  static __device__ __forceinline__ int raise_deep(const UnitFrame& frame, Vectors& raw) {
    constexpr unsigned kNone = 1U << 30;
    const float floor =
        fold::widen(Packed<E>::narrow(__fdividef(S::add(frame.s, static_cast<float>(UnitFrame::kRaised)), frame.c)));
    // Of a scale that is hardly a number, and of large numbers of few digits, it may lie elsewhere.
    const int at = frame.n(floor);
    if (at < UnitFrame::kRaised - 8 || at > UnitFrame::kRaised + 8) return UnitFrame::kLowest - 1;
    unsigned least = kNone;
#pragma unroll
    for (uint4& vector : raw) {
      float v[Unit::kWidth];
      Packed<E>::unpack(vector, v);
#pragma unroll
      for (float& x : v) {
        const int over = frame.n(x) - UnitFrame::kDeep;
        least = min(least, static_cast<unsigned>(over));
        x = over >= 0 ? x : floor;
      }
      vector = Packed<E>::pack(v);
    }
    const unsigned of_all = __reduce_min_sync(lift::kWholeWarp, least);
    return of_all == kNone ? UnitFrame::kLowest : static_cast<int>(of_all) + UnitFrame::kDeep;
  }
  /// kVanish: some may be below kSmallest.
  template <bool kVanish>
  __device__ __forceinline__ void put(const RaggedUnit& before, float sum, const Values& v) const {
    const float unit = reciprocal_of_normal(sum);
    float4* at = reinterpret_cast<float4*>(Units::room(warp) + Units::kKept) + lane_index();
    Vectors raw;
#pragma unroll
    for (int j = 0; j < Unit::kVectors; ++j) {
      float of[Unit::kWidth];
#pragma unroll
      for (int k = 0; k < Unit::kWidth; k += 4) {
        const int i = j * Unit::kWidth + k;
        float4& kept = at[32 * (i / 4)];
        const float4 four = kept;
        kept = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        of[k] = four.x, of[k + 1] = four.y, of[k + 2] = four.z, of[k + 3] = four.w;
      }
#pragma unroll
      for (float& e : of) {
        e = S::mul(e, unit);
        if (kVanish) e = e < fold::Real<float>::kSmallest ? 0.F : e;
      }
      raw[j] = Packed<E>::pack(of);
    }
    if (!(sum > 0.F)) {  // no unit, or a row that its frame does not hold
      if (fold::is_nan(sum) && before.index == 0 && lane_index() == 0) rows.missed.append(before.row, before.length);
      return;
    }
    char* y = rows.p[Slot::y].data + (before.begin + Unit::lane_begin()) * Unit::kSize;
    if (before.n == Unit::kElements) return write_whole_chunks<E, Unit::kLanes>(y, raw, true, units.ends[warp]);
    write_vectors<E, Unit::kLanes, Unit::kVectors>(y, part(before).count(lane_index() / Unit::kLanes),
                                                   [&](int j) { return raw[j]; });
  }
};

template <class E, int kRun>
__global__ void __launch_bounds__((RaggedUnits<E>::kWarps + 1) * 32, 1)
    ragged_units(const __grid_constant__ RaggedUnitRows rows, int clusters) {
  begin_in_order();
  if (rows.source.given() && rows.source.count() == 0) return;
  using Cluster = lift::Cluster;
  using Units = RaggedUnits<E>;
  using Warp = RaggedUnitWarp<E, kRun>;
  __shared__ Units units;
  units.init();
  Cluster::arrive_shared();
  if (warp_index() == Units::kWarps) {
    units.deal(rows, clusters);
    Cluster::wait();
  } else {
    const Warp own{rows, units, __reduce_max_sync(lift::kWholeWarp, static_cast<int>(threadIdx.x) / 32)};
    units.wait_for_job(0);
    if (lane_index() == 0) own.fetch(own.job(0), 0);
    Cluster::wait();
#pragma unroll 1
    for (int step = 0;; ++step) {
      __syncwarp();
      RaggedUnit& job = own.job(step);
      const int n = job.n;
      typename Warp::Values v;
      if (n != RaggedUnit::kNone) {
        own.landed().wait(static_cast<unsigned>(step) % 2);
        units.wait_for_job(step + 1);
        float sum = 0.F;
        if (n > 0) {
          typename Warp::Vectors raw;
          own.read(job, raw);
          const int waited = Units::Place::loaded(raw);
          __syncwarp();
          if (lane_index() == 0) own.fetch(own.job(step + 1), waited);
          sum = own.fold(job, raw, v);
        } else if (lane_index() == 0) {
          own.fetch(own.job(step + 1), 0);
        }
        own.send(job, step, sum);
      }
      const RaggedUnit& before = own.job(step - 1);
      float sum = 0.F;
      if (step > 0) sum = own.receive(before);
      own.put(before, sum, v);
      if (n == RaggedUnit::kNone) break;
    }
  }
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
