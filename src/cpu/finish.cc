// finish_*: from merged states to a shard's results. The states are checked before anything is written.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"
#include "softfold/error.hpp"

#include <cmath>
#include <cstdio>
#include <string>

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// A state as it lies in memory.
struct StoredState {
  double m, d, scale, digits;
};

StoredState stored_state(const Row& r) {
  const auto* s = reinterpret_cast<const double*>(r.states);
  return {s[0], s[1], s[2], s[3]};
}

template <class T>
typename fold::LogSumExp<T>::State state_of(const StoredState& s) {
  return {s.m, static_cast<T>(s.d)};
}

std::string text(double a) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.17g", a);
  return buffer;
}

/// (m, d) that a fold in T can have led to.
template <class T>
bool is_state(const StoredState& s) {
  const double infinity = fold::infinity<double>();
  if (s.m == infinity) return s.d == 1 || std::isnan(s.d);
  if (s.m == -infinity) return s.d == 0;
  if (!std::isfinite(s.m) || s.m * fold::Real<T>::kUnit != std::rint(s.m * fold::Real<T>::kUnit)) return false;
  return s.d > 0 && s.d < infinity && static_cast<double>(static_cast<T>(s.d)) == s.d;
}

void check_state(const RowProblem& p, const Row& r, std::int64_t index) {
  const StoredState s = stored_state(r);
  const std::string of_row = " in the state of row " + std::to_string(index);
  const bool is_double = s.digits == fold::Real<double>::kDigits;
  if (!is_double && s.digits != fold::Real<float>::kDigits)
    throw Error(Code::state, "digits " + text(s.digits) + of_row, "24 (folded in float32) or 53 (folded in float64)",
                "give the states that softfold::state wrote: (m, d, scale, digits)");
  if (p[Slot::x].given) {
    if (is_double != p.is_double())
      throw Error(Code::state, "digits " + text(s.digits) + of_row,
                  p.is_double() ? "53, as x is float64" : "24, as x is folded in float32",
                  "compute the states from x's own dtype");
    if (s.scale != r.scale && !(std::isnan(s.scale) && std::isnan(r.scale)))
      throw Error(Code::state, "scale " + text(s.scale) + of_row, "the scale asked for, " + text(r.scale),
                  "use one scale for all shards of a row");
  }
  if (!(is_double ? is_state<double>(s) : is_state<float>(s)))
    throw Error(Code::state, "(m, d) = (" + text(s.m) + ", " + text(s.d) + ")" + of_row, "a state that a row can have",
                "give the states that softfold::state or merge_states wrote");
}

void check_states(const RowProblem& p) {
  RowCursor cursor(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, cursor.next()) check_state(p, cursor.row(), r);
}

const char* refuses(const RowProblem& p, const Context&) { return refuses_rung(p, Rung::tiled); }

template <Result result>
void run(const RowProblem& p, const Context& context) {
  check_states(p);
  with_fold_type(p, [&]<class T>(T) {
    for_rows<T>(p, context, result, [](auto& worker, const Row& r) { worker.finish(r, state_of<T>(stored_state(r))); });
  });
}

void run_logsumexp(const RowProblem& p, const Context&) {
  check_states(p);
  RowCursor cursor(p, 0);
  for (std::int64_t i = 0; i < p.rows; ++i, cursor.next()) {
    const Row r = cursor.row();
    const StoredState s = stored_state(r);
    const auto put = [&](auto lse) {
      with_dtype(p[Slot::row].dtype, [&]<class S>(S) { *reinterpret_cast<S*>(r.result) = fold::narrow<S>(lse); });
    };
    if (s.digits == fold::Real<double>::kDigits) {
      put(chunk_ops<double>().finish(state_of<double>(s), fold::make_scale<double>(s.scale)));
    } else {
      put(chunk_ops<float>().finish(state_of<float>(s), fold::make_scale<float>(s.scale)));
    }
  }
}

constexpr Kernel<RowProblem> kSoftmax[] = {{"finish_softmax_tiled", refuses, run<Result::softmax>, nullptr}};
constexpr Kernel<RowProblem> kLogSoftmax[] = {{"finish_log_softmax_tiled", refuses, run<Result::log_softmax>, nullptr}};
constexpr Kernel<RowProblem> kLogSumExp[] = {{"finish_logsumexp", refuses, run_logsumexp, nullptr}};

}  // namespace

RowKernels finish_kernels(Op op) {
  switch (op) {
    case Op::finish_softmax: return kSoftmax;
    case Op::finish_log_softmax: return kLogSoftmax;
    default: return kLogSumExp;
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
