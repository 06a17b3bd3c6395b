// kl_divergence and its gradients with one read: both rows wait in registers between their states, their sums and the
// write.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/kl.cuh"
#include "cuda/plain_chunk.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// fold::KlDivergence of two rows in the fast range, c > 0, where it is exact.
struct PlainKl {
  PlainProbability p, q;
  float c, scale, scale_low, shift, shift_low;

  __device__ __forceinline__ PlainKl(const KlPair<float>& pair, const fold::KlDivergence<float>& rows)
      : p(pair.p),
        q(pair.q),
        c(pair.c),
        scale(rows.scale),
        scale_low(rows.scale_low),
        shift(rows.shift),
        shift_low(rows.shift_low) {}

  __device__ __forceinline__ float log_ratio(float a, float b) const {
    return fold::kl_log_ratio<fold::Scalar<float>>(a, b, scale, scale_low, shift, shift_low);
  }
  __device__ __forceinline__ KlNode<float> leaf(float a, float b) const {
    const auto leaf = fold::kl_leaf<fold::Scalar<float>>(p(a, c), q(b, c), log_ratio(a, b));
    return {leaf.divergence, leaf.ratio};
  }
};

/// Where rows are not exact, their chunk's sums and gradients, from memory.
__device__ __noinline__ inline KlNode<float> kl_sums_beyond(const KlProblem& p, std::int64_t index,
                                                            fold::LogSumExp<float>::State of_p,
                                                            fold::LogSumExp<float>::State of_q, std::int64_t begin) {
  return kl_chunk_sums(p, KlRows<float>(p, index, of_p, of_q), begin + threadIdx.x % 32);
}
__device__ __noinline__ inline void write_kl_beyond(const KlProblem& p, std::int64_t index,
                                                    fold::LogSumExp<float>::State of_p,
                                                    fold::LogSumExp<float>::State of_q, KlNode<float> sum,
                                                    std::int64_t begin) {
  write_kl_share(p, KlRows<float>(p, index, of_p, of_q), sum, {index, begin + threadIdx.x % 32, 32, lift::kPerLane});
}

/// Up to 1024 neighbouring elements of both rows, 32 a lane, in the layout of Tile.
template <class E>
struct KlTile {
  using Elements = Tile<E, 32>;
  static constexpr int kWidth = Elements::kWidth, kVectors = Elements::kVectors;

  Elements tile;
  float a[lift::kPerLane], b[lift::kPerLane];
  unsigned present;  ///< which slots hold an element that is there

  __device__ __forceinline__ explicit KlTile(const void* first) : tile(first), present(0) {}

  /// Elements [0, n) where the mask, if any, is not 0; -inf elsewhere.
  __device__ __forceinline__ void load(const char* at_a, const char* at_b, const char* mask, std::int64_t mask_stride,
                                       int n, const lift::Factor& factor) {
    const float missing = lift::absent(factor.c);
    uint4 raw_a[kVectors], raw_b[kVectors];
    tile.gather(raw_a, at_a, n, missing);
    tile.gather(raw_b, at_b, n, missing);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      Packed<E>::unpack(raw_a[j], a + j * kWidth);
      Packed<E>::unpack(raw_b[j], b + j * kWidth);
    }
    if (!factor.plain) tile.multiply(a, n, factor.times), tile.multiply(b, n, factor.times);
    present = tile.present(mask, mask_stride, n);
    if (mask == nullptr) return;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i)
      if ((present >> i & 1U) == 0) a[i] = b[i] = missing;
  }

  /// The tree over elements [0, n); beyond them is nothing.
  __device__ __forceinline__ KlNode<float> sum(const PlainKl& rows, int n) const {
    float divergence[kWidth], ratio[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      KlNode<float> column[kVectors];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const auto leaf = rows.leaf(a[j * kWidth + k], b[j * kWidth + k]);
        column[j] = tile.element(j, k) < n ? leaf : KlFold<float>::identity();
      }
#pragma unroll
      for (int stride = kVectors / 2; stride > 0; stride /= 2) {
#pragma unroll
        for (int j = 0; j < stride; ++j) column[j] = KlFold<float>::merge(column[j], column[j + stride]);
      }
      divergence[k] = column[0].divergence, ratio[k] = column[0].ratio;
    }
    return {lift::add_across<kWidth, 32>(divergence), lift::add_across<kWidth, 32>(ratio)};
  }

  /// Elements to gradients; 0 for what is not there.
  __device__ __forceinline__ void to_gradients(const PlainKl& rows, float divergence, float factor) {
    using S = fold::Scalar<float>;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) {
      const float p = rows.p(a[i], rows.c), q = rows.q(b[i], rows.c), r = rows.log_ratio(a[i], b[i]);
      a[i] = fold::canonical(S::mul(fold::kl_slope_of_p<S>(p, r, divergence), factor));
      b[i] = fold::canonical(S::mul(fold::kl_slope_of_q<S>(p, q, r), factor));
    }
    if (present == 0xFFFFFFFFU) return;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i)
      if ((present >> i & 1U) == 0) a[i] = b[i] = 0.F;
  }
};

/// The chunks' sums, from every warp of every block of a cluster to all of its threads.
struct KlExchange {
  using Storage = lift::ClusterWords<KlNode<float>, 256>;

