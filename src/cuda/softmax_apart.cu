// softmax and log_softmax whose results are parked: which kernel takes which rows.
#include "cuda/softmax_apart.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/softmax_cluster.cuh"
#include "cuda/softmax_stay.cuh"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// The longest row that a cluster holds: 16 blocks of 16 warps.
constexpr std::int64_t kLongest = 256 * lift::kChunk;

const char* refuses_rung(const RowProblem& p) { return refuses_rung(p.rung, Rung::fused); }

const char* refuses_rows(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (p[Slot::x].dtype == DType::float32 && p[Slot::y].dtype == DType::float32) return "softmax_any_short is faster";
  return refuses_apart(p);
}

/// Measured: from so many elements on clusters stay for rows, where there are many; from kFewestNarrow if results are
/// no wider than elements, but from kFewestPairs if the row is whole pairs of chunks and results are not narrower.
constexpr std::int64_t kFewestPairs = 8 * lift::kChunk, kFewest = 10 * lift::kChunk, kFewestNarrow = 15 * lift::kChunk;
/// Measured: of float32 log_softmax they stay for such pairs alone, of up to so many elements.
constexpr std::int64_t kMostLogPairs = 16 * lift::kChunk;

/// Of shared memory: elements that land, and results that wait.
template <class E, class O>
constexpr int kStayBytes = StayShape<E>::kWarpBytes + kParkedStayBytes<E, O>;

/// Whether results begin and end with vectors, in every row.
bool results_on_vectors(const RowProblem& p) {
  const Operand& y = p[Slot::y];
  return p.n * static_cast<std::int64_t>(size_of(y.dtype)) % 16 == 0 && on_vectors(p, y);
}

/// Measured: memory is at its best as for 16-bit rows that begin inside vectors, whatever the elements, but for float32
/// to 16-bit results that begin inside vectors; where these do, clusters of many blocks are slower.
template <class E, class O>
constexpr StaySpread spread(std::int64_t chunks, bool on_vectors) {
  SpreadNeeds needs{false, false, sizeof(O) == 2 ? 1.9 : sizeof(E) == 2 ? 1.5 : 1.2, kStayBytes<E, O>};
  if (sizeof(O) == 2 && !on_vectors) {
    needs.wide = sizeof(E) == 4;
    needs.instructions = sizeof(E) == 4 ? 1.3 : 0.7;
    needs.each_block = 0.016;
  }
  return best_spread(chunks, needs);
}

template <class E, class O>
constexpr bool every_warp_has_a_chunk() {
  for (std::int64_t chunks = kFewestPairs / lift::kChunk; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool on_vectors : {false, true}) {
      const StaySpread s = spread<E, O>(chunks, on_vectors);
      if (s.blocks == 0 || s.blocks * s.warps >= chunks || 2 * s.blocks * s.warps < chunks) return false;
    }
  return true;
}
static_assert(every_warp_has_a_chunk<float, float>() && every_warp_has_a_chunk<float, fold::BFloat16>());
static_assert(every_warp_has_a_chunk<fold::BFloat16, float>() &&
              every_warp_has_a_chunk<fold::BFloat16, fold::BFloat16>());

template <class E, class O>
int stay_bytes(const StaySpread& s, std::int64_t chunks) {
  return s.warps * kStayBytes<E, O> + 2 * StayBox::bytes(static_cast<int>(chunks));
}

const char* refuses_stays(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  const std::size_t size = size_of(p[Slot::x].dtype);
  const bool pairs = p.n % (2 * lift::kChunk) == 0 && size <= size_of(p[Slot::y].dtype);
  if (size == 4 && p.op == Op::log_softmax && !(pairs && p.n <= kMostLogPairs))
    return "float32 log_softmax is faster by a cluster a row";  // measured
  if (p.n < (pairs ? kFewestPairs : size < size_of(p[Slot::y].dtype) ? kFewest : kFewestNarrow))
    return "so short a row is faster by a cluster of its own";
  if (p.n > kLongest) return "a row is longer than a cluster holds (262144)";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_apart(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  // Measured where results are wider.
  const bool widens = size < size_of(p[Slot::y].dtype);
  const std::int64_t fewest = !widens ? kFewestStayChunks : chunks <= 10 ? 64 : chunks <= 20 ? 44 : 31;
  if (are_fewer_chunks(p, fewest)) return "too few rows to stay for";
  StaySpread s{};
  int bytes = 0;
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class O>() {
    s = spread<E, O>(chunks, results_on_vectors(p));
    bytes = stay_bytes<E, O>(s, chunks);
  });
  if (traits.largest_cluster < s.blocks) return "the device has no clusters of so many blocks";
  constexpr int of_itself = 1024;  // barriers and rows on their way take less
  return bytes + of_itself > traits.shared_bytes ? "the device has too little shared memory" : nullptr;
}

