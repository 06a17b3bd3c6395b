// softmax_across_tiles: the kernel.
#pragma once

#include "cuda/across_group.cuh"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A tile whose elements lie far apart or are special: a row a warp at a time, by the general fold.
template <class E, bool kLog, bool kCluster>
__device__ __noinline__ void across_any(const AcrossTiles& p, typename AcrossGroup<E, kLog, kCluster>::Mail& mail,
                                        const char* elements, unsigned tile) {
  using Fold = lift::WarpFold<1>;
  using Lse = fold::LogSumExp<float>;
  using Cluster = lift::Cluster;
  constexpr int kCount = lift::kPerLane, kSize = static_cast<int>(sizeof(E));
  const AcrossGroup<E, kLog, kCluster> group(p, mail, nullptr);
  auto& states = mail.states;
  const lift::Factor factor(p.scale.c);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = group.thread / 32, n = group.length();
  const auto outer = static_cast<int>(tile / p.across);
  const int column = static_cast<int>(tile - static_cast<unsigned>(outer) * p.across) * p.words * group.kRows;
  const int rows = min(p.words * group.kRows, p.inner - column);
  char* y = p.y + outer * p.y_outer + std::int64_t{group.rank()} * lift::kChunk * p.y_axis + column * kSize;
  float v[kCount];
  const auto fold_row = [&](int row) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = lane + 32 * j;
      const auto at = reinterpret_cast<const E*>(elements + i * p.words * 4 + row * kSize);
      v[j] = i < n ? fold::widen(*at) : lift::absent(factor.c);
    }
    return kLog ? Fold::reduce(v, factor.c) : Fold::terms(v, factor.c);
  };
  for (int row = warp; row < rows && kCluster; row += p.warps) {
    const auto own = fold_row(row).state;
    if (lane >= group.blocks()) continue;
    const unsigned to = Cluster::map(&states[group.rank()][row], static_cast<unsigned>(lane));
    Cluster::store(to, fold::bits_as<std::uint64_t>(own.m));
    Cluster::store(to + 8, std::uint64_t{fold::bits_as<std::uint32_t>(own.d)});
  }
  if (kCluster) {
    Cluster::arrive();
    Cluster::wait();
  }
  for (int row = warp; row < rows; row += p.warps) {
    const auto own = fold_row(row);
    auto state = own.state;
    if (kCluster) {
      state = lane < group.blocks() ? states[lane][row] : Lse::identity();
      state = lift::merge_lanes(state);
    }
    const fold::Normaliser<float> norm(state);
    if (norm.regular) {
      const float multiplier = fold::Scalar<float>::mul(norm.multiplier(own.state.m), own.unit);
      finish<kLog>(v, own.dense, factor, multiplier, state, p.scale);
    }
    const Constant constant = constant_of<kLog>(state, p.empty);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = lane + 32 * j;
      if (i < n)
        *reinterpret_cast<E*>(y + i * p.y_axis + row * kSize) =
            norm.regular ? Packed<E>::narrow(v[j]) : fold::narrow<E>(constant.value);
    }
  }
  if (kCluster) {  // the next tile's states come to the same place
    Cluster::arrive();
    Cluster::wait();
  }
}

template <class E, bool kLog, bool kCluster>
__global__ void __launch_bounds__(kTileWarps * 32, 1)
    softmax_across_tiles(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                         const __grid_constant__ AcrossTiles p) {
  begin_in_order();
  using Group = AcrossGroup<E, kLog, kCluster>;
  using Thread = typename Group::Thread;
  extern __shared__ __align__(128) char across_memory[];
  __shared__ typename Group::Mail mail;
  const Group group(p, mail, across_memory);
  const int word = group.thread & (p.words - 1), first = group.thread / p.words;
  const int least = group.length() / p.classes, there = least + (first < group.length() % p.classes ? 1 : 0);
  const auto groups = static_cast<unsigned>(kTileWarps / p.warps), clusters = gridDim.x / group.blocks();
  const unsigned step = clusters * groups;
  const unsigned start = blockIdx.x / group.blocks() * groups + static_cast<unsigned>(group.group);
  unsigned tile = start;
  if (group.thread < p.stages) mail.full[group.group][group.thread].init(1);
  for (int i = group.thread; i < kTileRun / 32; i += p.warps * 32) mail.apart[group.group][i] = 0;
  if (threadIdx.x < 2) mail.arrived[threadIdx.x].init(1);
  CopyBarrier::publish();
  if (kCluster) {
    if (threadIdx.x < 2) group.expect_blocks(static_cast<int>(threadIdx.x));
    lift::Cluster::arrive();
    lift::Cluster::wait();
  } else {
    __syncthreads();
  }
  if (group.thread == 0)
    for (int i = 0; i + 1 < p.stages; ++i) group.fetch(from, tile + static_cast<unsigned>(i) * step, i);

  int stage = 0, before = p.stages - 1;  // of this tile, and of the one before
  unsigned parity = 0, count = 0;
  const auto turn = [&] {
    before = stage;
    if (++stage == p.stages) stage = 0, parity ^= 1U;
    ++count;
  };
#pragma unroll 1
  for (; tile < p.tiles; tile += step, turn()) {
    char* elements = group.stage(stage);
    mail.full[group.group][stage].wait(parity);
    Thread own;
    typename Thread::Part part;
    own.guess(shared_address(group.rank() > 0 ? mail.first_rows[stage] : elements) + word * 4, p.scale.c);
    const unsigned at = shared_address(elements) + group.thread * 4;
    bool close = least == Thread::kCount ? own.template fold<true>(at, p.warps * 128, least, least, p.scale.c, part)
                                         : own.template fold<false>(at, p.warps * 128, there, least, p.scale.c, part);
    close = group.over_warps(part, close, static_cast<int>(count % 2));
    if (kCluster) close = group.over_blocks(part, close, static_cast<int>(count % 2), count / 2 % 2);
    if (close) group.put(own, part, at, there, least);
    fence_for_copy();
    all_of(group.group + 1, p.warps * 32, true);
    if (group.thread == 0) {
      if (close)
        group.send(to, tile, stage);
      else
        mail.apart[group.group][count / 32] |= 1U << count % 32;
      commit();
      wait_but_last();
      group.fetch(from, tile + static_cast<unsigned>(p.stages - 1) * step, before);
    }
  }
  bulk_drain();
  all_of(group.group + 1, p.warps * 32, true);
#pragma unroll 1
  for (unsigned i = 0; i < count; ++i) {
    if ((mail.apart[group.group][i / 32] >> i % 32 & 1U) == 0) continue;
    if (group.thread == 0) group.fetch(from, start + i * step, stage);
    mail.full[group.group][stage].wait(parity);
    across_any<E, kLog, kCluster>(p, mail, group.stage(stage), start + i * step);
    all_of(group.group + 1, p.warps * 32, true);
    if (++stage == p.stages) stage = 0, parity ^= 1U;
  }
  if (kCluster) {  // nobody leaves while others still send
    lift::Cluster::arrive();
    lift::Cluster::wait();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
