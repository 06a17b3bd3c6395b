// softmax and log_softmax of long rows that lengths or a causal limit cut short, and log_softmax of ragged ones, by
// clusters that stay for many of them: what exists of neighbouring rows is dealt out to the cluster's warps together,
// so that none waits for a row that is shorter than others.
#pragma once

#include "cuda/length_dealer.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which of a lane's slots hold elements of a unit, or of its chunk.
template <class Unit>
struct LengthSlots {
  int left;                ///< slots from the lane's first on, up to the unit's end
  int none = 0, hole = 0;  ///< those from none up to the hole's end lie before the chunk's first element
  int count = 0;           ///< elements of the chunk, if Unit::kAnywhere

  /// Of n elements from `first` on.
  __device__ __forceinline__ LengthSlots(const char* first, int n) {
    const int lane = lane_index() % Unit::kLanes;
    left = n - Unit::lane_begin() - lane * Unit::kWidth;
    if constexpr (Unit::kAnywhere) {
      const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / Unit::kSize;
      count = typename Unit::Place{nullptr, first, n, (n + lift::kChunk - 1) / lift::kChunk}.count(lane_index() /
                                                                                                   Unit::kLanes);
      left = count + shift - lane * Unit::kWidth;
      none = max(count + shift - lift::kChunk, 0);
      if (lane == 0) hole = shift;
    }
  }
  __device__ __forceinline__ bool operator()(int j, int k) const {
    const bool within = left > Unit::kWidth * Unit::kLanes * j + k;
    return Unit::kAnywhere && j == 0 ? within && (k < none || k >= hole) : within;
  }
};

/// The nodes of one row among a batch's.
struct LengthMail {
  StayBox box;
  int first;
  __device__ __forceinline__ lift::Node node(int i) const { return box[first + i].node; }
  __device__ fold::LogSumExp<float>::State operator()(int i) const {
    const StayMail& m = box[first + i];
    return m.node.z == lift::kFar ? fold::LogSumExp<float>::State{m.far, m.node.d} : lift::state_of(m.node);
  }
  __device__ __forceinline__ lift::Root merge(int chunks) const {
    lift::Root root{lift::merge_some([&](int i) { return node(i); }, chunks), {}};
    if (root.node.z == lift::kFar) root.far = lift::merge_states_wide(*this, chunks);
    return root;
  }
};

/// Sends what exists of a job's unit on its way to `place`. By one lane.
template <class Unit>
__device__ __forceinline__ void fetch_unit(char* place, CopyBarrier& landed, const LengthJob& job, const Extent& x) {
  if constexpr (Unit::kAnywhere) {
    if (job.n <= 0) return landed.expect(0);
    const typename Unit::Place part{place, job.x, job.n, 0};
    landed.expect(part.bytes(x.begin, x.end));
    part.fetch(landed, x.begin, x.end);
  } else {
    const int bytes = (max(job.n, 0) + Unit::kWidth - 1) / Unit::kWidth * 16;
    landed.expect(bytes);
    if (bytes > 0) landed.copy(place, job.x, bytes);
  }
}

/// The lane's vectors of a unit's n > 0 elements at `place`; where none is stands some element of the unit.
template <class Unit>
__device__ __forceinline__ void read_unit(uint4 (&raw)[Unit::kVectors], char* place, const LengthJob& job,
                                          const Extent& x) {
  using E = typename Unit::E;
  const int lane = lane_index(), last = (job.n - 1) / Unit::kWidth, cut = job.n % Unit::kWidth;
  if constexpr (Unit::kAnywhere)
    return typename Unit::Place{place, job.x, job.n, (job.n + lift::kChunk - 1) / lift::kChunk}.read_filled(
        raw, x.begin, x.end);
  E* e = reinterpret_cast<E*>(place);
  if (cut != 0) {
    if (lane >= cut && lane < Unit::kWidth) e[last * Unit::kWidth + lane] = e[0];
    fence_for_copy();  // which will write here next
    __syncwarp();
  }
  const int first = lane / Unit::kLanes * (lift::kChunk / Unit::kWidth) + lane % Unit::kLanes;
#pragma unroll
  for (int j = 0; j < Unit::kVectors; ++j)
    raw[j] = reinterpret_cast<const uint4*>(place)[min(first + Unit::kLanes * j, last)];
}

template <class Unit, bool kLog>
__device__ __noinline__ typename Unit::Fold::Folded fold_any(float (&v)[Unit::kCount], float c) {
  using Fold = typename Unit::Fold;
  return kLog ? Fold::reduce(v, c) : Fold::terms(v, c);
}

