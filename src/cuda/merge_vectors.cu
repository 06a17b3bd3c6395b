// merge_attention of rows whose elements lie side by side, in vectors of 16 bytes: a warp takes 32 rows, a lane each
// for their shares and then all lanes for their elements. The same arithmetic as merge_parts_rows, so the same bits.
//
// What lanes know of each other's rows lies in shared memory. In arrays of a thread's own, indexed by a run-time part,
// it would be local memory, and its traffic a sixth of the whole. Of few parts a row's shares are worked out in
// registers, all parts beside each other: a loop over the parts through shared memory leaves memory idle for a quarter
// of the time.
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/merge.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kFewParts = 8;  ///< a row's shares are in registers, vectors are copied ahead through shared memory

/// The rows of a block, each in a place of its own.
template <class E>
struct VectorRows {
  static constexpr int kNaN = -1, kEach = 16 / static_cast<int>(sizeof(E));
  std::int64_t from[kThreads], to[kThreads];
  int count[kThreads];  ///< live parts; kNaN: the row is NaN
  // and then, for each part: double share[kThreads], float weight[kThreads] and unsigned char live[kThreads], the last
  // two in the order of live parts

  static __host__ __device__ constexpr int bytes(int parts) {
    return static_cast<int>(sizeof(VectorRows)) +
           parts * kThreads * static_cast<int>(sizeof(double) + sizeof(float) + 1);
  }
  __device__ double* shares() { return reinterpret_cast<double*>(this + 1); }
  __device__ float* weights(int parts) { return reinterpret_cast<float*>(shares() + parts * kThreads); }
  __device__ unsigned char* live(int parts) {
    return reinterpret_cast<unsigned char*>(weights(parts) + parts * kThreads);
  }

  /// Where a row's elements lie. Gives where its statistics do.
  __device__ RowOffsets<4> find(const MergeProblem& p, std::int64_t row, int place) {
    const RowOffsets<4> o(p, row, {&p.value.view, &p.out_value.view, &p.statistic.view, &p.out_statistic.view});
    from[place] = o.at[0], to[place] = o.at[1];
    return o;
  }
  /// What the parts of a row that was found contribute.
  __device__ void share_out(const MergeProblem& p, const RowOffsets<4>& found, int place) {
    const Shares s(p, found.at[2], Column<double, kThreads>{shares() + place},
                   Column<unsigned char, kThreads>{live(p.parts) + place});
    write_statistic(p, found.at[3], s.joint);
    count[place] = s.count > 0 && fold::is_nan(s.share[s.live[0]]) ? kNaN : s.count;
    for (int k = 0; k < s.count; ++k) weights(p.parts)[k * kThreads + place] = static_cast<float>(s.share[s.live[k]]);
  }
};

/// A warp's 32 rows, whose vectors are counted through.
struct WarpRows {
  std::int64_t first;
  int lane, place;           ///< place of the first row in the block's
  int vectors, log_vectors;  ///< a row's; log2 of that, or -1
  int total;

  template <class E>
  __device__ WarpRows(const MergeProblem& p, int log_of_vectors, E)
      : lane(static_cast<int>(threadIdx.x) % 32),
        place(static_cast<int>(threadIdx.x) - lane),
        vectors(static_cast<int>(p.n) / VectorRows<E>::kEach),
        log_vectors(log_of_vectors) {
    first = static_cast<std::int64_t>(blockIdx.x) * kThreads + place;
    total = static_cast<int>(min(max(p.rows - first, std::int64_t{0}), std::int64_t{32})) * vectors;
  }
  __device__ bool has_row() const { return lane * vectors < total; }
  __device__ int row_of(int vector) const { return log_vectors >= 0 ? vector >> log_vectors : vector / vectors; }
  /// Bytes from the row's first element.
  __device__ int byte_of(int vector) const { return 16 * (vector - row_of(vector) * vectors); }
};

