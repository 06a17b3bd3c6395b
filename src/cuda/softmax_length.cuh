// softmax and log_softmax of long rows that lengths or a causal limit cut short, by clusters that stay for many of
// them: what exists of neighbouring rows is dealt out to the cluster's warps together, so that none waits for a row
// that is shorter than others.
#pragma once

#include "cuda/short_tile.cuh"
#include "cuda/softmax_stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Two chunks of a row, or what exists of them: what a warp takes at a time, 64 elements a lane.
template <class E>
struct LengthUnit {
  static constexpr int kCount = 64, kLanes = 16, kElements = 32 * kCount, kChunks = kElements / lift::kChunk;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = kCount / kWidth;
  static constexpr int kBytes = kElements * kSize;
  static constexpr int kStages = kSize == 2 ? 2 : 1;  ///< units on their way to a warp
  using Fold = lift::WarpFold<kWidth, kLanes, kCount>;
};

/// Rows on vectors, without a mask or scales of their own; rows without elements become zeros.
struct LengthRows {
  RowProblem p;
  fold::Scale<float> scale;
  lift::Factor factor;  ///< of scale.c; plain
  float two_kappa;      ///< LogNormaliser's, which takes a division in double
};

/// Where one row lies, and how much of it exists.
struct LengthRow {
  const char* x;
  char* y;
  int length;
};
__device__ __noinline__ LengthRow length_row(const RowProblem& p, std::int64_t row) {
  const Row r = row_at(p, RowPlace(p, row));
  return {r.x, r.y, static_cast<int>(r.length)};
}

/// A warp's part of a batch. It waits in shared memory while its elements are on their way.
struct LengthJob {
  static constexpr int kNone = -1;
  const char* x;
  char* y;     ///< both of the unit's first element
  int n;       ///< elements that exist: 0 if the batch has no unit for this warp, kNone behind the last batch
  int room;    ///< elements that the row has there
  int mail;    ///< the row's first chunk in the batch
  int chunks;  ///< of the row, that exist
};

/// 32 rows as a warp sees them. In shared memory, not in registers, of which none must be spilled.
struct LengthPage {
  const char* x[32];
  char* y[32];
  int length[32];
  std::int64_t next;  ///< the first row of the next page
  unsigned left;      ///< a bit for each row that is not dealt out
};

/// Deals out rows. A batch is rows of one page that have no more units together than the cluster has warps: the longest
/// that is left, then ever the longest for which there still is room. Every warp of the cluster comes to the same
/// batches by itself.
template <class E, bool kLog>
struct LengthDealer {
  using Unit = LengthUnit<E>;

  int warps, unit;  ///< of the cluster; the warp's place in every batch: neighbours lie in different blocks

  __device__ __forceinline__ LengthDealer() {
    const unsigned blocks = lift::Cluster::size();
    warps = static_cast<int>(blockDim.x / 32 * blocks);
    unit = static_cast<int>(threadIdx.x / 32 * blocks + lift::Cluster::rank());
  }

  /// A page that is all dealt out.
  static __device__ __forceinline__ void begin(LengthPage& page) {
    if (lane_index() == 0) page.next = blockIdx.x / lift::Cluster::size(), page.left = 0;
    __syncwarp();
  }