const char* refuses_cluster(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p)) return why;
  if (p.n == 0) return "rows of no elements";
  const char* why = refuses_apart(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

/// go.operator()<lanes, vectors of each, how many of which are full>(), as with_odd_shape() has it, of at most 32
/// elements a lane. Results of neighbouring lanes lie twice as far apart in banks as elements: rows of a power of two,
/// which meet there, have more lanes. More kernels are made where they are asked for most.
template <class E, class O, class Go>
void with_apart_shape(const PlainRows& p, const Go& go) {
  constexpr bool kWiden = sizeof(O) > sizeof(E), kMany = !std::is_same_v<E, O>;
  constexpr int k = static_cast<int>(sizeof(E)) / 2;  // vectors of eight elements
  const int vectors = vectors_of(p, static_cast<int>(sizeof(E)));
  const auto whole = [&]<int kLanes, int kVectors>() {
    if constexpr (kWiden) {
      if (!on_vectors(p, static_cast<int>(sizeof(E))) || vectors != kLanes * kVectors * k) return false;
      go.template operator()<kLanes, kVectors * k, kVectors * k>();
    }
    return kWiden;
  };
  // beyond: as many vectors as the shape before this one has; kFew: of those that are always made
  const auto shape = [&]<int kLanes, int kVectors, int kBeyond, bool kFew = false>() {
    if constexpr (kFew || kMany) {
      if (vectors > kLanes * kVectors * k) return false;
      go.template operator()<kLanes, kVectors * k, std::max(kBeyond * k - 1, 0) / kLanes>();
    }
    return kFew || kMany;
  };
  if (whole.template operator()<1, 1>() || whole.template operator()<1, 2>() || whole.template operator()<2, 2>() ||
      whole.template operator()<2, 4>() || whole.template operator()<4, 4>() || whole.template operator()<8, 4>() ||
      whole.template operator()<16, 4>())
    return;
  // Beyond the shape with three vectors where that is made, else beyond the one with fewer lanes.
  constexpr int k2 = kMany ? 6 : 4, k4 = kMany ? 12 : 8, k8 = kMany ? 24 : 16, k16 = kMany ? 48 : 32,
                k32 = kMany ? 96 : 64;
  if (shape.template operator()<1, 2, 0, true>() || shape.template operator()<1, 4, 2, true>() ||
      shape.template operator()<2, 3, 4>() || shape.template operator()<2, 4, k2, true>() ||
      shape.template operator()<4, 3, 8>() || shape.template operator()<4, 4, k4, true>() ||
      shape.template operator()<8, 3, 16>() || shape.template operator()<8, 4, k8, true>() ||
      shape.template operator()<16, 3, 32>() || shape.template operator()<16, 4, k16, true>() ||
      shape.template operator()<32, 3, 64>())
    return;
  shape.template operator()<32, 4, k32, true>();
}

template <class E, class O>
void launch_rows(const PlainRows& plain, bool log, int processors, Stream stream) {
  with_apart_shape<E, O>(plain, [&]<int kLanes, int kVectors, int kFull>() {
    PlainRows p = plain;
    p.joined = p.x_stride == p.n * static_cast<int>(sizeof(E));
    p.pitch = OddPlace<E>::pitch(p);
    // Few rows are spread over the device.
    constexpr int at_once = 32 / kLanes * kOddWarps;
    const std::int64_t sets = std::clamp<std::int64_t>(p.rows / (at_once * 6 * processors), 1, kOddRuns);
    const std::int64_t each =
        std::clamp<std::int64_t>(p.rows / (at_once * kOddRuns * 6 * processors), 1, kApartRows<E, kVectors>);
    const int rows = static_cast<int>(32 / kLanes * each);
    const int room = OddPlace<E>::bytes(p, rows) + ParkedRows<O>::bytes(p, rows);
    const std::int64_t of_block = at_once * each * sets;
    const Grid grid{(p.rows + of_block - 1) / of_block, 32 * kOddWarps, 1, static_cast<int>(kOddWarps * sets) * room};
    const auto by = [&](auto kernel) { launch("softmax_apart_rows", kernel, grid, stream, p, each, sets); };
    log ? by(softmax_apart_rows<E, O, kLanes, kVectors, kFull, true>)
        : by(softmax_apart_rows<E, O, kLanes, kVectors, kFull, false>);
  });
}

void run_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class O>() {
    if constexpr (!std::is_same_v<E, O> || sizeof(E) == 2)  // others are refused
      launch_rows<E, O>(plain_rows(p), p.op == Op::log_softmax, processors, stream_of(context));
  });
}

void run_stays(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  PlainRows rows = plain_rows(p);
  rows.taken = reinterpret_cast<CounterWord*>(scratch.data());
  const std::int64_t chunks = lift::chunk_count(p.n);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class O>() {
    const StaySpread s = spread<E, O>(chunks, results_on_vectors(p));
    const int bytes = stay_bytes<E, O>(s, chunks);
    const auto by = [&](auto kernel) {
      launch_to_stay("softmax_apart_stays", kernel, s, bytes, p.rows, stream_of(context), rows);
    };
    p.op == Op::log_softmax ? by(softmax_cluster_stays<E, O, true>) : by(softmax_cluster_stays<E, O, false>);
  });
}

void run_cluster(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class O>() {
    Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()));
    grid.shared_bytes = grid.threads / 32 * ParkedRun<O>::bytes(lift::kChunk);
    const auto by = [&](auto kernel) {
      launch("softmax_apart_cluster", kernel, grid, stream_of(context), plain_rows(p));
    };
    p.op == Op::log_softmax ? by(softmax_cluster_row<E, Leaves::log_softmax, 32, 512, 2, O>)
                            : by(softmax_cluster_row<E, Leaves::softmax, 32, 512, 2, O>);
  });
}

}  // namespace

const RowKernel softmax_apart_rows_kernel{"softmax_apart_rows", refuses_rows, run_rows, nullptr};
const RowKernel softmax_apart_stays_kernel{"softmax_apart_stays", refuses_stays, run_stays, counter_bytes};
const RowKernel softmax_apart_cluster_kernel{"softmax_apart_cluster", refuses_cluster, run_cluster, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
