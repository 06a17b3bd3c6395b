// sample by a block or a cluster of blocks a row: their shapes and launches.
#include "cuda/sample_rows.hpp"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"
#include "cuda/sample.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = fold::LogSumExp<float>::State;

/// Whether rows are read by vectors.
bool is_plain(const SampleProblem& p) {
  RowProblem q = p;
  q[Slot::y].given = false;
  return !p[SampleSlot::bias].given && !p[SampleSlot::bitmask].given && refuses_plain(q) == nullptr;
}
/// Calls f.template operator()<Elements>() for how sample_rows looks at the rows.
template <class F>
void with_elements_of_rows(const SampleProblem& p, const F& f) {
  if (!is_plain(p)) return f.template operator()<AnyElements>();
  with_element(p[Slot::x].dtype, [&]<class E>() { f.template operator()<PlainElements<E>>(); });
}

/// Many rows that a third of a block's shared memory holds: a block of 8 warps each, three of them a processor. Of
/// longer ones, of which there are about as many as processors or more, too, but it reads its row for each look at it:
/// its barriers and what a thread does alone cost less than a cluster's (2.2 times as fast). Blocks of 24 warps where
/// few rows are left. Otherwise a cluster that keeps its row in shared memory if it has room for it; of few rows with
/// as many blocks as have a chunk a warp.
template <class Elements>
SampleShare share_samples(const SampleProblem& p, const DeviceTraits& device, RowsLeft expected) {
  constexpr int kBytes = SamplePart<Elements>::kBytes, kReserved = DeviceTraits::kReservedBytes, kMostAlone = 256;
  constexpr int kOwn = static_cast<int>(sizeof(typename SampleBlocks<Elements>::Shared));
  const auto chunks = std::max<std::int64_t>(lift::chunk_count(p.n), 1);
  const std::int64_t third = std::max(((device.shared_bytes + kReserved) / 3 - kReserved - kOwn) / kBytes, 1);
  if (4 * p.rows >= 3 * device.processors && chunks > third && chunks <= kMostAlone) {
    const std::int64_t blocks =
        expected == RowsLeft::few ? 1 : std::clamp<std::int64_t>(p.rows / device.processors, 1, 3);
    const int warps = std::min(kMostSampleWarps / static_cast<int>(blocks), (device.shared_bytes - kOwn) / kBytes);
    return {1, warps, static_cast<int>(chunks), warps};
  }
  const std::int64_t spread =
      std::min(ceil_div(chunks, kSampleWarps), device.processors / std::max<std::int64_t>(p.rows, 1));
  const std::int64_t most = std::min(device.largest_cluster, kMostSampleBlocks);
  const std::int64_t own = ceil_div(chunks, std::min(std::max(ceil_div(chunks, third), spread), most));
  const bool stays = own * kBytes + kOwn <= device.shared_bytes;
  return {static_cast<int>(ceil_div(chunks, own)), kSampleWarps, static_cast<int>(own),
          static_cast<int>(stays ? own : std::min<std::int64_t>(own, kSampleWarps))};
}

/// Clusters of a launch: four times what is under way at once, or once where few rows are left.
std::int64_t clusters_for(const SampleProblem& p, const SampleShare& share, const DeviceTraits& device,
                          RowsLeft expected) {
  const std::int64_t blocks = std::int64_t{device.processors} * (kMostSampleWarps / share.warps);
  return std::min<std::int64_t>(p.rows, ceil_div(expected == RowsLeft::few ? blocks : 4 * blocks, share.segments));
}

}  // namespace

State* lay_out_sample_rows(const SampleProblem& p, Parts& parts, RowsLeft expected) {
  State* trees = nullptr;
  with_elements_of_rows(p, [&]<class Elements>() {
    const std::int64_t room = SampleBlocks<Elements>::room_for(p.n);
    if (room <= SampleBlocks<Elements>::kSharedNodes) return;
    const DeviceTraits& device = traits_of(DeviceOf(p[Slot::x].data).device());
    const SampleShare share = share_samples<Elements>(p, device, expected);
    trees = parts.take<State>(clusters_for(p, share, device, expected) * room);
  });
  return trees;
}

void launch_sample_rows(const SampleProblem& p, State* trees, const unsigned* left, RowsLeft expected, Stream stream) {
  with_elements_of_rows(p, [&]<class Elements>() {
    const DeviceTraits& device = traits_of(DeviceOf(p[Slot::x].data).device());
    const SampleShare share = share_samples<Elements>(p, device, expected);
    const Grid grid{clusters_for(p, share, device, expected) * share.segments, 32 * share.warps, share.segments,
                    static_cast<int>(sizeof(typename SampleBlocks<Elements>::Shared)) +
                        share.places * SamplePart<Elements>::kBytes};
    launch("sample_rows", sample_rows<Elements>, grid, left == nullptr ? stream : stream.following(), p, share, trees,
           left);
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
