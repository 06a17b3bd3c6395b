// merge_attention of rows whose elements lie side by side, in vectors of 16 bytes: a warp takes 32 rows, a lane each
// for their shares and then all lanes for their elements. The same arithmetic as merge_parts_rows, so the same bits.
//
// What lanes know of each other's rows lies in shared memory. In arrays of a thread's own, indexed by a run-time part,
// it would be local memory, and its traffic a sixth of the whole.
#include "cuda/launch.hpp"
#include "cuda/merge.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kFewParts = 4;  ///< their vectors are copied ahead through shared memory, which is too small for more

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

/// Few parts. All vectors are copied kDepth - 1 steps ahead of their use, the first ones before the shares are known:
/// memory is never idle. A step is a vector a lane, of every part.
template <class E, int kDepth>
__global__ void __launch_bounds__(kThreads, 8)
    merge_attention_ring(const __grid_constant__ MergeProblem p, int log_vectors) {
  using Rows = VectorRows<E>;
  extern __shared__ __align__(16) char memory[];
  const WarpRows warp(p, log_vectors, E());
  if (warp.total == 0) return;
  const int parts = p.parts, lane = warp.lane;
  uint4* ring = reinterpret_cast<uint4*>(memory) + warp.place * kDepth * parts;
  Rows& rows = *reinterpret_cast<Rows*>(memory + kThreads * kDepth * parts * sizeof(uint4));
  const RowOffsets<4> found = rows.find(p, warp.first + (warp.has_row() ? lane : 0), warp.place + lane);
  __syncwarp();
  const auto copy_step = [&](int i, int slot) {
    if (i < warp.total) {
      const std::int64_t at = rows.from[warp.place + warp.row_of(i)] + warp.byte_of(i);
      for (int k = 0; k < parts; ++k) copy_ahead(ring + (slot * parts + k) * 32 + lane, p.value.data[k] + at);
    }
    close_group();
  };
  for (int s = 0; s < kDepth - 1; ++s) copy_step(32 * s + lane, s);
  if (warp.has_row()) rows.share_out(p, found, warp.place + lane);
  const float* weights = rows.weights(parts);
  const unsigned char* live = rows.live(parts);
  for (int i = lane, slot = 0; i - lane < warp.total; i += 32, slot = slot + 1 == kDepth ? 0 : slot + 1) {
    __syncwarp();
    copy_step(i + 32 * (kDepth - 1), slot == 0 ? kDepth - 1 : slot - 1);
    wait_for_all_but<kDepth - 1>();
    if (i >= warp.total) continue;
    const int place = warp.place + warp.row_of(i), count = rows.count[place];
    float sum[Rows::kEach];
#pragma unroll
    for (float& x : sum) x = count == Rows::kNaN ? fold::canonical_nan<float>() : 0.F;
    for (int k = 0; k < count; ++k)
      add_part<E>(ring[(slot * parts + live[k * kThreads + place]) * 32 + lane], weights[k * kThreads + place], k == 0,
                  sum);
    *reinterpret_cast<uint4*>(p.out_value.data[0] + rows.to[place] + warp.byte_of(i)) = pack_elements<E>(sum);
  }
}

/// Any number of parts.
template <class E>
__global__ void __launch_bounds__(kThreads, 8)
    merge_attention_vectors(const __grid_constant__ MergeProblem p, int log_vectors) {
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

template <class E>
void run_as(const MergeProblem& p, const Context& context) {
  const auto vectors = static_cast<unsigned>(p.n) / VectorRows<E>::kEach;
  const int log_vectors = std::has_single_bit(vectors) ? std::countr_zero(vectors) : -1;
  Grid grid{(p.rows + kThreads - 1) / kThreads, kThreads, 1, VectorRows<E>::bytes(p.parts)};
  const auto start = [&](const char* name, auto kernel) {
    launch(name, kernel, grid, stream_of(context), p, log_vectors);
  };
  if (p.parts > kFewParts) return start("merge_attention_vectors", merge_attention_vectors<E>);
  const int depth = p.parts > 2 ? 3 : 4;
  grid.shared_bytes += kThreads * depth * p.parts * static_cast<int>(sizeof(uint4));
  if (depth == 3) return start("merge_attention_ring", merge_attention_ring<E, 3>);
  start("merge_attention_ring", merge_attention_ring<E, 4>);
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
