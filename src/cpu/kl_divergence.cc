// kl_divergence and its backward pass on the CPU.
#include "cpu/kl_rows.hpp"
#include "cpu/row_schedules.hpp"
#include "cpu/row_states.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

/// Both rows are read once for their state, and once more for the gradients, from the cache where they fit there.
template <class T>
class KlRun {
 public:
  using Sum = fold::KlSum<T>;
  using State = typename Sum::State;
  using Room = typename KlRow<T>::Room;

  KlRun(const KlProblem& p, const Context& context)
      : p_(p), q_(rows_of_q(p)), context_(context), far_(reads_far(p)), backward_(p.op == Op::kl_divergence_backward) {}

  void run() {
    if (backward_) check_states(p_), check_states(q_);
    if (splits_inside_rows(p_, context_)) return shared_rows();
    split_rows(p_, context_, [&](std::int64_t first, std::int64_t last) {
      Room room;
      RowCursor p_cursor(p_, first), q_cursor(q_, first);
      for (; first < last; ++first, p_cursor.next(), q_cursor.next()) {
        const Row p_row = p_cursor.row(), q_row = q_cursor.row();
        KlRow<T> row(p_, q_, p_row, q_row, first);
        const State s = finished(row, p_row, q_row, row.fold(0, p_row.n, room, far_));
        if (writes()) row.write(s, 0, p_row.n, room);
      }
    });
  }

 private:
  bool writes() const { return p_[Slot::y].given || q_[Slot::y].given; }

  /// What a row's gradients are made with, once what is asked of it has been written.
  State finished(const KlRow<T>& row, const Row& p_row, const Row& q_row, const State& s) const {
    if (backward_) return Sum::with_given(state_of<T>(stored_state(p_row)), state_of<T>(stored_state(q_row)), s);
    row.finish(s);
    if (p_[Slot::states].given) RowWorker<T>(p_, Result::state).finish(p_row, s.p());
    if (q_[Slot::states].given) RowWorker<T>(q_, Result::state).finish(q_row, s.q());
    return s;
  }

  /// Few long rows: the threads share each of them, and meet between its state and its gradients.
  void shared_rows() {
    const Blocks blocks(p_.n);
    const Scratch::Held<State> nodes(thread_scratch(), Scratch::blocks,
                                     static_cast<std::size_t>(p_.rows * blocks.count));
    const auto each = [&](const auto& body) {
      for_blocks(p_, context_, blocks,
                 [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
                   const Row q_row = RowCursor(q_, i).row();
                   KlRow<T> row(p_, q_, r, q_row, i);
                   body(row, nodes.data() + i * blocks.count, b, begin, end);
                 });
    };
    each([this](KlRow<T>& row, State* of_row, std::int64_t b, std::int64_t begin, std::int64_t end) {
      Room room;
      of_row[b] = row.fold(begin, end, room, far_);
    });
    RowCursor p_cursor(p_, 0), q_cursor(q_, 0);
    for (std::int64_t i = 0; i < p_.rows; ++i, p_cursor.next(), q_cursor.next()) {
      const Row p_row = p_cursor.row(), q_row = q_cursor.row();
      const std::int64_t live = std::min(blocks.count, (p_row.length + blocks.size - 1) / blocks.size);
      State* const of_row = nodes.data() + i * blocks.count;
      of_row[0] = finished(KlRow<T>(p_, q_, p_row, q_row, i), p_row, q_row,
                           lift::reduce_nodes<typename KlRow<T>::Fold>(of_row, live));
    }
    if (!writes()) return;
    each([](KlRow<T>& row, State* of_row, std::int64_t, std::int64_t begin, std::int64_t end) {
      Room room;
      row.write(of_row[0], begin, end, room);
    });
  }

  const KlProblem& p_;
  RowProblem q_;
  const Context& context_;
  bool far_, backward_;
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
