// Ragged rows: what their kernels take, and how they are launched.
#include "cuda/ragged.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/outside.cuh"
#include "cuda/states.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Elements for a warp, so that what it does once counts little, and for a block that looks for long rows.
constexpr std::int64_t kElementsOfWarp = 16384, kElementsOfBlock = 32768;
/// Mean length from which long rows are many enough to have blocks by the number of elements; a queue has room for as
/// many rows as there are of that length.
constexpr std::int64_t kMeanOfLong = 2048;
/// Mean length from which ragged_packs, which looks at all rows and takes the shortest, is not worth its time.
constexpr std::int64_t kMeanOfPacks = 400;
/// Mean length of states up to which ragged_tiles takes them, whose rows may be longer than most_mean_of_tiles has
/// them.
constexpr std::int64_t kMeanOfStateTiles = 40000;
constexpr std::int64_t kFewForStates = std::int64_t{1}
                                       << 22;      ///< elements of which ragged_rows alone finds them faster
constexpr std::int64_t kElementsOfStates = 98304;  ///< of states, which fill less than half of the places for nodes
/// Mean lengths from which blocks of ragged_tiles have twice, and four times, kFewTileWarps. Measured: by more of them
/// than most rows have chunks, uniform lengths lose 4 percent.
constexpr std::int64_t kMeanOfMoreWarps = 3000, kMeanOfMostWarps = 8000;
/// What a block of ragged_packs takes, about, and at least.
constexpr std::int64_t kWorthOfPacks = 81920, kLeastWorthOfPacks = 2048;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung)) return why;
  if (!p[Slot::offsets].given) return "rows are not ragged";
  if (p.rows >= 0x3FFFFFFF) return "more rows than a grid has";
  if (p[Slot::mask].given) return "some elements are hidden";
  if (p[Slot::scales].given) return "rows have scales of their own";
  return refuses_vectors(p);
}

std::int64_t mean_of(const RowProblem& p) {
  return std::max<std::int64_t>(p.ragged_elements / std::max<std::int64_t>(p.rows, 1), 1);
}

/// Where marks are those that ragged_packs sets; else all rows have one at first.
bool has_packs(const RowProblem& p) { return mean_of(p) < kMeanOfPacks; }

/// Whether most rows can be taken by kernels for plain ones, which leave the others marked. Few elements are not worth
/// the launches.
bool has_marks(const RowProblem& p, const RaggedStay& stay) {
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return false;
  if (stay.of_all > 0) return false;
  const bool of_row = p.op != Op::softmax && p.op != Op::log_softmax;
  if (p.ragged_elements <= (of_row ? kFewForStates : kBlockElements)) return false;
  return mean_of(p) <= (of_row ? kMeanOfStateTiles : most_mean_of_tiles(size_of(p[Slot::x].dtype)));
}
/// Clusters for what is left want kernels before them.
RaggedStay stay_for(const RowProblem& p) {
  const RaggedStay stay = stays_for_ragged(p);
  return stay.of_all == 0 && !has_marks(p, stay) ? RaggedStay{} : stay;
}

/// Where things lie in the workspace: a list and two queues of long rows, and a mark a row.
struct RaggedMemory {
  struct Counters {
    unsigned long long groups;                        ///< RaggedList::taken
    unsigned taken, appended[RaggedQueue::kClasses];  ///< queue's
    unsigned staying[RaggedQueue::kClasses];          ///< staying's
  };
  Counters* counters = nullptr;  ///< marks stand behind them
  RaggedList list{};
  RaggedQueue queue{};    ///< for ragged_rows
  RaggedQueue staying{};  ///< for clusters that stay, before that
  unsigned* left = nullptr;
  std::int64_t words = 0;  ///< of marks

  RaggedMemory(const RowProblem& p, const RaggedStay& stay, Parts& parts) {
    list.capacity = RaggedList::most_groups(p.ragged_elements);
    if (list.capacity == 0) return;
    const bool marked = has_marks(p, stay);
    words = marked ? ceil_div(p.rows, kMarked) : 0;
    counters = parts.bytes_for<Counters>(sizeof(Counters) + static_cast<std::size_t>(words) * sizeof(*left));
    left = marked ? reinterpret_cast<unsigned*>(counters + 1) : nullptr;
    list.taken = &counters->groups;
    list.states = parts.take<RaggedList::State>(list.capacity);
    list.groups = parts.take<RaggedList::Group>(list.capacity);
    if (!marked && !stay.given()) return;
    queue.taken = &counters->taken;
    queue.appended = counters->appended;
    // Clusters that have all rows may leave any of them.
    queue.capacity = static_cast<unsigned>(marked ? RaggedQueue::most(p.rows, p.ragged_elements, kMeanOfLong) : p.rows);
    const std::int64_t places = std::int64_t{RaggedQueue::kClasses} * queue.capacity;
    queue.rows = parts.take<int>(places);
    if (stay.of_left == 0) return;
    staying = queue;
    staying.appended = counters->staying, staying.taken = nullptr, staying.rows = parts.take<int>(places);
  }
};

