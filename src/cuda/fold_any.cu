// fold_any_rows: what it takes, and how it is launched.
#include "cuda/fold_any.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Lse = fold::LogSumExp<float>;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_rung(p.rung, Rung::tiled)) return why;
  if (p.n == 0) return "rows of no elements";
  if (p[Slot::offsets].given) return "rows are ragged";
  if (p.is_double()) return "float64 has no tiles";
  if (is_across(p, Slot::x) && !folds_few_together(p)) return "rows lie side by side";
  return refuses_chunks(p);
}

/// Of plain rows those that are faster by it. Measured.
const char* refuses_short(const RowProblem& p, const Context& context) {
  const std::size_t size = size_of(p[Slot::x].dtype);
  const bool is_short = p.n < 8 || (size == 2 && p.n == 12);
  if (p.n >= 64) return "rows are longer than is faster an element at a time";
  if (const char* why = refuses_plain(p)) return why;
  if (!is_short && p.n >= 16 && p.rows * p.n > 1 << 22) return "so many rows are faster by vectors";
  if (!is_short && plain_rows(p).x_stride == static_cast<std::int64_t>(static_cast<std::size_t>(p.n) * size))
    return "rows that lie end to end are faster by others";
  return refuses(p, context);
}

/// Measured: short rows, and rows with masks that do not fill lanes or chunks, of 16 bit if they are rows of fours.
bool faster_by_any(const RowProblem& p) {
  if (refuses_vectors(p) != nullptr || p.n <= 32) return true;
  const bool fills = (p.n % lift::kChunk == 0 || fills_groups(p.n)) && on_vectors(p, p[Slot::x]);
  if (!p[Slot::mask].given || fills) return false;
  return p[Slot::x].dtype == DType::float32 ? p.n > 64 : p.n > 256 && is_of_fours(p);
}

/// Whether rows' states go straight to their results. One lane of a row's group does that, while the others wait: of
/// longer rows it costs more instructions than the states cost bytes.
bool folds_to_results(const RowProblem& p) { return p.n <= (faster_by_any(p) ? 64 : 128) && has_row_results(p); }

std::size_t workspace(const RowProblem& p, const Context&) {
  return folds_to_results(p) ? 0 : state_bytes<Lse::State>(p);
}

template <class Elements, int kMinBlocks>
void launch_elements(const RowProblem& p, const FoldResults& to, Stream stream) {
  const std::int64_t items = p.rows * lift::chunk_count(p.n);
  const Grid grid{ceil_div(items, kAnyThreads / Elements::kLanes), kAnyThreads};
  launch("fold_any_chunks", fold_any_chunks<Elements, kMinBlocks>, grid, stream, p, items, to);
}

void launch_vectors(const RowProblem& p, const FoldResults& to, Stream stream) {
  with_element(p[Slot::x].dtype, [&]<class E>() {
    constexpr int at_once = sizeof(E) == 4 ? 3 : 4;
    const auto by = [&]<int kLanes>() {
      p[Slot::mask].given ? launch_elements<VectorElements<E, kLanes, lift::kPerLane>, at_once>(p, to, stream)
                          : launch_elements<UnmaskedElements<E, kLanes>, at_once>(p, to, stream);
    };
    if (p.n > kGroupElements) return by.template operator()<32>();
    with_group_lanes(p.n, by);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const Stream stream = stream_of(context);
  auto* states = folds_to_results(p) ? nullptr : reinterpret_cast<Lse::State*>(scratch.data());
  const FoldResults to{states, RowResults(p)};
  const auto by = [&]<class Elements>() { launch_elements<Elements, 4>(p, to, stream); };
  if (!faster_by_any(p)) {
    launch_vectors(p, to, stream);
  } else {
    p.n <= lift::kChunk ? with_any_rows(p, by) : with_any_chunks(p, by);
  }
  if (states != nullptr) merge_to_results<float>(p, states, stream);
}

}  // namespace

const RowKernel fold_any_short_kernel{"fold_any_short", refuses_short, run, workspace};
const RowKernel fold_any_rows_kernel{"fold_any_rows", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