/// The states of a unit's chunks. v becomes the terms, 0 where no element is, or with kLog the elements.
template <class Unit, bool kLog>
__device__ __forceinline__ typename Unit::Fold::Folded fold_unit(float (&v)[Unit::kCount],
                                                                 const uint4 (&raw)[Unit::kVectors], float c,
                                                                 const LengthSlots<Unit>& present) {
  using E = typename Unit::E;
  using S = fold::Scalar<float>;
  constexpr float kMagic = fold::Real<float>::kMagic;
  const lift::Extremes e = extremes_by_integers<E>(raw);
  const int high = __reduce_max_sync(lift::kWholeWarp, __float_as_int(S::fma(c > 0.F ? e.high : e.low, c, kMagic)));
  const int low = __reduce_min_sync(lift::kWholeWarp, __float_as_int(S::fma(c > 0.F ? e.low : e.high, c, kMagic)));
  const float top = __int_as_float(high), bottom = __int_as_float(low);
#pragma unroll
  for (int j = 0; j < Unit::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Unit::kWidth);
  if (top >= kMagic + fold::Real<float>::kFastLowest && top <= kMagic + fold::Real<float>::kFastHighest &&
      bottom >= top - 60.F) {
    const float m = S::sub(top, kMagic);
    const lift::FrameTerms terms(c, m);
    const float d = lift::add_tree<Unit::kWidth, Unit::kLanes, float, Unit::kCount>([&](int j, int k) {
      const float t = terms.term<false>(v[j * Unit::kWidth + k]), there = present(j, k) ? t : 0.F;
      if (!kLog) v[j * Unit::kWidth + k] = there;
      return there;
    });
    const float sum = S::mul(d, terms.unit);
    return {{static_cast<double>(m), sum}, terms.unit, true, {high, sum}};
  }
  float any[Unit::kCount];
#pragma unroll
  for (int i = 0; i < Unit::kCount; ++i) any[i] = present(i / Unit::kWidth, i % Unit::kWidth) ? v[i] : lift::absent(c);
  const auto own = fold_any<Unit, kLog>(any, c);
#pragma unroll
  for (int i = 0; i < Unit::kCount; ++i) v[i] = any[i];
  return own;
}

/// The results of a unit, of which the warp knows the row's root.
template <class Unit, bool kLog>
__device__ __forceinline__ void put_unit(const LengthRows& rows, const LengthJob& job, const lift::Root& root,
                                         float (&v)[Unit::kCount], const typename Unit::Fold::Folded& own,
                                         const LengthSlots<Unit>& present) {
  using E = typename Unit::E;
  const int lane = lane_index();
  const ChunkMultiplier multiplier(root, own.node, own.state.m);
  if (!multiplier.regular) {
    fill<E, kLog>(job.y, nullptr, 0, lane, 32, job.n, job.room, constant_of<kLog>(root.state(), rows.p.empty));
    return;
  }
  const auto norm = [&] {
    fold::LogNormaliser<float> r(root.state(), rows.scale);
    r.set_c(rows.factor.c);
    r.two_kappa = rows.two_kappa;
    return r;
  };
  // The terms of a chunk without elements are 0: its lanes go the way of the others.
  const float by = own.node.z == lift::kNone ? 1.F : fold::Scalar<float>::mul(multiplier.value, own.unit);
  if constexpr (Unit::kAnywhere) {
    uint4 results[Unit::kVectors];
    finish<kLog, Unit::kWidth>(v, own.dense, by, norm,
                               [&](int j) { results[j] = Packed<E>::pack(v + j * Unit::kWidth); });
    write_vectors<E, Unit::kLanes, Unit::kVectors>(job.y + Unit::lane_begin() * Unit::kSize, present.count,
                                                   [&](int j) { return results[j]; });
    if (!Unit::kRagged && job.n < job.room)
      hide_run<E, kLog, Unit::kVectors, false>(job.y + job.n * Unit::kSize, job.room - job.n);
  } else {
    const int begin = Unit::lane_begin() + lane % Unit::kLanes * Unit::kWidth, room = job.room - begin;
    char* y = job.y + begin * Unit::kSize;
    finish<kLog, Unit::kWidth>(v, own.dense, by, norm, [&](int j) {
      if constexpr (kLog) {
#pragma unroll
        for (int k = 0; k < Unit::kWidth; ++k)
          if (!present(j, k)) v[j * Unit::kWidth + k] = nothing<true>();
      }
      const int at = Unit::kWidth * Unit::kLanes * j;
      if (at < room) *reinterpret_cast<uint4*>(y + at * Unit::kSize) = Packed<E>::pack(v + j * Unit::kWidth);
    });
  }
}

