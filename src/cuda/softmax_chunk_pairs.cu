// softmax_chunk_pairs, softmax_masked_chunks: what they take, and how they are launched.
#include "cuda/softmax_chunk_pairs.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Chunks from which on a block a row fills the device.
constexpr std::int64_t kFewestChunks = 4096;
constexpr std::int64_t kLongest = (kPairChunks - 1) * lift::kChunk;

bool rows_on_vectors(const PlainRows& p, std::int64_t size) { return p.joined && p.n * size % 16 == 0; }

/// Measured: where others are slower, or level.
bool pays(const PlainRows& p, Op op, std::int64_t size) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  const bool on_vectors = rows_on_vectors(p, size);
  if (size == 4) return p.n <= (op == Op::log_softmax ? 1900 : 1600);
  if (on_vectors && p.n % (2 * lift::kChunk) == 0) return false;
  if (op == Op::log_softmax) return true;
  switch (chunks) {
    case 7: return !on_vectors && p.n <= 6912;
    case 9: return !on_vectors || p.n <= 9088;
    default: return chunks <= 6;
  }
}

/// Of softmax and log_softmax, with a mask or without.
const char* refuses_pairs(const RowProblem& p, const char* others) {
  if (p.rows == 0 || p.rows > 0x7FFFFFFF) return "no rows, or more than a grid has";
  const float c = fold::make_scale<float>(p.scale).c;
  return c > 0.F && lift::Factor(c).plain ? others : "a scale that is not positive and finite";
}

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::fused)) return why;
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks < 2) return "a row fits a warp";
  if (p.n > kLongest) return "a row is longer than a block holds well (15360)";
  if (p.rows * chunks < kFewestChunks) return "so few rows are spread over clusters";
  if (const char* why = refuses_pairs(p, refuses_plain(p))) return why;
  if (p.op == Op::log_softmax && clusters_stay_for(p)) return "clusters that stay are faster";
  const auto size = static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  return pays(plain_rows(p), p.op, size) ? nullptr : "rows of this length are as fast by others";
}

/// Measured: where others are slower, or level.
bool pays_with_masks(const PlainRows& p, std::int64_t size) {
  const bool on_vectors = rows_on_vectors(p, size);
  if (size == 4) return !on_vectors;
  return p.n <= 6 * lift::kChunk && !(on_vectors && p.n % (2 * lift::kChunk) == 0);
}

const char* refuses_masked(const RowProblem& p, const Context&) {
  if (p.op != Op::softmax) return "log_softmax has no form with masks";
  if (p.n <= 2 * lift::kChunk || p.n > kLongest) return "a row is shorter or longer than a few warps hold well";
  if (const char* why = refuses_pairs(p, refuses_masked_plain(p))) return why;
  if (!masks_fit_vectors(p)) return "masks lie otherwise to vectors than rows do";
  const auto size = static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  return pays_with_masks(masked_rows(p), size) ? nullptr : "rows of this length are as fast by others";
}

/// Rows a block, on their way together: measured, but fewer where blocks would not fill the device.
int runs_of(const PlainRows& p, Op op, std::int64_t size, int warps, int processors) {
  int runs = size == 4 ? 1 : 2;
  if (size == 2 && op == Op::softmax && !rows_on_vectors(p, size)) {
    const std::int64_t chunks = lift::chunk_count(p.n);
    if (p.n <= 1600 || chunks == 5 || chunks >= 7) runs = 4;
  }
  return runs_that_fill(runs, p.rows, warps, processors);
}

template <class E, bool kThree, bool kOnVectors, bool kMasked>
void launch_rows(PairRows<kMasked> p, Op op, int processors, Stream stream) {
  const int warps = PairShare<kThree>::warps(lift::chunk_count(p.n));
  const int runs = runs_of(p, op, sizeof(E), warps, processors);
  p.pitch = PairPlace<E>::bytes(p.n) + (kMasked ? PairPlace<char>::bytes(p.n) : 0);
  const Grid grid{(p.rows + runs - 1) / runs, 32 * warps, 1, runs * p.pitch};
  if constexpr (kMasked) {
    launch("softmax_masked_chunks", softmax_chunk_pairs<E, kThree, kOnVectors, true>, grid, stream, p, runs);
  } else {
    launch(
        "softmax_chunk_pairs",
        op == Op::softmax ? softmax_chunk_pairs<E, kThree, kOnVectors> : log_softmax_chunk_pairs<E, kThree, kOnVectors>,
        grid, stream, p, runs);
  }
}

template <bool kMasked>
void launch_pairs(const PairRows<kMasked>& rows, const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const int processors = traits_of(device.device()).processors;
  const Stream stream = stream_of(context);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    const bool on_vectors = rows_on_vectors(rows, sizeof(E));
    constexpr bool kWide = sizeof(E) == 4;
    if constexpr (!kWide) {  // of float32 plain ones so long go to others, and pairs are as fast
      if (lift::chunk_count(p.n) == 3)
        return on_vectors ? launch_rows<E, true, true, kMasked>(rows, p.op, processors, stream)
                          : launch_rows<E, true, false, kMasked>(rows, p.op, processors, stream);
    }
    if constexpr (!(kWide && kMasked))  // which go to others
      if (on_vectors) return launch_rows<E, false, true, kMasked>(rows, p.op, processors, stream);
    launch_rows<E, false, false, kMasked>(rows, p.op, processors, stream);
  });
}
void run(const RowProblem& p, const Context& context) { launch_pairs<false>(plain_rows(p), p, context); }
void run_masked(const RowProblem& p, const Context& context) { launch_pairs<true>(masked_rows(p), p, context); }

}  // namespace

const RowKernel softmax_chunk_pairs_kernel{"softmax_chunk_pairs", refuses, run, nullptr};
const RowKernel softmax_masked_chunks_kernel{"softmax_masked_chunks", refuses_masked, run_masked, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
