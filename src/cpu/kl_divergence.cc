// kl_divergence and its backward pass on the CPU.
#include "cpu/kl_rows.hpp"
#include "cpu/row_schedules.hpp"
#include "cpu/row_states.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// From states to sums to results: both rows are read once for their states, once for the sums and once more for the
/// gradients, from the cache where they fit there.
template <class T>
class KlRun {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  using Sums = typename KlRow<T>::Sums;
  using States = typename KlRow<T>::States;

  KlRun(const KlProblem& p, const Context& context)
      : p_(p), q_(rows_of_q(p)), context_(context), backward_(p.op == Op::kl_divergence_backward) {}

  void run() {
    if (backward_) check_states(p_), check_states(q_);
    if (splits_inside_rows(p_, context_)) return shared_rows();
    split_rows(p_, context_, [&](std::int64_t first, std::int64_t last) {
      RowCursor p_cursor(p_, first), q_cursor(q_, first);
      for (; first < last; ++first, p_cursor.next(), q_cursor.next()) {
        const Row p_row = p_cursor.row(), q_row = q_cursor.row();
        KlRow<T> row(p_, q_, p_row, q_row, first);
        const States s = backward_ ? stored(p_row, q_row)
                                   : States{RowWorker<T>(p_, Result::state).reduce(p_row, 0, p_row.n),
                                            RowWorker<T>(q_, Result::state).reduce(q_row, 0, q_row.n)};
        const Sums sums = row.sums(s, 0, p_row.n);
        finish(row, p_row, q_row, s, sums);
        if (writes()) row.write(s, sums, 0, p_row.n);
      }
    });
  }

 private:
  bool writes() const { return p_[Slot::y].given || q_[Slot::y].given; }

  static States stored(const Row& p_row, const Row& q_row) {
    return {state_of<T>(stored_state(p_row)), state_of<T>(stored_state(q_row))};
  }

  void finish(const KlRow<T>& row, const Row& p_row, const Row& q_row, const States& s, const Sums& sums) const {
    if (backward_) return;
    row.finish(s, sums);
    if (p_[Slot::states].given) RowWorker<T>(p_, Result::state).finish(p_row, s.p);
    if (q_[Slot::states].given) RowWorker<T>(q_, Result::state).finish(q_row, s.q);
  }

  /// Few long rows: the threads share each of them, and meet between its states, its sums and its gradients.
  void shared_rows() {
    const Blocks blocks(p_.n);
    const auto count = static_cast<std::size_t>(p_.rows * blocks.count);
    const Scratch::Held<State> states(thread_scratch(), Scratch::blocks, 2 * count);
    const Scratch::Held<Sums> sums(thread_scratch(), Scratch::block_sums, count);
    const auto nodes = [&](bool of_q, std::int64_t row) {
      return states.data() + (of_q ? count : 0) + static_cast<std::size_t>(row * blocks.count);
    };
    for (const bool of_q : {false, true}) {
      const RowProblem& problem = of_q ? q_ : static_cast<const RowProblem&>(p_);
      if (!backward_)
        for_blocks(problem, context_, blocks,
                   [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
                     nodes(of_q, i)[b] = RowWorker<T>(problem, Result::state).reduce(r, begin, end);
                   });
      RowCursor cursor(problem, 0);
      for (std::int64_t i = 0; i < p_.rows; ++i, cursor.next())
        nodes(of_q, i)[0] =
            backward_ ? state_of<T>(stored_state(cursor.row())) : lift::reduce_nodes<Lse>(nodes(of_q, i), blocks.count);
    }
    const auto each = [&](const auto& body) {
      for_blocks(p_, context_, blocks,
                 [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
                   const Row q_row = RowCursor(q_, i).row();
                   KlRow<T> row(p_, q_, r, q_row, i);
                   Sums* const of_row = sums.data() + i * blocks.count;
                   body(row, States{nodes(false, i)[0], nodes(true, i)[0]}, of_row, b, begin, end);
                 });
    };
    each([](KlRow<T>& row, const States& s, Sums* of_row, std::int64_t b, std::int64_t begin, std::int64_t end) {
      of_row[b] = row.sums(s, begin, end);
    });
    RowCursor p_cursor(p_, 0), q_cursor(q_, 0);
    for (std::int64_t i = 0; i < p_.rows; ++i, p_cursor.next(), q_cursor.next()) {
      const Row p_row = p_cursor.row(), q_row = q_cursor.row();
      const std::int64_t live = std::min(blocks.count, (p_row.length + blocks.size - 1) / blocks.size);
      Sums* const of_row = sums.data() + i * blocks.count;
      of_row[0] = lift::reduce_nodes<fold::KlSum<T>>(of_row, live);
      finish(KlRow<T>(p_, q_, p_row, q_row, i), p_row, q_row, {nodes(false, i)[0], nodes(true, i)[0]}, of_row[0]);
    }
    if (!writes()) return;
    each([](KlRow<T>& row, const States& s, Sums* of_row, std::int64_t, std::int64_t begin, std::int64_t end) {
      row.write(s, of_row[0], begin, end);
    });
  }

  const KlProblem& p_;
  RowProblem q_;
  const Context& context_;
  bool backward_;
};

void run(const KlProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { KlRun<T>(p, context).run(); });
}

const char* refuses(const KlProblem&, const Context&) { return nullptr; }

constexpr Kernel<KlProblem> kKl[] = {{"kl_divergence_rows", refuses, run, nullptr}};
constexpr Kernel<KlProblem> kKlBackward[] = {{"kl_divergence_backward_rows", refuses, run, nullptr}};

}  // namespace
}  // namespace cpu

std::span<const Kernel<KlProblem>> cpu_kl_kernels(Op op) {
  if (op == Op::kl_divergence) return cpu::kKl;
  return cpu::kKlBackward;
}

}  // namespace v0
}  // namespace softfold
