// Ragged rows: what their kernels take, and how they are launched.
#include "cuda/ragged.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Elements for a warp, so that what it does once counts little, and for a block that looks for long rows.
constexpr std::int64_t kElementsOfWarp = 16384, kElementsOfBlock = 32768;
/// Mean length from which long rows are many enough to have blocks by the number of elements (with marks at most so
/// many).
constexpr std::int64_t kMeanOfLong = 2048;
/// Mean length up to which rows of a few chunks are worth a kernel.
constexpr std::int64_t kMeanOfTiles = 6144;
/// Elements that a block of ragged_tiles takes at a time.
constexpr std::int64_t kElementsOfTiles = 65536;
/// Elements that a warp of ragged_packs takes.
constexpr std::int64_t kElementsOfPacks = 8192;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic) return "another rung is asked for";
  if (!p[Slot::offsets].given) return "rows are not ragged";
  if (p.rows >= 0x3FFFFFFF) return "more rows than a grid has";
  return refuses_vectors(p);
}

std::int64_t mean_of(const RowProblem& p) {
  return std::max<std::int64_t>(p.ragged_elements / std::max<std::int64_t>(p.rows, 1), 1);
}
/// Whether most rows can be taken by kernels for plain ones, which leave the others marked. Few elements are not worth
/// the launches, and states of short rows are found faster without.
bool has_marks(const RowProblem& p, const RaggedStay& stay) {
  if (p[Slot::mask].given || p[Slot::scales].given || !lift::Factor(fold::make_scale<float>(p.scale).c).plain)
    return false;
  if (stay.longest > 0) return false;
  const bool of_row = p.op != Op::softmax && p.op != Op::log_softmax;
  return p.ragged_elements > kBlockElements && mean_of(p) <= kMeanOfTiles && !(of_row && mean_of(p) < kMeanOfLong);
}
std::size_t bytes_of_marks(const RowProblem& p, const RaggedStay& stay) {
  return has_marks(p, stay) ? static_cast<std::size_t>(ceil_div(p.rows, kMarked)) * sizeof(unsigned) : 0;
}

/// For rows of their mean length; any other lengths are right, too.
RaggedSpread spread_rows(const RowProblem& p, const RaggedList& list, const unsigned* left, const RaggedStay& stay,
                         int processors) {
  const std::int64_t mean = mean_of(p), blocks = std::int64_t{kRaggedBlocks} * processors;
  RaggedSpread spread{};
  spread.list = list;
  spread.left = left;
  spread.stay = stay;
  // With marks most rows may be gone, and a word of them is looked at for little.
  const std::int64_t at_once = ceil_div(p.rows, blocks * kRaggedWarps), most = left == nullptr ? kMarked : 32 * kMarked;
  const std::int64_t elements = left == nullptr ? kElementsOfWarp : 4 * kElementsOfWarp;
  const auto rows = static_cast<unsigned>(std::clamp<std::int64_t>(elements / mean, 1, std::min(at_once, most)));
  spread.warp_rows = static_cast<int>(left == nullptr ? rows : std::bit_floor(rows));
  spread.apart = mean >= kMeanOfLong;
  spread.long_rows = !spread.apart || spread.stay.longest > 0 ? std::max<std::int64_t>(ceil_div(p.rows, blocks), 1)
                                                              : std::max<std::int64_t>(kElementsOfBlock / mean, 1);
  // With marks many blocks find nothing, and what they cost is their launch; but those that find a lot are to be many.
  constexpr std::int64_t most_marked = 32;
  if (left != nullptr)
    spread.long_rows = std::max(spread.long_rows, std::min(ceil_div(p.rows, 4 * blocks), most_marked));
  spread.long_blocks = ceil_div(p.rows, spread.long_rows);
  return spread;
}

/// The list of long rows at `memory`; empty.
RaggedList list_at(const RowProblem& p, char* memory, Stream stream) {
  RaggedList list{};
  list.capacity = RaggedList::most_groups(p.ragged_elements);
  list.taken = reinterpret_cast<unsigned long long*>(memory);
  list.states = reinterpret_cast<RaggedList::State*>(memory + 16);
  list.groups = reinterpret_cast<RaggedList::Group*>(list.states + list.capacity);
  if (list.capacity > 0) check(cudaMemsetAsync(list.taken, 0, sizeof(*list.taken), stream), "ragged_rows");
  return list;
}

