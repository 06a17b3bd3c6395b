// kl_divergence of plain rows from their states, a chunk of both rows a warp: what is found once a row by one thread,
// the sums, and the gradients by a read of their own. Every step keeps all processors busy, however long the rows are.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/kl_rows.cuh"
#include "cuda/plain_chunk.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What is known of a pair of rows before an element is read.
struct alignas(16) KlPlainRow {
  enum class Kind : int { nothing, exact, beyond };
  PlainKl rows;
  float divergence, factor;  ///< for the gradients
  Kind kind;                 ///< nothing: no sums; beyond: by the scalar definition
};

/// A thread a row. sums: null before they are there; after it, the rows' divergences are written too.
static __global__ void __launch_bounds__(128)
    prepare_plain_kl(const __grid_constant__ KlProblem p, const KlNode<float>* sums, KlPlainRow* rows) {
  begin_in_order();
  using Kind = KlPlainRow::Kind;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const KlRows<float> r(p, index);
  const KlNode<float> sum = sums == nullptr ? KlFold<float>::identity() : sums[index];
  const Operand& kl = p[KlSlot::kl];
  if (sums != nullptr && p.op == Op::kl_divergence)
    put(kl.dtype, kl.data + r.place.offset(kl), r.pair.divergence(p.empty, sum));
  if (sums != nullptr && rows == nullptr) return;
  const bool regular = r.pair.is_regular();
  const fold::KlDivergence<float> of =
      r.pair.rows(sums == nullptr || !regular ? 0. : KlGradients<float>::correction(sum));
  Kind kind = !regular ? Kind::nothing : of.exact ? Kind::exact : Kind::beyond;
  if (sums != nullptr && (kind == Kind::nothing || !KlGradients<float>(r.pair, sum).p_regular)) kind = Kind::beyond;
  rows[index] = {PlainKl(r.pair, of), sum.divergence, r.factor(p), kind};
}

static __device__ __noinline__ KlNode<float> sum_kl_from_memory(const KlProblem& p, std::int64_t index,
                                                                std::int64_t begin) {
  return kl_chunk_sums(p, KlRows<float>(p, index), begin + threadIdx.x % 32);
}
static __device__ __noinline__ void write_kl_from_memory(const KlProblem& p, std::int64_t index, KlNode<float> sum,
                                                         std::int64_t begin) {
  write_kl_share(p, KlRows<float>(p, index), sum, {index, begin + threadIdx.x % 32, 32, lift::kPerLane});
}

template <class E>
__global__ void __launch_bounds__(256, 2)
    sum_plain_kl(const __grid_constant__ KlProblem p, std::int64_t chunks, lift::Factor factor, const KlPlainRow* rows,
                 KlNode<float>* sums) {
  begin_in_order();
  using Kind = KlPlainRow::Kind;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const char *x = chunk.in(p, p[Slot::x]), *q = chunk.in(p, p[KlSlot::q]);
  KlTile<E> tile(x);
  tile.load(x, q, nullptr, 0, chunk.n, factor);
  const KlPlainRow row = rows[chunk.row];
  KlNode<float> sum = KlFold<float>::identity();
  if (row.kind == Kind::exact) sum = tile.sum(row.rows, chunk.n);
  if (row.kind == Kind::beyond) sum = sum_kl_from_memory(p, chunk.row, chunk.begin);
  if (threadIdx.x % 32 == 0) sums[item] = sum;
}

/// From the end: what the sums' read has left in the L2 cache is the end.
template <class E>
__global__ void __launch_bounds__(256, 2)
    write_plain_kl(const __grid_constant__ KlProblem p, std::int64_t chunks, lift::Factor factor,
                   const KlPlainRow* rows, const KlNode<float>* sums) {
  begin_in_order();
  const std::int64_t item =
      p.rows * chunks - 1 - (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item < 0) return;
  const PlainChunk<E> chunk(p, item, chunks);
  const char *x = chunk.in(p, p[Slot::x]), *q = chunk.in(p, p[KlSlot::q]);
  const KlPlainRow row = rows[chunk.row];
  if (row.kind != KlPlainRow::Kind::exact) return write_kl_from_memory(p, chunk.row, sums[chunk.row], chunk.begin);
  KlTile<E> tile(x);
  tile.load(x, q, nullptr, 0, chunk.n, factor);
  tile.to_gradients(row.rows, row.divergence, row.factor);
  if (p[Slot::y].given) tile.tile.store_checked(chunk.in(p, p[Slot::y]), chunk.n, tile.a);
  if (p[KlSlot::dq].given) tile.tile.store_checked(chunk.in(p, p[KlSlot::dq]), chunk.n, tile.b);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