/// The node of a chunk, to all blocks of the cluster; returns once the batch's nodes, `bytes` in all, have come from
/// all of its warps. So who has a batch's knows that the nodes of the one before have been read.
template <int kLanes>
__device__ __forceinline__ void exchange(CopyBarrier& arrived, StayMail& mine, unsigned parity, const StayMail& mail,
                                         int bytes) {
  const unsigned blocks = lift::Cluster::size();
  if (blocks == 1) {
    if (threadIdx.x % kLanes == 0) mine = mail, arrived.arrive();
  } else {
    send_mail<kLanes>(mine, arrived, mail);
  }
  wait_for_words<true>(arrived, parity);  // measured
  if (threadIdx.x == 0 && blocks > 1) arrived.expect(bytes);
}

/// `clusters` of them, each for the rows whose number leaves its own when divided by that.
template <class Unit, bool kLog>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_lengths_stay(const __grid_constant__ LengthRows rows, int clusters) {
  begin_in_order();
  static_assert(kLog || !Unit::kRagged);  // softmax of these: ragged_units.cuh
  if (Unit::kRagged && rows.source.given() && rows.source.count() == 0) return;
  using Cluster = lift::Cluster;
  constexpr int kStages = Unit::kStages, kJobs = 2 * kStages;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier arrived[2], landed[kStayWarps][kStages];
  __shared__ LengthJob jobs[kStayWarps][kJobs];
  __shared__ LengthPage pages[kStayWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int mail = warps * static_cast<int>(Cluster::size()) * Unit::kChunks;
  const int mail_bytes = mail * static_cast<int>(sizeof(StayMail));
  const auto room_of = [&](int step) { return landing_memory + (warp * kStages + step % kStages) * Unit::kBytes; };
  const auto box_of = [&](int turn) {
    return StayBox{
        reinterpret_cast<StayMail*>(landing_memory + warps * kStages * Unit::kBytes + turn * StayBox::bytes(mail))};
  };
  const bool alone = Cluster::size() == 1;
  if (threadIdx.x < 2) arrived[threadIdx.x].init(alone ? mail : 1);
  if (lane_index() < kStages) landed[warp][lane_index()].init(1);
  CopyBarrier::publish();
  if (threadIdx.x < 2 && !alone) arrived[threadIdx.x].expect(mail_bytes);
  __syncwarp();
  const LengthDealer<Unit, kLog> dealer;
  const Extent memory_of_x = Unit::kAnywhere ? rows.x : Extent{};
  dealer.begin(pages[warp]);
  const auto job_of = [&](int step) -> LengthJob& { return jobs[warp][step % kJobs]; };
  const auto place_of = [&](int step) {
    return Unit::kAnywhere ? place_in_sectors(room_of(step), job_of(step).x) : room_of(step);
  };
  const auto fetch = [&](int step) {
    if (lane_index() == 0) fetch_unit<Unit>(place_of(step), landed[warp][step % kStages], job_of(step), memory_of_x);
  };
  Cluster::arrive_shared();
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    dealer.next(rows, clusters, pages[warp], job_of(stage));
    fetch(stage);
  }
  Cluster::wait();
#pragma unroll 1
  for (int step = 0; job_of(step).n != LengthJob::kNone; ++step) {
    dealer.next(rows, clusters, pages[warp], job_of(step + kStages));
    const LengthJob& job = job_of(step);
    const int n = job.n, turn = step % 2;
    const auto send = [&](const StayMail& mail) {
      exchange<Unit::kLanes>(arrived[turn], box_of(turn)[dealer.unit * Unit::kChunks + lane_index() / Unit::kLanes],
                             static_cast<unsigned>(step / 2) & 1U, mail, mail_bytes);
    };
    landed[warp][step % kStages].wait(static_cast<unsigned>(step / kStages) & 1U);
    if (n == 0) {
      fetch(step + kStages);
      send({{lift::kNone, 0.F}, 0.});
      continue;
    }
    float v[Unit::kCount];
    uint4 raw[Unit::kVectors];
    read_unit<Unit>(raw, place_of(step), job, memory_of_x);
    const int waited = Unit::Place::loaded(raw);
    __syncwarp();
    fetch(step + kStages + waited);
    const LengthSlots<Unit> present(job.x, n);
    auto own = fold_unit<Unit, kLog>(v, raw, rows.factor.c, present);
    if (n <= Unit::lane_begin()) own.node = {lift::kNone, 0.F};
    send(mail_of(own));
    const auto root = LengthMail{box_of(turn), job.mail}.merge(job.chunks);
    put_unit<Unit, kLog>(rows, job, root, v, own, present);
  }
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