/// Packs the elements; a NaN gets the bits that it has everywhere.
template <class E, int kEach>
__device__ uint4 pack_elements(const float (&x)[kEach]) {
  bool nan = false;
#pragma unroll
  for (const float e : x) nan |= fold::is_nan(e);
  if (!nan) return Packed<E>::pack(x);
  E narrow[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) narrow[i] = fold::narrow<E>(x[i]);
  return Packed<E>::join(narrow);
}

/// sum = share_0 x_0, then an FMA for each further live part.
template <class E, int kEach>
__device__ __forceinline__ void add_part(uint4 raw, float weight, bool is_first, float (&sum)[kEach]) {
  float x[kEach];
  Packed<E>::unpack(raw, x);
#pragma unroll
  for (int e = 0; e < kEach; ++e) sum[e] = is_first ? __fmul_rn(x[e], weight) : __fmaf_rn(x[e], weight, sum[e]);
}

/// Asynchronous copies of 16 bytes to shared memory, in groups (PTX ISA, "cp.async").
__device__ __forceinline__ void copy_ahead(uint4* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen>
__device__ __forceinline__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// What a row's parts contribute, from the largest share down, for few parts: in registers, then in shared memory.
template <int kParts>
struct Ranked {
  static constexpr unsigned kNone = 0xFF, kNaN = 0xFE;  ///< no further part; the row is NaN
  float weight[kParts];
  unsigned parts[(kParts + 3) / 4];  ///< a byte each

  __device__ unsigned part(int k) const { return parts[k / 4] >> k % 4 * 8 & 0xFFU; }
  __device__ void rank(const double (&shares)[kParts]) {
    constexpr auto least = static_cast<double>(fold::Real<float>::kSmallest);
    double share[kParts];
    unsigned of[kParts];
#pragma unroll
    for (int k = 0; k < kParts; ++k) share[k] = shares[k], of[k] = static_cast<unsigned>(k);
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
#pragma unroll
      for (int j = i; j > 0; --j) {
        const bool swap = share[j - 1] < share[j];
        const double high = swap ? share[j] : share[j - 1];
        const unsigned first = swap ? of[j] : of[j - 1];
        share[j] = swap ? share[j - 1] : share[j], of[j] = swap ? of[j - 1] : of[j];
        share[j - 1] = high, of[j - 1] = first;
      }
    }
    const bool nan = fold::is_nan(share[0]);
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      weight[k] = static_cast<float>(share[k]);
      if (k % 4 == 0) parts[k / 4] = 0;
      parts[k / 4] |= (share[k] >= least ? of[k] : nan ? kNaN : kNone) << k % 4 * 8;
    }
  }
};

/// The statistics of a row's parts, one number each.
template <int kParts>
struct LogsOfRow {
  double log[kParts];
  __device__ LogsOfRow(const MergeProblem& p, std::int64_t at) {
#pragma unroll
    for (int k = 0; k < kParts; ++k)
      log[k] = k < p.parts ? real_at(p.statistic.view.dtype, p.statistic.data[static_cast<std::size_t>(k)] + at)
                           : -fold::infinity<double>();
  }
  __device__ fold::PartSum operator[](int i) const { return {log[i], 1.}; }
};

/// What a block of the kernel below holds beside its ring.
template <int kParts>
struct RankedRows {
  std::int64_t from[kThreads], to[kThreads];
  Ranked<kParts> ranked[kThreads];
};

