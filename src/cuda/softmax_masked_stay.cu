// softmax_masked_stays and fold_masked_stays: which rows with a mask softmax_cluster_guesses takes, and how it is
// launched.
#include "cuda/softmax_guess.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/states.hpp"
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

constexpr StaySpread spread(std::int64_t chunks, Leaves leaves, bool wide, bool on_vectors) {
  const bool log = leaves == Leaves::log_softmax, state = leaves == Leaves::state;
  if (!wide) return best_spread(chunks, {wide, on_vectors, on_vectors || state ? 1.9 : 0.9});
  if (state) return best_spread(chunks, {wide, on_vectors, 0.4});
  return best_spread(chunks, {wide, on_vectors, on_vectors ? (log ? 1.95 : 2.9) : log ? 1.35 : 2.3});
}
constexpr bool every_warp_has_a_chunk(Leaves leaves) {
  const auto fits = [](std::int64_t chunks, const StaySpread& s) {
    return s.blocks * s.warps <= chunks && 2 * s.blocks * s.warps >= chunks;
  };
  for (std::int64_t chunks = shortest(false) / lift::kChunk + 1; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool on_vectors : {false, true})
      if (!fits(chunks, spread(chunks, leaves, false, on_vectors))) return false;
  for (std::int64_t chunks = shortest(true) / lift::kChunk + 1; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool on_vectors : {false, true})
      if (!fits(chunks, spread(chunks, leaves, true, on_vectors))) return false;
  return true;
}
static_assert(every_warp_has_a_chunk(Leaves::softmax));
static_assert(every_warp_has_a_chunk(Leaves::log_softmax));
static_assert(every_warp_has_a_chunk(Leaves::state));

/// Measured: chunks a processor below which clusters do not stay.
std::int64_t fewest_chunks(const RowProblem& p, bool wide) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks <= 4) return kFewestStayChunks;
  if (!p[Slot::y].given) return 0;
  const bool sooner = wide || p.op == Op::log_softmax;  // than 16-bit softmax
  if (chunks <= 16) return sooner ? 16 : kFewestStayChunks;
  return sooner ? 4 : chunks <= 40 ? 24 : 8;
}

/// What is asked of rows that clusters take, whatever leaves them.
const char* refuses_rows(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (p.n <= shortest(wide) || p.n > kLongest) return "a row is shorter or longer than clusters hold well";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_masked_plain(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (p.rows == 0 || are_fewer_chunks(p, fewest_chunks(p, wide))) return "too few rows to stay for";
  if (traits.largest_cluster < 16) return "the device has no clusters of so many blocks";
  return nullptr;
}
const char* refuses(const RowProblem& p, const Context&) { return refuses_rows(p); }

/// f(Lands) of how rows and masks lie.
template <class E, class F>
void with_lands(const RowProblem& p, const MaskedRows& rows, const F& f) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  const bool whole = rows.joined && p.n % kWidth == 0;
  if (whole && p.n % 16 == 0 && on_vectors(p, p[Slot::mask])) return f.template operator()<Lands::in_one_place>();
  if (whole && on_vectors(p, p[Slot::mask], kWidth)) return f.template operator()<Lands::on_vectors>();
  f.template operator()<Lands::anywhere>();
}

template <class E, Leaves kLeaves>
void launch_leaves(const char* name, const RowProblem& p, const MaskedRows& rows, Stream stream) {
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  with_lands<E>(p, rows, [&]<Lands kLands>() {
    constexpr GuessForm kForm{kLeaves, kLands, kLongest / lift::kChunk, false, false, true};
    const StaySpread s = spread(chunks, kLeaves, sizeof(E) == 4, kLands != Lands::anywhere);
    launch_to_stay(name, softmax_cluster_guesses<E, kLeaves, kLands, kForm.chunks, kForm.behind, kForm.masked>, s,
                   s.warps * GuessShape<E, kForm>::kWarpBytes + 2 * StayBox::bytes(chunks), rows.rows, stream, rows);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  MaskedRows rows = masked_rows(p);
  rows.taken = reinterpret_cast<CounterWord*>(scratch.data());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const auto by = [&](auto launch_it) { launch_it("softmax_masked_stays", p, rows, stream_of(context)); };
    p.op == Op::log_softmax ? by(launch_leaves<E, Leaves::log_softmax>) : by(launch_leaves<E, Leaves::softmax>);
  });
}

/// Measured beside a warp a chunk, which has fewer instructions for few chunks.
bool pays_to_fold(const RowProblem& p) {
  constexpr std::int64_t k = lift::kChunk;
  if (size_of(p[Slot::x].dtype) == 4) return p.n > 3 * k;
  const bool whole = on_whole_vectors(p);
  return p.n > (whole ? 7 : 10) * k || (whole && p.n > 3 * k && p.n % (2 * k) == 0);
}
const char* refuses_fold(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rows(p)) return why;
  if (!pays_to_fold(p)) return "rows of this length are as fast by others";
  return has_row_results(p) ? nullptr : "results are several strides apart";
}

using State = fold::LogSumExp<float>::State;

struct FoldMemory {
  CounterWord* taken;
  State* states;  ///< a row, each as FramedState has it

  FoldMemory(const RowProblem& p, Parts& parts)
      : taken(parts.take<CounterWord>(1)), states(parts.take<State>(p.rows)) {}
};

std::size_t fold_workspace(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)FoldMemory(p, parts);
  return parts.used();
}

void run_fold(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(fold_workspace(p, context), context);
  Parts parts(scratch.data());
  const FoldMemory memory(p, parts);
  const Stream stream = stream_of(context);
  MaskedRows rows = masked_rows(p);
  rows.taken = memory.taken, rows.states = memory.states;
  rows.y = const_cast<char*>(rows.x), rows.y_stride = rows.x_stride;  // nothing goes there; it tells how parts lie
  with_element(p[Slot::x].dtype,
               [&]<class E>() { launch_leaves<E, Leaves::state>("fold_masked_stays", p, rows, stream); });
  launch("put_row_results", put_row_results<FramedState>, {ceil_div(p.rows, kPutThreads), kPutThreads},
         stream.following(), RowResults(p), p.rows, reinterpret_cast<const FramedState*>(memory.states));
}

}  // namespace

const RowKernel softmax_masked_stays_kernel{"softmax_masked_stays", refuses, run, counter_bytes};
const RowKernel fold_masked_stays_kernel{"fold_masked_stays", refuses_fold, run_fold, fold_workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
