// softmax_lengths_stay: what it takes, and how it is launched.
#include "cuda/softmax_length.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kLongest = 256 * lift::kChunk;
/// Measured: shorter rows are as fast or faster by a block a row.
constexpr std::int64_t shortest(std::size_t size) { return (size == 4 ? 16 : 2) * lift::kChunk + 1; }

/// Measured: the fewest warps, of powers of two, that hold a row's units, by blocks of 4 or 8.
constexpr StaySpread spread(std::int64_t chunks) {
  if (chunks <= 8) return {1, 4};
  if (chunks > 32 && chunks <= 64) return {8, 4};
  int blocks = 1;
  while (16 * blocks < chunks) blocks *= 2;
  return {blocks, 8};
}

const char* refuses(const RowProblem& p, const Context&) {
  const std::size_t size = size_of(p[Slot::x].dtype);
  if (p.n < shortest(size)) return "a row is short enough for one block";
  if (p.n > kLongest) return "a row is longer than a cluster holds (262144)";
  if (const char* why = refuses_cut(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (traits.largest_cluster < spread(chunks).blocks) return "the device has no clusters of so many blocks";
  return are_fewer_chunks(p, kFewestStayChunks) ? "too few rows to stay for" : nullptr;
}

LengthRows length_rows(const RowProblem& p, const Extent& x) {
  const auto scale = fold::make_scale<float>(p.scale);
  const float two_kappa = fold::LogNormaliser<float>::two_kappa_of(scale);
  return {p, x, scale, lift::Factor(scale.c), two_kappa, 0, {}, {}};
}

template <bool kLog, bool kAnywhere, bool kRagged = false>
void launch_rows(LengthRows rows, const StaySpread& s, Stream stream) {
  with_element(rows.p[Slot::x].dtype, [&]<class E>() {
    if (kRagged) rows.x = extent_of<E>(rows.p);
    using Unit = LengthUnit<E, kAnywhere, kRagged>;
    const int shared = s.warps * Unit::kStages * Unit::kBytes + 2 * StayBox::bytes(s.blocks * s.warps * Unit::kChunks);
    launch_to_stay("softmax_lengths_stay", softmax_lengths_stay<Unit, kLog>, s, shared, rows.p.rows, stream, rows);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const StaySpread s = spread(lift::chunk_count(p.n));
  const LengthRows rows = length_rows(p, memory_of(p, p[Slot::x]));
  const auto launch_them = [&]<bool kLog>() {
    if (on_whole_vectors(p)) return launch_rows<kLog, false>(rows, s, stream_of(context));
    launch_rows<kLog, true>(rows, s, stream_of(context));
  };
  if (p.op == Op::log_softmax) return launch_them.template operator()<true>();
  launch_them.template operator()<false>();
}

constexpr std::int64_t kUnit = LengthUnit<float, true, true>::kElements;
/// Warps of a block for log_softmax of ragged rows.
constexpr int kRaggedStayWarps = 8;
/// Mean length from which enough rows are longer than ragged_tiles takes. Measured for uniform and exponential lengths.
constexpr std::int64_t kLeastMeanOfLeft = 1400;
/// For those. Clusters of half or twice as many are slower.
constexpr int kBlocksOfLeft = 4;

/// Mean length up to which clusters take what tiles leave.
std::int64_t most_mean_of_left(const RowProblem& p) {
  const std::size_t size = size_of(p[Slot::x].dtype);
  if (p.op == Op::log_softmax) return most_mean_of_tiles(size);
  return size == 4 ? 6500 : 10000;
}

std::int64_t elements_of_block(const RowProblem& p) {
  return kUnit * (p.op == Op::log_softmax ? kRaggedStayWarps : ragged_unit_warps(size_of(p[Slot::x].dtype)));
}
/// So many that they hold rows of that length, at least two, as blocks of ragged_units send sums to each other.
std::int64_t blocks_for(const RowProblem& p, std::int64_t length, int most) {
  int blocks = 2;
  while (2 * blocks <= most && blocks * elements_of_block(p) < length) blocks *= 2;
  return blocks;
}

}  // namespace

RaggedStay stays_for_ragged(const RowProblem& p) {
  const std::int64_t mean = p.ragged_elements / std::max<std::int64_t>(p.rows, 1), block = elements_of_block(p);
  if (mean < kLeastMeanOfLeft || (p.op != Op::softmax && p.op != Op::log_softmax)) return {};
  if (p[Slot::mask].given || p[Slot::scales].given) return {};
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return {};
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const int most = std::min(traits.largest_cluster, 16);
  if (most < kBlocksOfLeft) return {};
  if (p.ragged_elements < kFewestStayChunks * lift::kChunk * traits.processors) return {};
  if (mean <= most_mean_of_left(p)) return {0, kBlocksOfLeft * block};
  if (mean > most * block) return {};
  // Measured, uniform and exponential lengths: of softmax's longer rows as many blocks as there can be take what is
  // left.
  if (p.op == Op::log_softmax) return {blocks_for(p, 3 * mean, most) * block, 0};
  const std::int64_t blocks = blocks_for(p, (size_of(p[Slot::x].dtype) == 4 ? 8 : 4) * mean, most);
  return {blocks * block, blocks < most ? most * block : 0};
}

void launch_ragged_stays(const RowProblem& p, std::int64_t longest, const RaggedQueue& source,
                         const RaggedQueue& longer, const RaggedQueue& missed, Stream stream) {
  if (p.op == Op::softmax) return launch_ragged_units(p, longest, source, longer, missed, stream);
  LengthRows rows = length_rows(p, {});
  rows.longest = longest, rows.source = source, rows.longer = longer;
  launch_rows<true, true, true>(rows, {static_cast<int>(longest / elements_of_block(p)), kRaggedStayWarps}, stream);
}

const RowKernel softmax_lengths_stay_kernel{"softmax_lengths_stay", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
