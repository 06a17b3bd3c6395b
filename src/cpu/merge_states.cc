// merge_states on the CPU: the fold's own merge, neighbours first, over states that are all checked beforehand.
#include "cpu/merge_kernels.hpp"
#include "cpu/merge_rows.hpp"
#include "cpu/stored_state.hpp"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const StoredState& state_at(const MergeCursor& row, int part) {
  return *reinterpret_cast<const StoredState*>(row.statistic(part));
}

void check_row(const MergeProblem& p, const MergeCursor& row, std::int64_t index) {
  const StoredState& first = state_at(row, 0);
  for (int i = 0; i < p.parts; ++i) {
    const StoredState& s = state_at(row, i);
    const auto where = [&] { return " in part " + std::to_string(i) + ", row " + std::to_string(index); };
    if (!is_sound(s)) refuse_unsound(s, where());
    if (s.digits != first.digits)
      throw Error(
          Code::state,
          "digits " + detail::shown(s.digits) + where() + " beside " + detail::shown(first.digits) + " in part 0",
          "states of one precision", "compute all of them from the same dtype");
    if (!s.has_scale(first.scale))
      throw Error(Code::state,
                  "scale " + detail::shown(s.scale) + where() + " beside " + detail::shown(first.scale) + " in part 0",
                  "states of one scale", "compute all of them with the same scale");
  }
}

template <class T>
void merge_row(const MergeProblem& p, const MergeCursor& row) {
  using Lse = fold::LogSumExp<T>;
  typename Lse::State states[MergeProblem::kMaxParts];
  for (int i = 0; i < p.parts; ++i) states[i] = state_of<T>(state_at(row, i));
  const double scale = state_at(row, 0).scale;
  *reinterpret_cast<StoredState*>(row.out_statistic()) = stored<T>(lift::reduce_nodes<Lse>(states, p.parts), scale);
}

void run_states(const MergeProblem& p, const Context& context) {
  MergeCursor row(p, 0);
  for (std::int64_t r = 0; r < p.rows; ++r, row.next()) check_row(p, row, r);
  for_merge_rows(p, context, 32 * (p.parts + 1), [&](const MergeCursor& at) {
    if (state_at(at, 0).is_double()) {
      merge_row<double>(p, at);
    } else {
      merge_row<float>(p, at);
    }
  });
}

constexpr Kernel<MergeProblem> kMergeStates[] = {{"merge_states_rows", never_refuses, run_states, nullptr}};

}  // namespace

std::span<const Kernel<MergeProblem>> merge_states_kernels() { return kMergeStates; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