  /// The warp's part of the next batch; what no element of its rows can exist of, but not in the units, is written.
  __device__ __forceinline__ void next(const RowProblem& p, int clusters, LengthPage& page, LengthJob& job) const {
    if (page.left == 0) turn(p, clusters, page);
    const int lane = static_cast<int>(threadIdx.x) % 32,
              units = (page.length[lane] + Unit::kElements - 1) / Unit::kElements;
    unsigned left = page.left;
    LengthJob own{nullptr, nullptr, left == 0 ? LengthJob::kNone : 0, 0, 0, 0};
    int dealt = 0;
#pragma unroll 1
    while (left != 0 && dealt < warps) {
      const bool fits = (left >> lane & 1U) != 0 && units <= warps - dealt;
      const int longest = __reduce_max_sync(lift::kWholeWarp, fits ? units * 32 + lane : -1);
      if (longest < 0) break;
      const int row = longest % 32, count = longest / 32, part = unit - dealt;
      // Whoever has no unit of the row has at most one of those behind its end.
      const int rest = warps - 1 - unit + (part < 0 ? 0 : count);
      const int begin = (part >= 0 && part < count ? part : rest) * Unit::kElements;
      const int room = min(static_cast<int>(p.n) - begin, Unit::kElements);
      char* y = page.y[row] + begin * Unit::kSize;
      if (part >= 0 && part < count) {
        const int length = page.length[row];
        own = {page.x[row] + begin * Unit::kSize,
               y,
               min(length - begin, Unit::kElements),
               room,
               dealt * Unit::kChunks,
               (length + lift::kChunk - 1) / lift::kChunk};
      } else {
        hide(y, room);
      }
      dealt += count;
      left &= ~(1U << row);
    }
    if (lane == 0) job = own, page.left = left;
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ void turn(const RowProblem& p, int clusters, LengthPage& page) {
    const int lane = lane_index();
    // Pages of nearly one size: a few rows alone would not fill their batch.
    const std::int64_t first = page.next, rows = (p.rows - first + clusters - 1) / clusters;
    const auto count = static_cast<int>(rows > 64 ? 32 : rows > 32 ? (rows + 1) / 2 : rows);
    LengthRow r{nullptr, nullptr, 0};
    if (lane < count) r = length_row(p, first + static_cast<std::int64_t>(lane) * clusters);
    page.x[lane] = r.x, page.y[lane] = r.y, page.length[lane] = r.length;
    if (lane == 0) {
      page.left = count > 0 ? lift::kWholeWarp >> (32 - count) : 0U;
      page.next = first + static_cast<std::int64_t>(count) * clusters;
    }
    __syncwarp();
  }

  /// Nothing in a unit of which no element exists.
  static __device__ __forceinline__ void hide(char* y, int room) {
    float nones[Unit::kWidth];
#pragma unroll
    for (float& none : nones) none = nothing<kLog>();
    const uint4 hidden = Packed<E>::pack(nones);
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < Unit::kVectors; ++j)
      if (Unit::kWidth * (lane + 32 * j) < room) reinterpret_cast<uint4*>(y)[lane + 32 * j] = hidden;
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
template <class E>
__device__ __forceinline__ void fetch_unit(char* place, CopyBarrier& landed, const LengthJob& job) {
  constexpr int kWidth = LengthUnit<E>::kWidth;
  const int bytes = (max(job.n, 0) + kWidth - 1) / kWidth * 16;
  landed.expect(bytes);
  if (bytes > 0) landed.copy(place, job.x, bytes);
}

/// The lane's vectors of a unit's n > 0 elements at `place`; where none is stands some element of the unit.
template <class E>
__device__ __forceinline__ void read_unit(uint4 (&raw)[LengthUnit<E>::kVectors], char* place, int n) {
  using Unit = LengthUnit<E>;
  const int lane = lane_index(), last = (n - 1) / Unit::kWidth, cut = n % Unit::kWidth;
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

template <class E, bool kLog>
__device__ __noinline__ typename LengthUnit<E>::Fold::Folded fold_any(float (&v)[LengthUnit<E>::kCount], float c) {
  using Fold = typename LengthUnit<E>::Fold;
  return kLog ? Fold::reduce(v, c) : Fold::terms(v, c);
}

/// The states of a unit's chunks, `left` of whose elements from the lane's first on exist. v becomes the terms, 0 where
/// no element is, or with kLog the elements.
template <class E, bool kLog>
__device__ __forceinline__ typename LengthUnit<E>::Fold::Folded fold_unit(float (&v)[LengthUnit<E>::kCount],
                                                                          const uint4 (&raw)[LengthUnit<E>::kVectors],
                                                                          float c, int left) {
  using Unit = LengthUnit<E>;
  using S = fold::Scalar<float>;
  constexpr float kMagic = fold::Real<float>::kMagic;
  const auto present = [&](int j, int k) { return left > Unit::kWidth * Unit::kLanes * j + k; };
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
  const auto own = fold_any<E, kLog>(any, c);
#pragma unroll
  for (int i = 0; i < Unit::kCount; ++i) v[i] = any[i];
  return own;
}

/// The results of a unit, of which the warp knows the row's root.
template <class E, bool kLog>
__device__ __forceinline__ void put_unit(const LengthRows& rows, const LengthJob& job, const lift::Root& root,
                                         float (&v)[LengthUnit<E>::kCount],
                                         const typename LengthUnit<E>::Fold::Folded& own, int left) {
  using Unit = LengthUnit<E>;
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
  const int begin = lane / Unit::kLanes * lift::kChunk + lane % Unit::kLanes * Unit::kWidth;
  const int room = job.room - begin;
  char* y = job.y + begin * Unit::kSize;
  // The terms of a chunk without elements are 0: its lanes go the way of the others.
  const float by = own.node.z == lift::kNone ? 1.F : fold::Scalar<float>::mul(multiplier.value, own.unit);
  finish<kLog, Unit::kWidth>(v, own.dense, by, norm, [&](int j) {
    if constexpr (kLog) {
#pragma unroll
      for (int k = 0; k < Unit::kWidth; ++k)
        if (left <= Unit::kWidth * Unit::kLanes * j + k) v[j * Unit::kWidth + k] = nothing<true>();
    }
    const int at = Unit::kWidth * Unit::kLanes * j;
    if (at < room) *reinterpret_cast<uint4*>(y + at * Unit::kSize) = Packed<E>::pack(v + j * Unit::kWidth);
  });
}

/// The node of a chunk, to all blocks of the cluster; returns once the batch's nodes, `bytes` in all, have come from
/// all of its warps. So who has a batch's knows that the nodes of the one before have been read.
template <int kLanes>
__device__ __forceinline__ void exchange(CopyBarrier& arrived, StayMail& mine, unsigned parity, const lift::Node& node,
                                         double far, int bytes) {
  const unsigned blocks = lift::Cluster::size(), lane = threadIdx.x % kLanes;
  if (blocks == 1) {
    if (lane == 0) mine = {node, far}, arrived.arrive();
  } else {
    for (unsigned to = lane; to < blocks; to += kLanes)
      send_words(lift::Cluster::map(&mine, to), lift::Cluster::map(&arrived, to), fold::bits_as<std::uint64_t>(node),
                 fold::bits_as<std::uint64_t>(far));
  }
  // Its scope is the block, as for copies: of shared memory no cache may be out of date, and a wait of the cluster's
  // scope empties the caches.
  arrived.wait(parity);
  if (threadIdx.x == 0 && blocks > 1) arrived.expect(bytes);
}

/// `clusters` of them, each for the rows whose number leaves its own when divided by that.
template <class E, bool kLog>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_lengths_stay(const __grid_constant__ LengthRows rows, int clusters) {
  begin_in_order();
  using Unit = LengthUnit<E>;
  using Cluster = lift::Cluster;
  constexpr int kStages = Unit::kStages, kJobs = 2 * kStages;
  extern __shared__ __align__(16) char memory[];
  __shared__ CopyBarrier arrived[2], landed[kStayWarps][kStages];
  __shared__ LengthJob jobs[kStayWarps][kJobs];
  __shared__ LengthPage pages[kStayWarps];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int mail = warps * static_cast<int>(Cluster::size()) * Unit::kChunks;
  const int mail_bytes = mail * static_cast<int>(sizeof(StayMail));
  const auto place_of = [&](int step) { return memory + (warp * kStages + step % kStages) * Unit::kBytes; };
  const auto box_of = [&](int turn) {
    return StayBox{reinterpret_cast<StayMail*>(memory + warps * kStages * Unit::kBytes + turn * StayBox::bytes(mail))};
  };
  const bool alone = Cluster::size() == 1;
  if (threadIdx.x < 2) arrived[threadIdx.x].init(alone ? mail : 1);
  if (lane_index() < kStages) landed[warp][lane_index()].init(1);
  CopyBarrier::publish();
  if (threadIdx.x < 2 && !alone) arrived[threadIdx.x].expect(mail_bytes);
  __syncwarp();
  const LengthDealer<E, kLog> dealer;
  dealer.begin(pages[warp]);
  const auto job_of = [&](int step) -> LengthJob& { return jobs[warp][step % kJobs]; };
  const auto fetch = [&](int step) {
    if (lane_index() == 0) fetch_unit<E>(place_of(step), landed[warp][step % kStages], job_of(step));
  };
  Cluster::arrive();
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    dealer.next(rows.p, clusters, pages[warp], job_of(stage));
    fetch(stage);
  }
  Cluster::wait();
  const int begin = lane_index() / Unit::kLanes * lift::kChunk + lane_index() % Unit::kLanes * Unit::kWidth;
#pragma unroll 1
  for (int step = 0; job_of(step).n != LengthJob::kNone; ++step) {
    dealer.next(rows.p, clusters, pages[warp], job_of(step + kStages));
    const LengthJob& job = job_of(step);
    const int n = job.n, turn = step % 2;
    const auto send = [&](const lift::Node& node, double far) {
      exchange<Unit::kLanes>(arrived[turn], box_of(turn)[dealer.unit * Unit::kChunks + lane_index() / Unit::kLanes],
                             static_cast<unsigned>(step / 2) & 1U, node, far, mail_bytes);
    };
    landed[warp][step % kStages].wait(static_cast<unsigned>(step / kStages) & 1U);
    if (n == 0) {
      fetch(step + kStages);
      send({lift::kNone, 0.F}, 0.);
      continue;
    }
    float v[Unit::kCount];
    uint4 raw[Unit::kVectors];
    read_unit<E>(raw, place_of(step), n);
    __syncwarp();
    fetch(step + kStages);
    auto own = fold_unit<E, kLog>(v, raw, rows.factor.c, n - begin);
    if (n <= begin / lift::kChunk * lift::kChunk) own.node = {lift::kNone, 0.F};
    const bool is_far = own.node.z == lift::kFar;
    send({own.node.z, is_far ? own.state.d : own.node.d}, own.state.m);
    const auto root = LengthMail{box_of(turn), job.mail}.merge(job.chunks);
    put_unit<E, kLog>(rows, job, root, v, own, n - begin);
  }
  Cluster::arrive();  // nobody leaves while others still send
  Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