  static __device__ __forceinline__ KlNode<float> fold(Storage& storage, const KlNode<float>& own, int chunk,
                                                       int chunks) {
    if (chunk < chunks) Storage::send<32>(storage[chunk], own);
    Storage::meet();
    KlNode<float> node[8];
    const int first = static_cast<int>(threadIdx.x) % 32 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) node[i] = first + i < chunks ? storage[first + i] : KlFold<float>::identity();
#pragma unroll
    for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
      for (int i = 0; i < 8; i += 2 * stride) node[i] = KlFold<float>::merge(node[i], node[i + stride]);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      node[0] = KlFold<float>::merge(node[0], shuffle(node[0], distance));
    return node[0];
  }
};

/// A block or a cluster of blocks a pair of rows, one chunk of both a warp.
template <class E>
__global__ void __launch_bounds__(512, 1) kl_cluster_rows(const __grid_constant__ KlProblem p) {
  begin_in_order();
  using States = lift::ClusterFold<256>;
  using Fold = lift::WarpFold<KlTile<E>::kWidth>;
  using State = fold::LogSumExp<float>::State;
  __shared__ typename States::Storage p_nodes, q_nodes;
  __shared__ KlExchange::Storage nodes;
  States::begin();
  const int chunk = static_cast<int>(lift::Cluster::rank() * (blockDim.x / 32) + threadIdx.x / 32);
  const std::int64_t index = blockIdx.x / lift::Cluster::size(), begin = std::int64_t{chunk} * lift::kChunk;
  const std::int64_t bytes = begin * static_cast<std::int64_t>(sizeof(E));
  const bool backward = p.op == Op::kl_divergence_backward;
  // Phase 1: the elements and their states.
  const auto none = fold::LogSumExp<float>::identity();
  KlRows<float> r(p, index, none, none);
  const int n = static_cast<int>(clamp(r.row.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(r.row.length - begin, lift::kChunk));
  const int chunks = static_cast<int>(lift::chunk_count(r.row.length));
  KlTile<E> tile(r.row.x);
  lift::Node of_p{lift::kNone, 0.F}, of_q = of_p;
  State p_far = none, q_far = none;
  if (length > 0) {
    lift::Factor factor(r.pair.c);
    factor.times = r.pair.times, factor.plain = r.pair.times == 1.F;
    const char* mask = r.row.mask == nullptr ? nullptr : r.row.mask + begin * p[Slot::mask].axis_stride;
    tile.load(r.row.x + bytes, r.q + bytes, mask, p[Slot::mask].axis_stride, length, factor);
    if (!backward) {
      const auto folded_p = Fold::reduce(tile.a, r.pair.c), folded_q = Fold::reduce(tile.b, r.pair.c);
      of_p = folded_p.node, p_far = folded_p.state;
      of_q = folded_q.node, q_far = folded_q.state;
    }
  }
  States::ready();
  if (backward) {
    r = KlRows<float>(p, index);
  } else {
    const State s = States::fold(p_nodes, of_p, p_far, chunk, chunks).state();
    r.pair = KlPair<float>(r.row.scale, s, States::fold(q_nodes, of_q, q_far, chunk, chunks).state());
  }
  // Phase 2: the sums.
  KlNode<float> sum = KlFold<float>::identity();
  bool exact = false;
  if (r.pair.is_regular()) {
    const fold::KlDivergence<float> rows = r.pair.rows(0.);
    exact = rows.exact;
    if (length > 0)
      sum = exact ? tile.sum(PlainKl(r.pair, rows), length)
                  : kl_sums_beyond(p, index, r.pair.p_state, r.pair.q_state, begin);
    sum = KlExchange::fold(nodes, sum, chunk, chunks);
  }
  if (!backward && chunk == 0 && threadIdx.x == 0) {
    const auto at = [&](const Operand& o) { return o.data + r.place.offset(o); };
    const Operand &kl = p[KlSlot::kl], &p_states = p[Slot::states], &q_states = p[KlSlot::q_states];
    put(kl.dtype, at(kl), r.pair.divergence(p.empty, sum));
    if (p_states.given)
      *reinterpret_cast<StoredState*>(at(p_states)) = stored_state<float>(r.pair.p_state, r.row.scale);
    if (q_states.given)
      *reinterpret_cast<StoredState*>(at(q_states)) = stored_state<float>(r.pair.q_state, r.row.scale);
  }
  // Phase 3: the gradients.
  if (n <= 0 || (!p[Slot::y].given && !p[KlSlot::dq].given)) return;
  if (!exact || !KlGradients<float>(r.pair, sum).p_regular)
    return write_kl_beyond(p, index, r.pair.p_state, r.pair.q_state, sum, begin);
  const PlainKl rows(r.pair, r.pair.rows(KlGradients<float>::correction(sum)));
  if (length > 0) {
    tile.to_gradients(rows, sum.divergence, r.factor(p));
  } else {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) tile.a[i] = tile.b[i] = 0.F;
  }
  if (p[Slot::y].given) tile.tile.store_checked(r.row.y + bytes, n, tile.a);
  if (p[KlSlot::dq].given) tile.tile.store_checked(r.dq(p) + bytes, n, tile.b);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
