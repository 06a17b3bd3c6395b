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
  return p.rows * chunks < kFewestStayChunks * traits.processors ? "too few rows to stay for" : nullptr;
}

template <bool kLog, bool kAnywhere, bool kRagged = false>
void launch_rows(const RowProblem& p, const RaggedStay& ragged, const RaggedQueue& source, const RaggedQueue& queue,
                 const StaySpread& s, Stream stream) {
  const auto scale = fold::make_scale<float>(p.scale);
  const Operand& x = p[Slot::x];
  const Extent ragged_x{x.data, x.data + p.ragged_elements * static_cast<std::int64_t>(size_of(x.dtype))};
  const LengthRows rows{p,
                        kRagged ? ragged_x : memory_of(p, x),
                        scale,
                        lift::Factor(scale.c),
                        fold::LogNormaliser<float>(fold::LogSumExp<float>::identity(), scale).two_kappa,
                        ragged,
                        source,
                        queue};
  with_element(p[Slot::x].dtype, [&]<class E>() {
    using Unit = LengthUnit<E, kAnywhere, kRagged>;
    const int shared = s.warps * Unit::kStages * Unit::kBytes + 2 * StayBox::bytes(s.blocks * s.warps * Unit::kChunks);
    launch_to_stay("softmax_lengths_stay", softmax_lengths_stay<Unit, kLog>, s, shared, p.rows, stream, rows);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const StaySpread s = spread(lift::chunk_count(p.n));
  const auto launch_them = [&]<bool kLog>() {
    if (on_whole_vectors(p)) return launch_rows<kLog, false>(p, {}, {}, {}, s, stream_of(context));
    launch_rows<kLog, true>(p, {}, {}, {}, s, stream_of(context));
  };
  if (p.op == Op::log_softmax) return launch_them.template operator()<true>();
  launch_them.template operator()<false>();
}

constexpr std::int64_t kUnit = LengthUnit<float, true, true>::kElements;
/// Warps of a block for ragged rows.
constexpr int kRaggedStayWarps = 8;
/// Mean length from which enough rows are longer than ragged_tiles takes. Measured for uniform and exponential lengths.
constexpr std::int64_t kLeastMeanOfQueue = 1400;
/// For those: rows of up to 65536. Clusters for half or twice as long ones are slower.
constexpr StaySpread kSpreadOfQueue{4, kRaggedStayWarps};

/// Clusters for rows of three times the mean, up to 16 blocks. Measured, rows of up to twice the mean: the fewest
/// blocks that hold them, or twice as many, are as fast; four times as many lose a tenth.
StaySpread spread_ragged(std::int64_t mean) {
  int blocks = 1;
  while (blocks < 16 && blocks * kRaggedStayWarps * kUnit < 3 * mean) blocks *= 2;
  return {blocks, kRaggedStayWarps};
}

}  // namespace

RaggedStay stays_for_ragged(const RowProblem& p) {
  const std::int64_t mean = p.ragged_elements / std::max<std::int64_t>(p.rows, 1);
  const bool of_queue = mean <= most_mean_of_tiles(size_of(p[Slot::x].dtype));
  if (mean < kLeastMeanOfQueue || (p.op != Op::softmax && p.op != Op::log_softmax)) return {};
  if (p[Slot::mask].given || p[Slot::scales].given) return {};
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return {};
  const StaySpread s = of_queue ? kSpreadOfQueue : spread_ragged(mean);
  if (mean > s.blocks * s.warps * kUnit) return {};
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < s.blocks) return {};
  if (p.ragged_elements < kFewestStayChunks * lift::kChunk * traits.processors) return {};
  return {s.blocks * s.warps * kUnit, of_queue};
}

void launch_ragged_stays(const RowProblem& p, const RaggedStay& stay, const RaggedQueue& source,
                         const RaggedQueue& queue, Stream stream) {
  const StaySpread s{static_cast<int>(stay.longest / (kRaggedStayWarps * kUnit)), kRaggedStayWarps};
  if (p.op == Op::log_softmax) return launch_rows<true, true, true>(p, stay, source, queue, s, stream);
  launch_rows<false, true, true>(p, stay, source, queue, s, stream);
}

const RowKernel softmax_lengths_stay_kernel{"softmax_lengths_stay", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