/// Up to kParts parts with one number each. All vectors are copied kDepth - 1 steps ahead of their use, the first ones
/// before the shares are known: memory is never idle. A step is a vector a lane, of every part.
template <class E, int kParts, int kDepth>
__global__ void __launch_bounds__(kThreads, kParts <= 2 ? 8 : 6)
    merge_attention_ring(const __grid_constant__ MergeProblem p, int log_vectors) {
  begin_in_order();
  constexpr int kEach = VectorRows<E>::kEach;
  extern __shared__ __align__(16) char memory[];
  const WarpRows warp(p, log_vectors, E());
  if (warp.total == 0) return;
  const int lane = warp.lane, mine = warp.place + lane;
  uint4* ring = reinterpret_cast<uint4*>(memory) + warp.place * kDepth * kParts;
  auto& rows = *reinterpret_cast<RankedRows<kParts>*>(memory + kThreads * kDepth * kParts * sizeof(uint4));
  const RowOffsets<4> found(p, warp.first + (warp.has_row() ? lane : 0),
                            {&p.value.view, &p.out_value.view, &p.statistic.view, &p.out_statistic.view});
  rows.from[mine] = found.at[0], rows.to[mine] = found.at[1];
  const LogsOfRow<kParts> logs(p, found.at[2]);
  __syncwarp();
  const auto copy_step = [&](int i, int slot) {
    if (i < warp.total) {
      const std::int64_t at = rows.from[warp.place + warp.row_of(i)] + warp.byte_of(i);
#pragma unroll
      for (int k = 0; k < kParts; ++k)
        if (k < p.parts)
          copy_ahead(ring + (slot * kParts + k) * 32 + lane, p.value.data[static_cast<std::size_t>(k)] + at);
    }
    close_group();
  };
#pragma unroll
  for (int s = 0; s < kDepth - 1; ++s) copy_step(32 * s + lane, s);
  double share[kParts];
  const fold::PartSum joint = fold::join_parts(logs, kParts, p.base == LogBase::two, share);
  if (warp.has_row()) write_statistic(p, found.at[3], joint);
  rows.ranked[mine].rank(share);
  for (int i = lane, slot = 0; i - lane < warp.total; i += 32, slot = slot + 1 == kDepth ? 0 : slot + 1) {
    __syncwarp();
    copy_step(i + 32 * (kDepth - 1), slot == 0 ? kDepth - 1 : slot - 1);
    wait_for_all_but<kDepth - 1>();
    if (i >= warp.total) continue;
    const int place = warp.place + warp.row_of(i);
    const Ranked<kParts> ranked = rows.ranked[place];
    float sum[kEach];
#pragma unroll
    for (float& x : sum) x = ranked.part(0) == ranked.kNaN ? fold::canonical_nan<float>() : 0.F;
#pragma unroll
    for (int k = 0; k < kParts; ++k)
      if (const unsigned part = ranked.part(k); part < kParts)
        add_part<E>(ring[(slot * kParts + static_cast<int>(part)) * 32 + lane], ranked.weight[k], k == 0, sum);
    *reinterpret_cast<uint4*>(p.out_value.data[0] + rows.to[place] + warp.byte_of(i)) = pack_elements<E>(sum);
  }
}

/// Any number of parts.
template <class E>
__global__ void __launch_bounds__(kThreads, 8)
    merge_attention_vectors(const __grid_constant__ MergeProblem p, int log_vectors) {
  begin_in_order();
  using Rows = VectorRows<E>;
  constexpr int kAhead = 2;
  extern __shared__ __align__(16) char memory[];
  Rows& rows = *reinterpret_cast<Rows*>(memory);
  const WarpRows warp(p, log_vectors, E());
  if (warp.has_row()) {
    const int place = warp.place + warp.lane;
    rows.share_out(p, rows.find(p, warp.first + warp.lane, place), place);
  }
  __syncwarp();
  const float* weights = rows.weights(p.parts);
  const unsigned char* live = rows.live(p.parts);
  for (int begin = warp.lane; begin < warp.total; begin += 32 * kAhead) {
    float sum[kAhead][Rows::kEach];
    int place[kAhead], at[kAhead], count[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int i = begin + 32 * u;
      const bool there = i < warp.total;
      place[u] = warp.place + (there ? warp.row_of(i) : 0), at[u] = warp.byte_of(i);
      count[u] = there ? rows.count[place[u]] : 0;
#pragma unroll
      for (float& x : sum[u]) x = count[u] == Rows::kNaN ? fold::canonical_nan<float>() : 0.F;
    }
    // Two parts at a time: the second one's reads do not wait for the first one's.
    for (int k = 0; k < p.parts; k += 2) {
      uint4 raw[2][kAhead];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          if (k + j >= count[u]) continue;
          const char* part = p.value.data[live[(k + j) * kThreads + place[u]]];
          raw[j][u] = __ldcs(reinterpret_cast<const uint4*>(part + rows.from[place[u]] + at[u]));
        }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int u = 0; u < kAhead; ++u)
          if (k + j < count[u]) add_part<E>(raw[j][u], weights[(k + j) * kThreads + place[u]], k + j == 0, sum[u]);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
      if (begin + 32 * u < warp.total)
        *reinterpret_cast<uint4*>(p.out_value.data[0] + rows.to[place[u]] + at[u]) = pack_elements<E>(sum[u]);
  }
}

