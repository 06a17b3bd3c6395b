// softmax_masked_stays: which rows with a mask softmax_cluster_guesses takes, and how it is launched.
#include "cuda/softmax_guess.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

MaskedRows masked_rows(const RowProblem& p) {
  const Operand& mask = p[Slot::mask];
  const std::int64_t stride = p.outer_rank == 0 ? 0 : mask.strides[0];
  return {plain_rows(without_mask(p)), mask.data, mask.data + (p.rows - 1) * stride + p.n, stride};
}

namespace {

constexpr std::int64_t kLongest = 256 * lift::kChunk;
/// Measured: shorter rows are as fast by a block a row.
constexpr std::int64_t shortest(bool wide) { return (wide ? 2 : 3) * lift::kChunk; }

/// Measured: as without a mask, but of short rows by blocks of any number of warps, which hold two chunks each.
constexpr StaySpread spread(std::int64_t chunks, bool log, bool wide, bool on_vectors) {
  constexpr std::int64_t short16 = 18, short32 = 7;
  if (!wide) return fewest_instructions(chunks, 64, chunks <= short16 ? 1 : 4);
  return chunks > short32 ? best_under_way(chunks, UnderWay::of(log, true, on_vectors))
                          : StaySpread{2, static_cast<int>((chunks + 3) / 4)};
}
constexpr bool every_warp_has_a_chunk(bool log) {
  const auto fits = [](std::int64_t chunks, const StaySpread& s) {
    return s.blocks * s.warps <= chunks && 2 * s.blocks * s.warps >= chunks;
  };
  for (std::int64_t chunks = shortest(false) / lift::kChunk + 1; chunks <= kLongest / lift::kChunk; ++chunks)
    if (!fits(chunks, spread(chunks, false, false, true))) return false;
  for (std::int64_t chunks = shortest(true) / lift::kChunk + 1; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool on_vectors : {false, true})
      if (!fits(chunks, spread(chunks, log, true, on_vectors))) return false;
  return true;
}
static_assert(every_warp_has_a_chunk(false));
static_assert(every_warp_has_a_chunk(true));

const char* refuses(const RowProblem& p, const Context&) {
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (p.n <= shortest(wide) || p.n > kLongest) return "a row is shorter or longer than clusters hold well";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_masked_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (p.rows * lift::chunk_count(p.n) < kFewestStayChunks * traits.processors) return "too few rows to stay for";
  if (traits.largest_cluster < 16) return "the device has no clusters of so many blocks";
  return nullptr;
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  MaskedRows rows = masked_rows(p);
  const int width = 16 / static_cast<int>(size_of(p[Slot::x].dtype));  // elements of a vector
  const bool whole = rows.joined && p.n % width == 0;
  rows.taken = reinterpret_cast<CounterWord*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    const auto go_by = [&]<Lands kLands, Leaves kLeaves>() {
      constexpr GuessForm kForm{kLeaves, kLands, kLongest / lift::kChunk, false, false, true};
      const StaySpread s = spread(chunks, kForm.log(), sizeof(E) == 4, kLands != Lands::anywhere);
      launch_to_stay("softmax_masked_stays",
                     softmax_cluster_guesses<E, kForm.leaves, kLands, kForm.chunks, kForm.behind, kForm.masked>, s,
                     s.warps * GuessShape<E, kForm>::kWarpBytes + 2 * StayBox::bytes(chunks), rows.rows,
                     stream_of(context), rows);
    };
    const auto go = [&]<Lands kLands>() {
      if (p.op == Op::log_softmax) return go_by.template operator()<kLands, Leaves::log_softmax>();
      go_by.template operator()<kLands, Leaves::softmax>();
    };
    if (whole && p.n % 16 == 0 && on_vectors(p, p[Slot::mask])) return go.template operator()<Lands::in_one_place>();
    if (whole && on_vectors(p, p[Slot::mask], width)) return go.template operator()<Lands::on_vectors>();
    go.template operator()<Lands::anywhere>();
  });
}

}  // namespace

const RowKernel softmax_masked_stays_kernel{"softmax_masked_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