constexpr int kBeginThreads = 256;

/// Nothing is on the list and the queues, all marks are `mark`, and where no row is the result is as if hidden.
template <class S>
__global__ void __launch_bounds__(kBeginThreads)
    ragged_begin(const __grid_constant__ RowProblem p, const __grid_constant__ RaggedMemory memory, unsigned mark,
                 S outside) {
  begin_in_order();
  const std::int64_t own = std::int64_t{blockIdx.x} * kBeginThreads + threadIdx.x;
  if (own == 0 && memory.counters != nullptr) *memory.counters = {};
  for (std::int64_t i = own; i < memory.words; i += std::int64_t{gridDim.x} * kBeginThreads) memory.left[i] = mark;
  if (p[Slot::y].given) fill_outside_rows(p, outside);
}

/// What comes next is not asked to begin before it has ended: it would be slower where rows are few (measured: by a
/// tenth).
void launch_begin(const RowProblem& p, const RaggedMemory& memory, int processors, Stream stream) {
  const unsigned mark = has_packs(p) ? 0 : ~0U;
  const auto run = [&]<class S>(S outside) {
    launch("ragged_begin", ragged_begin<S>, {processors, kBeginThreads}, stream, p, memory, mark, outside);
  };
  if (p[Slot::y].given) return with_outside_bits(p, run);
  if (memory.counters != nullptr) run(std::uint16_t{});
}

/// For rows of their mean length; any other lengths are right, too.
RaggedSpread spread_rows(const RowProblem& p, const RaggedMemory& memory, int processors) {
  const std::int64_t mean = mean_of(p), blocks = std::int64_t{kRaggedBlocks} * processors;
  const std::int64_t at_once = ceil_div(p.rows, blocks * kRaggedWarps);
  RaggedSpread spread{};
  spread.list = memory.list, spread.queue = memory.queue, spread.left = memory.left;
  if (spread.queue.given()) {
    // Most rows may be gone, and a word of marks is looked at for little.
    if (memory.left != nullptr)
      spread.warp_rows = std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(at_once, 32 * kMarked)));
    return spread;
  }
  spread.warp_rows =
      static_cast<int>(std::clamp<std::int64_t>(kElementsOfWarp / mean, 1, std::min<std::int64_t>(at_once, kMarked)));
  spread.apart = mean >= kMeanOfLong;
  spread.long_rows = std::max<std::int64_t>(spread.apart ? kElementsOfBlock / mean : ceil_div(p.rows, blocks), 1);
  spread.long_blocks = ceil_div(p.rows, spread.long_rows);
  return spread;
}

template <class E, RaggedLeaves kLeaves>
void launch_packs(const RowProblem& p, unsigned* left, int processors, Stream stream) {
  // All blocks take as much, as often as all find a place.
  const std::int64_t worth = PackShare::of_all(p), places = std::int64_t{kPackBlocks} * processors;
  const std::int64_t each = worth / (places * std::max<std::int64_t>(worth / (places * kWorthOfPacks), 1)) + 1;
  const std::int64_t taken = std::max(each, kLeastWorthOfPacks);
  launch("ragged_packs", ragged_packs<E, kLeaves>, {ceil_div(worth, taken), 32 * kPackWarps}, stream, p, RowResults(p),
         left, taken);
}

