// backward_hidden_rows: what it takes, and how it is launched.
#include "cuda/backward_hidden_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  return refuses_hidden_gradient(p);
}

/// Measured: rows of so many bytes, of which lengths hide half, are faster one by one, as far as they go.
constexpr std::int64_t kFewestCutBytes = 512;

template <class E>
HiddenRows hidden_rows(const RowProblem& p) {
  HiddenRows h{hidden_gradient(p), 0, false, false, false};
  const auto n = static_cast<int>(p.n), size = static_cast<int>(sizeof(E));
  const bool lengths = p[Slot::length].given || p.causal;
  const bool end_to_end_rows = end_to_end(h.y, size) && end_to_end(h.dy, size);
  h.cut = lengths && (!end_to_end_rows || n * size >= kFewestCutBytes);
  h.y.joined = h.dy.joined = end_to_end_rows && !h.cut;
  h.y.pitch = h.dy.pitch = OddPlace<E>::pitch(h.y);
  h.mask_joined = h.y.joined && mask_stride(p) == n;
  h.mask_pitch = h.mask_joined ? n : (n + 15) / 16 * 16 + 16;
  h.alike = !lengths && !p[Slot::scales].given && (!p[Slot::mask].given || h.mask_joined);
  return h;
}

/// go.operator()<Tile, vectors of a lane>(), with the fewest lanes that hold a row.
template <class E, int kLanes = 1, class Go>
void with_shape(const PlainRows& rows, const Go& go) {
  constexpr int most = kHiddenVectors<E>;
  const int vectors = vectors_of(rows, static_cast<int>(sizeof(E)));
  if constexpr (kLanes * most * 16 / static_cast<int>(sizeof(E)) < lift::kChunk)
    if (vectors > kLanes * most) return with_shape<E, 2 * kLanes>(rows, go);
  const int each = (vectors + kLanes - 1) / kLanes;
  if (vectors == kLanes * most && on_vectors(rows, sizeof(E)))
    return go.template operator()<FilledTile<E, kLanes, most>, most>();
  if constexpr (kLanes == 1) {
    if (each <= 2) return go.template operator()<HiddenTile<E, kLanes, 2, 0>, 2>();
    if constexpr (most > 4)
      if (each <= 4) return go.template operator()<HiddenTile<E, kLanes, 4, 1>, 4>();
  }
  constexpr int some = most * 3 / 4;
  if (each <= some) return go.template operator()<HiddenTile<E, kLanes, some, most / 2 - 1>, some>();
  go.template operator()<HiddenTile<E, kLanes, most, some - 1>, most>();
}

template <class E, template <class> class Gradient>
void launch_rows(const RowProblem& p, Stream stream) {
  const HiddenRows h = hidden_rows<E>(p);
  PlainRows rows = h.y;
  rows.joined = on_whole_vectors(p) && on_vectors(p, p[Slot::dy]);
  with_shape<E>(rows, [&]<class Tile, int kVectors>() {
    constexpr int each = Tile::kRows, all = each * kOddWarps * kOddRuns;
    constexpr int slots = 32 / each * kVectors * 16 / static_cast<int>(sizeof(E));  // of the last mask
    const int sets = kOddWarps * kOddRuns * (2 * OddPlace<E>::bytes(h.y, each) + h.mask_bytes(each));
    const Grid grid{(p.rows + all - 1) / all, 32 * kOddWarps, 1, sets + slots};
    launch("backward_hidden_rows", backward_hidden_rows<E, Tile, kVectors, Gradient>, grid, stream, h);
  });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    if (p.op == Op::softmax_backward) return launch_rows<E, fold::SoftmaxGradient>(p, stream_of(context));
    launch_rows<E, fold::LogSoftmaxGradient>(p, stream_of(context));
  });
}

}  // namespace

const RowKernel backward_hidden_rows_kernel{"backward_hidden_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