template <class E, RaggedLeaves kLeaves>
void launch_marked(const RowProblem& p, unsigned* left, int processors, Stream stream) {
  const std::int64_t mean = mean_of(p);
  const bool packs = mean < kMeanOfLong;
  check(cudaMemsetAsync(left, packs ? 0 : 0xFF, bytes_of_marks(p, {}), stream), "ragged_rows");
  if constexpr (kLeaves != RaggedLeaves::row) {
    if (packs) {
      const std::int64_t each = std::clamp<std::int64_t>(kElementsOfPacks / mean, 8, 4 * kMarked);
      launch("ragged_packs", ragged_packs<E, kLeaves>, {ceil_div(p.rows, kPackWarps * each), 32 * kPackWarps}, stream,
             p, left, static_cast<int>(each));
      stream = stream.following();
    }
  }
  const auto rows =
      std::bit_floor(static_cast<unsigned>(std::clamp<std::int64_t>(kElementsOfTiles / mean, 2, kMarked)));
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(p.rows, rows), std::int64_t{32} * processors);
  launch("ragged_tiles", ragged_tiles<E, kLeaves>, {blocks, 32 * kTileWarps}, stream, p, left, static_cast<int>(rows));
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, const RaggedSpread& spread, unsigned* left, int processors, Stream stream) {
  if (left != nullptr) {
    launch_marked<E, kLeaves>(p, left, processors, stream);
    stream = stream.following();
  }
  if (spread.stay.longest > 0) {
    if constexpr (kLeaves != RaggedLeaves::row) launch_ragged_stays(p, spread.stay, stream);
    stream = stream.following();
  }
  const std::int64_t blocks = spread.long_blocks + ceil_div(p.rows, spread.warp_rows * kRaggedWarps);
  const int shared = kLeaves == RaggedLeaves::row ? 0 : kRaggedWarps * static_cast<int>(sizeof(RaggedParking));
  launch("ragged_rows", ragged_rows<E, kLeaves>, {blocks, 32 * kRaggedWarps, 1, shared}, stream, p, spread);
}

std::size_t bytes_of_list(const RowProblem& p) {
  return RaggedList::most_groups(p.ragged_elements) > 0 ? RaggedList::bytes(p.ragged_elements) : 0;
}
std::size_t workspace(const RowProblem& p, const Context&) {
  return bytes_of_list(p) + bytes_of_marks(p, stays_for_ragged(p));
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  const RaggedStay stay = stays_for_ragged(p);
  const Scratch scratch(bytes_of_list(p) + bytes_of_marks(p, stay), context);
  const RaggedList list = list_at(p, scratch.data(), stream);
  unsigned* left = has_marks(p, stay) ? reinterpret_cast<unsigned*>(scratch.data() + bytes_of_list(p)) : nullptr;
  const RaggedSpread spread = spread_rows(p, list, left, stay, processors);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.op) {
      case Op::softmax: launch_rows<E, RaggedLeaves::softmax>(p, spread, left, processors, stream); break;
      case Op::log_softmax: launch_rows<E, RaggedLeaves::log_softmax>(p, spread, left, processors, stream); break;
      default: launch_rows<E, RaggedLeaves::row>(p, spread, left, processors, stream);
    }
    if (list.capacity == 0) return;
    const Grid grid{std::min<std::int64_t>(list.capacity, std::int64_t{3} * processors), 32 * kRaggedWarps};
    launch("ragged_long_fold", ragged_long_fold<E>, grid, stream.following(), p, list);
    launch("ragged_long_write", ragged_long_write<E>, grid, stream.following(), p, list);
  });
}

}  // namespace

const RowKernel softmax_ragged_rows_kernel{"softmax_ragged_rows", refuses, run, workspace};
const RowKernel fold_ragged_rows_kernel{"fold_ragged_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
