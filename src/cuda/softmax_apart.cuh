// softmax and log_softmax of plain rows up to 1024 whose results have another dtype than the elements, as routers over
// experts ask for them, or lie otherwise to 16-byte boundaries: a group of lanes a row.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/parked_results.cuh"
#include "cuda/reciprocal.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where the results of a set of a warp's rows meet: as one run where they lie end to end in y, else each as one.
template <class O>
struct ParkedRows {
  const PlainRows& p;
  char *room, *y;  ///< y: of the set's first row

  static SOFTFOLD_HD bool joined(const PlainRows& p) { return p.y_stride == p.n * static_cast<int>(sizeof(O)); }
  static SOFTFOLD_HD int bytes(const PlainRows& p, int rows) {
    const auto n = static_cast<int>(p.n);
    return whole_lines(joined(p) ? ParkedRun<O>::bytes(rows * n) : rows * ParkedRun<O>::bytes(n));
  }
  /// Where row i begins, in which run.
  __device__ __forceinline__ int begin(int i) const { return joined(p) ? i * static_cast<int>(p.n) : 0; }
  __device__ __forceinline__ ParkedRun<O> run(int i) const {
    if (joined(p)) return {room, y};
    return {room + i * ParkedRun<O>::bytes(static_cast<int>(p.n)), y + i * p.y_stride};
  }
  /// The set's `count` rows to y, a group of kLanes a row where they are apart; by all lanes.
  template <int kLanes>
  __device__ __forceinline__ void send(int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, n = static_cast<int>(p.n);
    if (joined(p)) return run(0).send(count * n, lane, 32);
    for (int i = 0; i < count; i += 32 / kLanes) {
      const int own = i + lane / kLanes;
      run(own).send(own < count ? n : 0, lane % kLanes, kLanes);
    }
  }
};

/// The results of the group's row, of any elements, which lies at x in shared memory; by all lanes.
template <class E, int kLanes, bool kLog, class Place>
__device__ __noinline__ void park_any_row(const PlainRows& p, const char* x, const Place& to, int i, bool writes) {
  using Elements = Tile<E, kLanes>;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes>;
  const int n = static_cast<int>(p.n);
  const Elements tile(x);
  float v[lift::kPerLane];
  tile.load(v, x, n, p.factor);
  const auto own = Fold::terms(v, p.factor.c);
  const fold::Normaliser<float> norm(own.state);
  if (!norm.regular) {
#pragma unroll
    for (float& one : v) one = constant_of<kLog>(own.state, p.empty).value;
  } else {
    if constexpr (kLog) tile.load(v, x, n, p.factor);
    finish<kLog, lift::kPerLane>(
        v, own.dense, fold::Scalar<float>::mul(norm.reciprocal, own.unit), [&] { return p.log_normaliser(own.state); },
        [](int) {});
  }
  if (writes) to.run(i).template park<true>(tile, to.begin(i), n, v);
}

/// Rows that a group of lanes has in a set, at most: those of about 1024 elements a warp. Where it is one, nothing of
/// it is asked at run time.
template <class E, int kVectors>
inline constexpr int kApartRows = std::max(1, 4 * static_cast<int>(sizeof(E)) / 2 / kVectors);

template <class E, class O, int kLanes, int kVectors, int kFull, bool kLog>
__global__ void __launch_bounds__(32 * kOddWarps, 6)
    softmax_apart_rows(const __grid_constant__ PlainRows p, int each, int count_of_sets) {
  begin_in_order();
  using S = fold::Scalar<float>;
  using Row = OddTile<E, kLanes, kVectors, kFull>;
  constexpr bool kOne = kApartRows<E, kVectors> == 1;
  using Rows = std::conditional_t<kOne, Fixed<Row::kRows>, int>;
  static_assert(Row::kCount <= lift::kPerLane);
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Rows rows{};
  if constexpr (!kOne) rows = Row::kRows * each;
  const int room = OddPlace<E>::bytes(p, rows), n = static_cast<int>(p.n);
  const OddSets<E, Rows> sets{p, rows, landing_memory, room + ParkedRows<O>::bytes(p, rows), count_of_sets};
  sets.begin(landed[warp]);
  sets.fetch(landed[warp]);
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int set = 0; set < count_of_sets && sets.has(set); ++set) {
    const ParkedRows<O> results{p, sets.room(set) + room, p.y + sets.base(set) * p.y_stride};
    const OddPlace<E> place = sets.place(set);
    const int count = sets.count(set);
    landed[warp][set].wait(0);
    int own = lane / kLanes;
#pragma unroll 1
    do {
      // Groups without a row of their own take part with the last one and write nothing.
      const char* x = place.row(p, min(own, count - 1));
      const Row tile(x, n);
      float v[Row::kCount];
      uint4 raw[kVectors];
      typename Row::Fold::Folded folded;
      tile.gather(raw, x);
      const bool near = tile.template fold<kLog>(v, folded, raw, p.factor.c);
      if (__all_sync(lift::kWholeWarp, near)) {
        const float unit = S::mul(reciprocal_of_normal(folded.state.d), folded.unit);  // d: from 0.7 to 1536
        finish<kLog, Row::kCount>(
            v, true, unit, [&] { return p.log_normaliser(folded.state); }, [](int) {});
        if (own < count)
          results.run(own).template park<false, kFull == kVectors>(Tile<E, kLanes, Row::kCount>(x), results.begin(own),
                                                                   n, v);
      } else {
        park_any_row<E, kLanes, kLog>(p, x, results, own, own < count);
      }
      own += Row::kRows;
    } while (!kOne && own - lane / kLanes < count);
    results.template send<kLanes>(count);
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
