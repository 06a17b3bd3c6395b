#include "pieces.hpp"

#include "softfold/stream.hpp"

#include <algorithm>
#include <vector>

namespace softfold::python {
namespace {

using Index = std::array<std::int64_t, kMaxRank>;

/// The next index of the axes [first, last) in C order; false after the last one.
bool advance(Index& at, const Tensor& t, int first, int last) {
  for (int i = last - 1; i >= first; --i) {
    if (++at[static_cast<std::size_t>(i)] < t.size(i)) return true;
    at[static_cast<std::size_t>(i)] = 0;
  }
  return false;
}

const char* address(const Tensor& t, const Index& at) {
  std::int64_t offset = 0;
  for (int i = 0; i < t.rank; ++i) offset += at[static_cast<std::size_t>(i)] * t.stride(i);
  return static_cast<const char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

/// The states of all rows, four numbers each, in C order of the kept axes.
std::vector<double> states_of(const Tensor& x, int folded, const RowOptions& options, const Context& context) {
  const int kept = x.rank - folded, inner = x.rank - 1;
  const std::int64_t shape[] = {x.size(inner)}, strides[] = {x.stride(inner)};
  std::vector<double> states;
  if (x.count() == 0) return states;
  Index at{};
  do {
    Stream row(x.dtype, options.scale, 0, context);
    do row.push(View(address(x, at), x.dtype, shape, strides));
    while (advance(at, x, kept, inner));
    const auto state = row.state();
    states.insert(states.end(), state.begin(), state.end());
  } while (advance(at, x, 0, kept));
  return states;
}

/// The states as the plan along x's last axis wants them: the same one for every piece of a row.
Tensor spread(const Tensor& states, const Tensor& x, int folded) {
  const int kept = x.rank - folded;
  if (states.rank != kept + 1)
    throw Error(Code::shape, "states, " + states.describe(), "one vector of 4 a row: the kept axes and [4]");
  Tensor to = states;
  to.rank = x.rank;
  for (int i = kept; i < x.rank; ++i) {
    to.shape[static_cast<std::size_t>(i)] = i + 1 == x.rank ? 4 : x.size(i);
    to.strides[static_cast<std::size_t>(i)] = i + 1 == x.rank ? states.stride(kept) : 0;
  }
  return to;
}

}  // namespace

bool run_in_pieces(Op op, const Tensor& x, const Tensor& states, const Tensor& out, int folded, const RowOptions& asked,
                   const Context& context) {
  const bool forward = op == Op::softmax || op == Op::log_softmax || op == Op::logsumexp || op == Op::state;
  if (x.device.kind != DeviceKind::cpu) return false;
  if (!forward && op != Op::finish_softmax && op != Op::finish_log_softmax) return false;
  const nb::gil_scoped_release others_run;
  RowOptions options = asked;
  options.axis = -1;
  std::vector<double> own;
  Tensor whole = states;
  if (forward) {
    own = states_of(x, folded, options, context);
    whole = Tensor{own.data(), DType::float64, {}, x.rank - folded + 1, true, x.shape, {}};
    whole.shape[static_cast<std::size_t>(whole.rank - 1)] = 4;
    std::int64_t step = 1;
    for (int i = whole.rank - 1; i >= 0; step *= whole.size(i--)) whole.strides[static_cast<std::size_t>(i)] = step;
  }
  const View parts[] = {whole.view()};
  if (op == Op::state) return merge_states(parts, out.view(), context), true;
  if (op == Op::logsumexp) return finish_logsumexp(parts[0], out.view(), context), true;
  const Tensor piece_states = spread(whole, x, folded);
  const bool log = op == Op::log_softmax || op == Op::finish_log_softmax;
  if (log)
    finish_log_softmax(x.view(), piece_states.view(), out.view(), options, context);
  else
    finish_softmax(x.view(), piece_states.view(), out.view(), options, context);
  return true;
}

}  // namespace softfold::python