template <class E, RaggedLeaves kLeaves, int kWarps>
void launch_tiles(const RowProblem& p, const RaggedMemory& memory, int processors, Stream stream) {
  // Few rows are for all blocks that find a place.
  const std::int64_t places = std::int64_t{kRaggedTileWarps / kWarps} * processors;
  const std::int64_t elements = kLeaves == RaggedLeaves::row ? kElementsOfStates : elements_of_tiles(sizeof(E), kWarps);
  const int rows = rows_of_tiles(elements, mean_of(p), p.rows, kWarps, processors, 2);
  const std::int64_t most = has_packs(p) ? 2 : 8;  // of all places; packs leave few rows
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(p.rows, rows), most * places);
  launch("ragged_tiles", ragged_tiles<E, kLeaves, kWarps>,
         {blocks, 32 * kWarps, 1, static_cast<int>(sizeof(TileStorage<E, kLeaves, kWarps>))}, stream, p, RowResults(p),
         memory.left, memory.staying.given() ? memory.staying : memory.queue, rows);
}

template <class E, RaggedLeaves kLeaves>
void launch_marked(const RowProblem& p, const RaggedMemory& memory, int processors, Stream stream) {
  const std::int64_t mean = mean_of(p);
  if (has_packs(p)) {
    launch_packs<E, kLeaves>(p, memory.left, processors, stream);
    stream = stream.following();
  }
  if constexpr (kLeaves != RaggedLeaves::row) {
    if constexpr (sizeof(E) == 2) {
      constexpr std::size_t shared = sizeof(TileStorage<E, kLeaves, 4 * kFewTileWarps>);
      const int most = traits_of(DeviceOf(p[Slot::x].data).device()).shared_bytes;
      if (mean > kMeanOfMostWarps && shared <= static_cast<std::size_t>(most))
        return launch_tiles<E, kLeaves, 4 * kFewTileWarps>(p, memory, processors, stream);
    }
    if (mean > kMeanOfMoreWarps) return launch_tiles<E, kLeaves, 2 * kFewTileWarps>(p, memory, processors, stream);
  }
  launch_tiles<E, kLeaves, kFewTileWarps>(p, memory, processors, stream);
}

template <class E, RaggedLeaves kLeaves>
void launch_rows(const RowProblem& p, const RaggedMemory& memory, const RaggedStay& stay, int processors,
                 Stream stream) {
  if (memory.left != nullptr) {
    launch_marked<E, kLeaves>(p, memory, processors, stream);
    stream = stream.following();
  }
  const auto let_stay = [&](std::int64_t longest, const RaggedQueue& source, const RaggedQueue& longer) {
    if (longest == 0) return;
    launch_ragged_stays(p, longest, source, longer, memory.queue, stream);
    stream = stream.following();
  };
  let_stay(stay.of_all, {}, stay.of_left > 0 ? memory.staying : memory.queue);
  let_stay(stay.of_left, memory.staying, memory.queue);
  const RaggedSpread spread = spread_rows(p, memory, processors);
  const std::int64_t blocks = spread.queue.given()
                                  ? std::int64_t{kRaggedBlocks} * processors
                                  : spread.long_blocks + ceil_div(p.rows, spread.warp_rows * kRaggedWarps);
  const int shared = kLeaves == RaggedLeaves::row ? 0 : kRaggedWarps * static_cast<int>(sizeof(RaggedParking));
  launch("ragged_rows", ragged_rows<E, kLeaves>, {blocks, 32 * kRaggedWarps, 1, shared}, stream, p, spread);
}

std::size_t workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)RaggedMemory(p, stay_for(p), parts);
  return parts.used();
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  const RaggedStay stay = stay_for(p);
  const Scratch scratch(workspace(p, context), context);
  Parts parts(scratch.data());
  const RaggedMemory memory(p, stay, parts);
  launch_begin(p, memory, processors, stream);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    switch (p.op) {
      case Op::softmax: launch_rows<E, RaggedLeaves::softmax>(p, memory, stay, processors, stream); break;
      case Op::log_softmax: launch_rows<E, RaggedLeaves::log_softmax>(p, memory, stay, processors, stream); break;
      default: launch_rows<E, RaggedLeaves::row>(p, memory, stay, processors, stream);
    }
    if (memory.list.capacity == 0) return;
    const Grid grid{std::min<std::int64_t>(memory.list.capacity, std::int64_t{3} * processors), 32 * kRaggedWarps};
    launch("ragged_long_fold", ragged_long_fold<E>, grid, stream.following(), p, memory.list);
    launch("ragged_long_write", ragged_long_write<E>, grid, stream.following(), p, memory.list);
  });
}

}  // namespace

const RowKernel softmax_ragged_rows_kernel{"softmax_ragged_rows", refuses, run, workspace, true};
const RowKernel fold_ragged_rows_kernel{"fold_ragged_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
