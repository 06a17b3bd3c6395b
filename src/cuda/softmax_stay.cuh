// softmax and log_softmax where results are parked, by clusters that stay for many rows: each warp has its next rows'
// elements brought to shared memory while it folds, exchanges and writes this one, and no block waits for another but
// by what the row's chunks send it.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/parked_results.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 64 elements a lane: a chunk takes 16 lanes, a warp up to two chunks. What a warp does once for its elements is then
/// half as much an element as with 32 a lane.
template <class E>
struct StayShape {
  static constexpr int kCount = 64, kLanes = 16;
  using Place = WarpPart<E, kLanes, kCount>;
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Place::kWidth, kLanes, kCount>;
  static constexpr int kWarpBytes = whole_lines(Place::kBytes);  ///< of shared memory
};

template <class E, int kVectors, int kCount>
__device__ __forceinline__ void unpack(const uint4 (&raw)[kVectors], float (&v)[kCount]) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * (kCount / kVectors));
}

/// Elements that are needed again wait as they came: without this the compiler keeps the floats, twice the registers.
template <int kVectors>
__device__ __forceinline__ void keep_packed(uint4 (&raw)[kVectors]) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) asm volatile("" : "+r"(raw[j].x), "+r"(raw[j].y), "+r"(raw[j].z), "+r"(raw[j].w));
}

/// Of results that are parked (O as of softmax_cluster_row), in shared memory: a chunk's, and a warp's.
template <class O>
inline constexpr int kParkedChunkBytes = ParkedRun<O>::bytes(lift::kChunk);
template <class E, class O>
inline constexpr int kParkedStayBytes = whole_lines(32 / StayShape<E>::kLanes * kParkedChunkBytes<O>);

/// A cluster of blocks a row, as RowSource tells; p.factor is plain, and every warp has a chunk. Results that are
/// parked leave by the copy engine while the next row is folded.
template <class E, class O, bool kLog>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_cluster_stays(const __grid_constant__ PlainRows p, int clusters) {
  begin_in_order();
  using Shape = StayShape<E>;
  using Place = typename Shape::Place;
  using Cluster = lift::Cluster;
  constexpr int kSize = Place::kSize, kLanes = Shape::kLanes;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier arrived[2], landed[kStayWarps];
  using Source = RowSource<>;
  __shared__ Source::Queue queue;
  Source source({p.taken, static_cast<unsigned>(p.rows)}, clusters, queue);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int chunks = static_cast<int>(lift::chunk_count(p.n));
  const ChunkShare share(chunks);
  const std::int64_t begin = static_cast<std::int64_t>(share.chunk) * (lift::kChunk * kSize);
  const int n = min(static_cast<int>(p.n) - share.chunk * lift::kChunk, share.chunks * lift::kChunk);  // of the warp
  const auto x_of = [&](int row) { return p.x + row * p.x_stride + begin; };  // the warp's part
  const auto place_of = [&](const char* first) {
    return Place{landing_memory + warp * Shape::kWarpBytes, first, n, share.chunks};
  };
  const auto fetch = [&](int row) {
    if (lane != 0 || row >= p.rows) return;
    const Place place = place_of(x_of(row));
    landed[warp].expect(place.bytes(p.x_begin, p.x_end));
    place.fetch(landed[warp], p.x_begin, p.x_end);
  };
  // Two by turns: who sends a row's mail has received that of the row before from every warp, and with it the word that
  // they have read the row before that.
  const auto box_of = [&](int turn) {
    return StayBox{
        reinterpret_cast<StayMail*>(landing_memory + warps * Shape::kWarpBytes + turn * StayBox::bytes(chunks))};
  };
  const int mail_bytes = chunks * static_cast<int>(sizeof(StayMail)) + Source::kBytes;
  if (lane == 0) landed[warp].init(1);
  CopyBarrier::publish();
  fetch(source.by_stride(0));
  const RowCounter::Word seen = source.init();
  if (threadIdx.x < 2) arrived[threadIdx.x].init(1);
  CopyBarrier::publish();
  if (threadIdx.x < 2) arrived[threadIdx.x].expect(mail_bytes);
  Cluster::arrive_shared();
  source.begin(seen);
  Cluster::wait();
  source.resume();

  const int chunk = share.chunk + lane / kLanes;
  const bool has_chunk = lane / kLanes < share.chunks;
  const int count = has_chunk ? min(static_cast<int>(p.n) - chunk * lift::kChunk, lift::kChunk) : 0;
#pragma unroll 1
  for (int step = 0; source.row(step) < p.rows; ++step) {
    const int row = source.row(step);
    char* y = p.y + row * p.y_stride + static_cast<std::int64_t>(chunk) * (lift::kChunk * static_cast<int>(sizeof(O)));
    // Fold: the landing place is free again as soon as its elements are in registers.
    float v[Shape::kCount];
    landed[warp].wait(static_cast<unsigned>(step) & 1U);
    source.keep();
    uint4 raw[Place::kVectors];
    place_of(x_of(row)).read(raw, lift::absent(p.factor.c), p.x_begin, p.x_end);
    const auto extremes = extremes_by_integers<E>(raw);
    const int waited = Place::loaded(raw);
    __syncwarp();
    fetch(source.row(step + 1) + waited);
    const int turn = step % 2;
    source.send(step, arrived[turn]);
    unpack<E>(raw, v);
    const auto own = kLog ? Shape::Fold::reduce(v, p.factor.c, extremes) : Shape::Fold::terms(v, p.factor.c, extremes);
    if constexpr (kLog) keep_packed(raw);
    // Exchange.
    if (has_chunk) send_mail<kLanes>(box_of(turn)[chunk], arrived[turn], mail_of(own));
    wait_for_words(arrived[turn], static_cast<unsigned>(step / 2) & 1U);
    if (threadIdx.x == 0) arrived[turn].expect(mail_bytes);
    source.ask();
    const auto root = box_of(turn).merge(chunks);
    // Write. A row is regular for all of its chunks or for none.
    const ChunkMultiplier multiplier(root, own.node, own.state.m);
    const float unit = fold::Scalar<float>::mul(multiplier.value, own.unit);
    if (!multiplier.regular) {
      fill<O, kLog>(y, nullptr, 0, lane % kLanes, kLanes, count, count, constant_of<kLog>(root.state(), p.empty));
      continue;
    }
    if constexpr (kLog) unpack<E>(raw, v);
    const auto log_norm = [&] { return p.log_normaliser(root.state()); };
    finish<kLog, Shape::kCount>(v, own.dense, unit, log_norm, [](int) {});
    char* results = landing_memory + warps * Shape::kWarpBytes + 2 * StayBox::bytes(chunks) +
                    warp * kParkedStayBytes<E, O> + lane / kLanes * kParkedChunkBytes<O>;
    const ParkedRun<O> run{results, y};
    bulk_drain();  // of the row before
    __syncwarp();
    run.template park<false>(typename Shape::Elements(x_of(row)), 0, count, v);
    run.send(count, lane % kLanes, kLanes);
  }
  bulk_drain();
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
  source.end();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
