// softmax_across_tiles: the kernel.
#pragma once

#include "cuda/across_group.cuh"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A tile whose elements lie far apart or are special: a row a warp at a time, by the general fold.
template <class E, bool kLog, int kGroups>
__device__ __noinline__ void across_any(const AcrossTiles& p, typename AcrossGroup<E, kLog, kGroups>::Mail& mail,
                                        const char* elements, unsigned tile) {
  using Fold = lift::WarpFold<1>;
  using Lse = fold::LogSumExp<float>;
  using Cluster = lift::Cluster;
  constexpr int kCount = lift::kPerLane, kSize = static_cast<int>(sizeof(E));
  using Group = AcrossGroup<E, kLog, kGroups>;
  constexpr bool kCluster = Group::kCluster;
  const Group group(p, mail, nullptr);
  const lift::Factor factor(p.scale.c);
  const int lane = static_cast<int>(threadIdx.x) % 32, n = group.chunk_length();
  // A block of a cluster folds a tile with all of its warps.
  const int warps = kCluster ? kTileWarps : group.warps();
  const int warp = (kCluster ? static_cast<int>(threadIdx.x) : group.thread) / 32;
  const int outer = p.outer_of(tile), column = group.far_column(tile, outer), words = group.far_words();
  const int rows = min(words * group.kRows, p.inner - column), chunk = group.chunk();
  char* y = p.y + outer * p.y_outer + std::int64_t{chunk} * lift::kChunk * p.y_axis + std::int64_t{column} * kSize;
  const auto state_at = [&](int of_chunk, int row) -> typename Lse::State& {
    return reinterpret_cast<typename Lse::State*>(mail.states)[of_chunk * words * group.kRows + row];
  };
  float v[kCount];
  const auto fold_row = [&](int row) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = lane + 32 * j;
      const auto at = reinterpret_cast<const E*>(elements + i * words * 4 + row * kSize);
      v[j] = i < n ? fold::widen(*at) : lift::absent(factor.c);
    }
    return kLog ? Fold::reduce(v, factor.c) : Fold::terms(v, factor.c);
  };
  for (int row = warp; row < rows && kCluster; row += warps) {
    const auto own = fold_row(row).state;
    if (lane >= p.chunks) continue;
    const int same_rows = (lane << p.part_bits) + group.rank() - (chunk << p.part_bits);
    const unsigned to = Cluster::map(&state_at(chunk, row), static_cast<unsigned>(same_rows));
    Cluster::store(to, fold::bits_as<std::uint64_t>(own.m));
    Cluster::store(to + 8, std::uint64_t{fold::bits_as<std::uint32_t>(own.d)});
  }
  if (kCluster) {
    Cluster::arrive();
    Cluster::wait();
  }
  for (int row = warp; row < rows; row += warps) {
    const auto own = fold_row(row);
    auto state = own.state;
    if (kCluster) {
      state = lane < p.chunks ? state_at(lane, row) : Lse::identity();
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

template <class E, bool kLog, int kGroups>
__global__ void __launch_bounds__(kTileWarps * 32, 1)
    softmax_across_tiles(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                         const __grid_constant__ CUtensorMap far, const __grid_constant__ AcrossTiles p) {
  begin_in_order();
  using Group = AcrossGroup<E, kLog, kGroups>;
  using Thread = typename Group::Thread;
  constexpr bool kCluster = Group::kCluster;
  extern __shared__ __align__(128) char across_memory[];
  __shared__ typename Group::Mail mail;
  const Group group(p, mail, across_memory);
  const int word = group.thread & (p.words - 1), first = group.thread / p.words;
  const int least = group.length() / p.classes, more = group.length() % p.classes;
  const int there = least + (first < more ? 1 : 0), most = least + (more > 0 ? 1 : 0);
  const int at_once = group.warps() * 32;
  const bool draws = group.thread < 32 && group.rank() == 0;
  if (group.thread < p.stages) mail.full[group.group][group.thread].init(1);
  if (group.thread == 0) mail.far[group.group].init(1), mail.lists[group.group] = kNoTile;
  if (kCluster && group.thread < 2) {
    mail.arrived[group.sender()][group.thread].init(1);
    mail.drawn[group.sender()][group.thread].init(1);
  }
  CopyBarrier::publish();
  if (kCluster) {
    if (group.thread < 2) group.expect_blocks(group.thread), group.expect_draw(group.thread);
    lift::Cluster::arrive_shared();
    lift::Cluster::wait();
  } else {
    __syncthreads();
  }
  const auto groups = static_cast<unsigned>(kTileWarps / group.warps()), step = gridDim.x / group.blocks() * groups;
  const unsigned start = blockIdx.x / group.blocks() * groups + static_cast<unsigned>(group.group);
  const unsigned given = kCluster ? static_cast<unsigned>(p.stages - 1) * step : step;  // runs that nobody draws
  unsigned drawn = 0;  // by the group's first thread (of a cluster: the first block's): the run that it takes next
  if (draws && group.thread == 0) drawn = group.draw(given);
  const auto next_of = [&](unsigned tile) {
    if ((tile + 1) % p.run != 0) return tile + 1;
    const unsigned next = drawn;
    drawn = group.draw(given);
    return next;
  };
  if (group.thread == 0) {
    unsigned tile = start * p.run;
    for (int i = 0; i + 1 < p.stages; ++i, tile = kCluster ? tile + step : next_of(tile)) group.fetch(from, tile, i);
    mail.lasts[group.group] = tile;
  }
  if (kCluster && draws) {
    group.share(drawn, 0);
    if (group.thread == 0) drawn = group.draw(given);
  }

  int stage = 0, before = p.stages - 1;  // of this tile, and of the one before
  unsigned parity = 0, count = 0;
  const auto turn = [&] {
    before = stage;
    if (++stage == p.stages) stage = 0, parity ^= 1U;
    ++count;
  };
#pragma unroll 1
  for (;; turn()) {
    mail.full[group.group][stage].wait(parity);
    const unsigned tile = mail.tiles[group.group][stage];
    if (tile >= p.tiles) break;
    char* elements = group.stage(stage);
    Thread own;
    typename Thread::Part part;
    // Beyond x's columns there are zeros here, and in the first row what an earlier tile has left.
    const bool elsewhere = group.rank() > 0 && word * 4 < group.width_of(tile);
    const char* first_row = elsewhere ? mail.first_rows[group.sender()][stage] : elements;
    own.guess(shared_address(first_row) + word * 4, p.scale.c);
    const unsigned at = shared_address(elements) + group.thread * 4;
    const bool whole = least == Thread::kCount;
    bool close = whole ? own.template fold<true>(at, group.step(), least, least, least, p.scale.c, part)
                       : own.template fold<false>(at, group.step(), there, least, most, p.scale.c, part);
    close = group.over_warps(part, close, static_cast<int>(count % 2));
    if (kCluster) close = group.over_blocks(part, close, word, first, static_cast<int>(count % 2), count / 2 % 2);
    if (close) group.put(own, part, at, there, whole);
    fence_for_copy();
    // The others go on: the first warp sends what all have put, and asks for the next tile.
    const int done = kTileWarps / 2 + group.group;
    if (group.thread >= 32) {
      arrive_at(done, at_once);
      continue;
    }
    wait_at(done, at_once);
    if (kCluster && draws) group.share(drawn, static_cast<int>((count + 1) % 2));
    if (group.thread == 0) {
      if (close) {
        group.send(to, tile, stage);
      } else {
        group.next_far(tile) = mail.lists[group.group];
        mail.lists[group.group] = tile;
      }
      commit();
      wait_but_last();
      if (kCluster) {
        group.fetch(from, group.shared_draw(static_cast<int>(count % 2), count / 2 % 2), before);
        if (draws) drawn = group.draw(given);
      } else {
        const unsigned next = mail.lasts[group.group];
        group.fetch(from, next, before);
        mail.lasts[group.group] = next_of(next);
      }
    }
    __syncwarp();
  }
  bulk_drain();
  if (kCluster) {  // parts and states lie in one place
    if (group.thread == 0) wait_for_words(mail.drawn[group.sender()][count % 2], count / 2 % 2);  // drawn in vain
    lift::Cluster::arrive();
    lift::Cluster::wait();
  } else {
    all_of(group.group, at_once, true);
  }
  // A block of a cluster goes through its groups' lists with all of its threads.
  const int lists = kCluster ? 0 : group.group, all = kCluster ? kTileWarps * 32 : at_once;
  const bool leads = kCluster ? threadIdx.x == 0 : group.thread == 0;
  parity = 0;
#pragma unroll 1
  for (int list = lists; list < lists + max(kGroups, 1); ++list) {
#pragma unroll 1
    for (unsigned tile; (tile = mail.lists[list]) != kNoTile; parity ^= 1U) {
      if (leads) group.fetch_far(far, tile);
      mail.far[lists].wait(parity);
      across_any<E, kLog, kGroups>(p, mail, kCluster ? across_memory : group.ring, tile);
      all_of(lists, all, true);
      if (leads) mail.lists[list] = group.next_far(tile);
      all_of(lists, all, true);
    }
  }
  if (kCluster) {  // nobody leaves while others still send
    lift::Cluster::arrive_relaxed();
    lift::Cluster::wait();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
