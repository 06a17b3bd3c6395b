// softmax_cluster_stays and softmax_cluster_guesses: what they take, and how they are launched.
#include "cuda/softmax_guess.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Rows of up to so many chunks a block holds, too: twice as many chunks of them are wanted.
constexpr std::int64_t kShort = 16;
constexpr std::int64_t kLongest = 512 * lift::kChunk;

/// Measured: of rows on vectors, those that are written behind (GuessForm). Their blocks take so much of a processor's
/// shared memory that it holds no two.
constexpr bool behind(std::int64_t chunks, Leaves leaves, bool wide) {
  if (!wide) return chunks > (leaves == Leaves::log_softmax ? 255 : 228);
  return chunks > (leaves == Leaves::gradient ? 220 : 248) && chunks <= 384;
}
constexpr StaySpread spread_behind(std::int64_t chunks, bool wide) {
  const int blocks = wide ? (chunks > 360 ? 16 : 15) : chunks > 256 ? 16 : 8;
  return {blocks, static_cast<int>((chunks + 2 * blocks - 1) / (2 * blocks))};
}
/// Of all others.
constexpr StaySpread spread_at_once(std::int64_t chunks, Leaves leaves, bool wide, bool on_vectors) {
  if (chunks > 256) return {16, static_cast<int>((chunks + 31) / 32)};
  if (!wide) return best_spread(chunks, {wide, on_vectors, on_vectors ? 1.5 : 0.9});
  if (leaves == Leaves::gradient) return best_spread(chunks, {wide, on_vectors, on_vectors ? 2.8 : 1.6});
  return best_spread(chunks, {wide, on_vectors, on_vectors ? 4. : 2.5});
}

/// More chunks than warps: the last warp has two or more, so that the one before ends 1024 elements before the row
/// does. A gradient's row is looked after by the second warp (GuessWaits).
constexpr bool every_warp_has_a_chunk(Leaves leaves) {
  for (std::int64_t chunks = 7; chunks <= kLongest / lift::kChunk; ++chunks)
    for (const bool wide : {false, true}) {
      const auto fits = [chunks, leaves](const StaySpread& s) {
        return s.blocks * s.warps < chunks && 2 * s.blocks * s.warps >= chunks && s.warps <= kStayWarps &&
               s.warps >= (leaves == Leaves::gradient ? 2 : 1);
      };
      if (!fits(spread_at_once(chunks, leaves, wide, true)) || !fits(spread_at_once(chunks, leaves, wide, false)))
        return false;
      if (behind(chunks, leaves, wide) && !fits(spread_behind(chunks, wide))) return false;
    }
  return true;
}
// Others on vectors have places for 256 chunks in 16 bit.
static_assert(behind(257, Leaves::softmax, false) && behind(kLongest / lift::kChunk, Leaves::softmax, false));
static_assert(behind(257, Leaves::log_softmax, false) && behind(kLongest / lift::kChunk, Leaves::log_softmax, false));
static_assert(every_warp_has_a_chunk(Leaves::softmax));
static_assert(every_warp_has_a_chunk(Leaves::log_softmax));
static_assert(every_warp_has_a_chunk(Leaves::gradient));

/// log_softmax of plain rows. Measured: which of those that clusters hold are faster by others.
const char* refuses_log(const RowProblem& p, std::int64_t chunks, bool wide) {
  if (chunks <= 256) return nullptr;
  if (!on_whole_vectors(p)) return "longer log_softmax inside vectors is faster by others";
  if (wide) return chunks <= 384 ? nullptr : "log_softmax of this length is faster by others";
  return chunks > 436 || (chunks > 350 && chunks <= 384) ? nullptr : "log_softmax of this length is faster by others";
}