template <class E, int kParts, int kDepth>
void run_ring(const MergeProblem& p, Stream stream, int log_vectors) {
  constexpr int kRing = kThreads * kDepth * kParts * static_cast<int>(sizeof(uint4));
  const Grid grid{(p.rows + kThreads - 1) / kThreads, kThreads, 1,
                  kRing + static_cast<int>(sizeof(RankedRows<kParts>))};
  launch("merge_attention_ring", merge_attention_ring<E, kParts, kDepth>, grid, stream, p, log_vectors);
}

template <class E>
void run_as(const MergeProblem& p, const Context& context) {
  const auto vectors = static_cast<unsigned>(p.n) / VectorRows<E>::kEach;
  const int log_vectors = std::has_single_bit(vectors) ? std::countr_zero(vectors) : -1;
  const Stream stream = stream_of(context);
  if (p.statistics == Statistics::lse && p.parts <= kFewParts) {
    if (p.parts <= 2) return run_ring<E, 2, 4>(p, stream, log_vectors);
    if (p.parts <= 4) return run_ring<E, 4, 4>(p, stream, log_vectors);
    return run_ring<E, 8, 2>(p, stream, log_vectors);
  }
  const Grid grid{(p.rows + kThreads - 1) / kThreads, kThreads, 1, VectorRows<E>::bytes(p.parts)};
  launch("merge_attention_vectors", merge_attention_vectors<E>, grid, stream, p, log_vectors);
}

}  // namespace

const char* merge_vectors_refuse(const MergeProblem& p, const Context&) {
  if (p.op != Op::merge_attention) return "not merge_attention";
  const DType t = p.value.view.dtype;
  if (t == DType::float64 || p.out_value.view.dtype != t) return "float64, or out has another dtype than the parts";
  const auto size = static_cast<std::int64_t>(size_of(t));
  if (p.n == 0 || p.n * size % 16 != 0 || p.n >= 1 << 24)
    return "rows of nothing, not a multiple of 16 bytes, or 2^24 elements or longer";
  const auto refuses = [&](const MergeProblem::Operands& o, int count) {
    bool aligned = o.view.axis_stride == size;
    for (int i = 0; i < count; ++i)
      aligned &= reinterpret_cast<std::uintptr_t>(o.data[static_cast<std::size_t>(i)]) % 16 == 0;
    for (int i = 0; i < p.outer_rank; ++i) aligned &= o.view.strides[static_cast<std::size_t>(i)] % 16 == 0;
    return !aligned;
  };
  if (refuses(p.value, p.parts) || refuses(p.out_value, 1)) return "rows do not lie on 16 bytes";
  return nullptr;
}

void run_merge_vectors(const MergeProblem& p, const Context& context) {
  const DeviceOf device(p.statistic.data[0]);
  switch (p.value.view.dtype) {
    case DType::bfloat16: return run_as<fold::BFloat16>(p, context);
    case DType::float16: return run_as<fold::Float16>(p, context);
    default: return run_as<float>(p, context);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
