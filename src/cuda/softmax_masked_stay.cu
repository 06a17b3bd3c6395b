// softmax_masked_stays: which rows with a mask softmax_cluster_guesses takes, and how it is launched.
#include "cuda/softmax_guess.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr std::int64_t kLongest = 256 * lift::kChunk;
/// Measured: shorter rows are as fast by a block a row.
constexpr std::int64_t shortest(bool wide) { return (wide ? 2 : 3) * lift::kChunk; }
/// Chunks a processor below which it is not worth staying.
constexpr std::int64_t kFewestChunks = 48;

/// Two chunks to a warp.
constexpr StaySpread spread(std::int64_t chunks, bool wide) {
  if (!wide) return fewest_instructions(chunks, 64, chunks <= 18 ? 1 : 4);
  return chunks > 7 ? fewest_under_way(chunks) : StaySpread{2, static_cast<int>((chunks + 3) / 4)};
}

RowProblem without_mask(RowProblem p) {
  p[Slot::mask] = {};
  return p;
}

const char* refuses(const RowProblem& p, const Context&) {
  if (p.rung != Rung::automatic && p.rung != Rung::fused) return "another rung is asked for";
  if (p.op != Op::softmax) return "log_softmax wants each row's own frame";
  if (!p[Slot::mask].given) return "rows have no mask";
  if (p.n <= shortest(size_of(p[Slot::x].dtype) == 4) || p.n > kLongest)
    return "a row is shorter or longer than clusters hold well";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  const RowProblem rows = without_mask(p);
  if (const char* why = refuses_plain(rows)) return why;
  if (!plain_rows(rows).joined || p[Slot::mask].axis_stride != 1 || !on_vectors(p, p[Slot::mask]) || p.n % 16 != 0)
    return "rows or their masks begin or end inside 16 bytes";
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (p.rows * lift::chunk_count(p.n) < kFewestChunks * traits.processors) return "too few rows to stay for";
  if (traits.largest_cluster < 16) return "the device has no clusters of so many blocks";
  return nullptr;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  const Operand& mask = p[Slot::mask];
  MaskedRows rows{plain_rows(without_mask(p)), mask.data, p.outer_rank == 0 ? 0 : mask.strides[0]};
  rows.taken = reinterpret_cast<CounterWord*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    constexpr GuessForm kForm{Leaves::softmax, Lands::in_one_place, 256, false, false, true};
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    const StaySpread s = spread(chunks, sizeof(E) == 4);
    launch_to_stay("softmax_masked_stays",
                   softmax_cluster_guesses<E, kForm.leaves, kForm.lands, kForm.chunks, kForm.behind, kForm.masked>, s,
                   s.warps * GuessShape<E, kForm>::kWarpBytes + 2 * StayBox::bytes(chunks), rows.rows,
                   stream_of(context), rows);
  });
}

}  // namespace

const RowKernel softmax_masked_stays_kernel{"softmax_masked_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