/// Measured: by blocks a row is as fast or faster.
bool fits_block(const RowProblem& p, std::int64_t chunks, bool wide) {
  const bool is_log = p.op == Op::log_softmax;
  if (wide) return chunks <= (is_log || p.op == Op::softmax ? 16 : 32);
  if (chunks > kShort) return false;
  const bool whole_vectors = p.n % 8 == 0 && on_vectors(p, p[Slot::x]);
  if (is_log) {
    if (chunks <= 10) return true;
    if (chunks == kShort) return false;
    // Inside vectors clusters are faster, but for 13 chunks; on vectors they are of 11, and of 14 that are nearly full.
    if (!whole_vectors) return chunks == 13;
    return chunks != 11 && !(chunks == 14 && p.n > 14000);
  }
  // Well, of whole pairs of chunks.
  const std::int64_t held = 8 * lift::kChunk;
  return chunks <= 6 || (p.n <= held && p.n % (2 * lift::kChunk) == 0 && whole_vectors);
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  if (fits_block(p, chunks, wide)) return "a row fits a block";
  const bool is_log = p.op == Op::log_softmax;
  if (p.n > kLongest) return "a row is longer than clusters hold well";
  if (!lift::Factor(fold::make_scale<float>(p.scale).c).plain) return "a scale of 0, or one that is not finite";
  if (const char* why = refuses_plain(p)) return why;
  if (is_log)
    if (const char* why = refuses_log(p, chunks, wide)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  // Measured: chunks a processor. Of fewer, kernels that do not stay hold all rows at once.
  const std::int64_t fewest = chunks <= kShort ? 2 * kFewestStayChunks : chunks < 64 ? 33 : 31;
  if (are_fewer_chunks(p, fewest)) return "too few rows to stay for";
  if (traits.largest_cluster < 16) return "the device has no clusters of so many blocks";
  return nullptr;
}

template <Leaves kLeaves>
void launch_leaves(const PlainRows& p, DType dtype, Stream stream, bool early = false) {
  with_element(dtype, [&]<class E>() {
    const auto chunks = static_cast<int>(lift::chunk_count(p.n));
    const auto go = [&](const char* name, auto kernel, int warp_bytes, const StaySpread& s) {
      launch_to_stay(name, kernel, s, s.warps * warp_bytes + 2 * StayBox::bytes(chunks), p.rows, stream, p, early);
    };
    const bool on_vectors = p.joined && p.n % StayShape<E>::Place::kWidth == 0;
    const StaySpread s = spread_at_once(chunks, kLeaves, sizeof(E) == 4, on_vectors);
    [[maybe_unused]] const bool on_sectors =
        (reinterpret_cast<std::uintptr_t>(p.x) | static_cast<std::uintptr_t>(p.x_stride)) % kCopySector == 0;
    const auto guess = [&]<Lands kLands, int kChunks, bool kBehind>(const StaySpread& of) {
      constexpr GuessForm kForm{kLeaves, kLands, kChunks, kBehind};
      go("softmax_cluster_guesses", softmax_cluster_guesses<E, kLeaves, kLands, kChunks, kBehind>,
         GuessShape<E, kForm>::kWarpBytes, of);
    };
    // Longer rows are written behind, but for these; a gradient's are none (refuses_gradient), nor are those of
    // log_softmax inside vectors (refuses_log).
    const auto at_once = [&]<Lands kLands>() {
      constexpr bool kLong = kLeaves == Leaves::softmax && (kLands == Lands::anywhere || sizeof(E) == 4);
      if (!kLong || chunks <= 256) return guess.template operator()<kLands, 256, false>(s);
      if constexpr (kLong) guess.template operator()<kLands, 512, false>(s);
    };
    if (!on_vectors) return at_once.template operator()<Lands::anywhere>();
    const auto land = [&]<Lands kLands>() {
      if (!behind(chunks, kLeaves, sizeof(E) == 4)) return at_once.template operator()<kLands>();
      guess.template operator()<kLands, 512, true>(spread_behind(chunks, sizeof(E) == 4));
    };
    // Measured: gradients lose more by what the end of a row then takes than they gain.
    if constexpr (kLeaves != Leaves::gradient)
      if (!on_sectors) return land.template operator()<Lands::on_vectors>();
    land.template operator()<Lands::in_one_place>();
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(counter_bytes(p, context), context);
  const Stream stream = stream_of(context);
  const DType dtype = p[Slot::x].dtype;
  PlainRows rows = plain_rows(p);
  rows.taken = reinterpret_cast<CounterWord*>(scratch.data());
  if (p.op == Op::log_softmax) return launch_leaves<Leaves::log_softmax>(rows, dtype, stream);
  launch_leaves<Leaves::softmax>(rows, dtype, stream);
}

}  // namespace

bool clusters_stay_for(const RowProblem& p) { return refuses(p, {}) == nullptr; }

void launch_stays_gradient(const PlainRows& rows, DType dtype, Stream stream, bool early) {
  launch_leaves<Leaves::gradient>(rows, dtype, stream, early);
}

const RowKernel softmax_cluster_stays_kernel{"softmax_cluster_stays", refuses, run, counter_bytes};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
