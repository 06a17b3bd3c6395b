// softmax of ragged rows of many chunks, by clusters that stay: rows that follow one another are dealt out to the
// cluster's warps in units of two chunks, without gaps. A row's units share a frame, which one of its elements gives,
// so that their sums add up as they are, and a unit is written when the warp's next one has been folded, while that
// one's sum is on its way.
#pragma once

#include "cuda/ragged_deal.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/unit_frame.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

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
  __device__ __forceinline__ RaggedUnit& job(int step) const { return units.jobs[Units::place(step)][warp]; }
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
    units.wait_for_jobs(0);
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
        units.wait_for_jobs(step + 1);
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
