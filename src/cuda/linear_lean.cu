// linear_cross_entropy of mode lean. The logits of a block of classes are computed, folded to states, and forgotten;
// the blocks' states merged are the rows' own, bit for bit, because blocks are nodes of the canonical tree. Then each
// block is computed again for its gradient, the last one, which is still there, first. Until they are written, dweight
// and dx keep logits: as many blocks before the last one as find room there are not computed again.
#include "cuda/linear_lean.hpp"

#include "cuda/choose.hpp"
#include "cuda/in_order.cuh"
#include "cuda/linear.cuh"
#include "cuda/loss_rows.cuh"
#include "cuda/states.hpp"

#include <algorithm>
#include <array>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Classes of a block: a power of two of chunks, so many that the blocks' states are merged in one call.
std::int64_t classes_of_block(std::int64_t classes) {
  std::int64_t block = 8 * lift::kChunk;
  while (block * kMaxMergeParts < classes) block *= 2;
  return block;
}

/// The logits of the targets that are classes of a block.
template <class E>
__global__ void __launch_bounds__(kThreads)
    take_targets(const __grid_constant__ LossProblem p, const E* logits, std::int64_t stride, std::int64_t first,
                 std::int64_t classes, E* taken) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const Operand& o = p[LossSlot::targets];
  const std::int64_t target = integer_at(o.dtype, o.data + RowPlace(p, row).offset(o)) - first;
  if (target >= 0 && target < classes) taken[row] = logits[row * stride + target];
}

/// Targets counted from another block's first class.
template <class T>
__global__ void __launch_bounds__(kThreads)
    move_targets(CrossEntropyRow<T>* rows, std::int64_t count, std::int64_t by) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < count) rows[row].target += by;
}

/// Sums as dx stores them.
template <class T>
__global__ void __launch_bounds__(Run::kThreads) put_dx(const T* sums, std::int64_t depth, const Operand dx) {
  begin_in_order();
  const Run run(depth, depth);
  char* const row = dx.data + run.row * dx.strides[0];
  run.each([&](std::int64_t at, std::int64_t column) { put(dx.dtype, row + column * dx.axis_stride, sums[at]); });
}

/// Memory for rows of a block's logits.
struct Piece {
  char* memory;
  std::int64_t first, rows;
};

template <class T>
class LeanRun {
 public:
  LeanRun(const LinearProblem& p, const Context& context, char* workspace)
      : p_(p),
        context_(context),
        stream_(stream_of(context)),
        block_(classes_of_block(p.n)),
        blocks_(ceil_div(p.n, block_)),
        computed_(std::max<std::int64_t>(blocks_ - 1, 0)) {
    keep();
    Parts parts(workspace);
    const auto block_bytes = static_cast<std::size_t>(p.rows * stride());
    x_ = placed(parts, p[LinearSlot::x], p.rows, p.depth);
    room_ = parts.bytes_for<char>(kProductRoom);
    logits_ = parts.bytes_for<char>(block_bytes);
    gradients_ = p.softcap > 0 && p.has_gradient() ? parts.bytes_for<char>(block_bytes) : logits_;
    if (p[LinearSlot::dx].given) dx_ = parts.take<T>(p.rows * p.depth);
    taken_ = parts.bytes_for<char>(static_cast<std::size_t>(p.rows) * size_of(p[Slot::x].dtype));
    part_states_ = parts.take<double>(4 * p.rows * blocks_);
    states_ = p[Slot::states].given ? p[Slot::states] : states_at(parts.take<double>(4 * p.rows));
    if (p.has_gradient()) rows_ = parts.take<CrossEntropyRow<T>>(p.rows);
    const std::size_t sums = state_bytes<RowsSum>(rows_as_row());
    weights_ = parts.bytes_for<RowsSum>(sums);
    totals_ = parts.bytes_for<RowsSum>(sums);
    fold_room_ = parts;
    for (const std::int64_t b : {std::int64_t{0}, blocks_ - 1}) {  // the last one may have fewer classes
      Parts room = fold_room_;
      RowStates states;
      states.lay_out(states_problem(block(b)), room, context);
      bytes_ = std::max(bytes_, room.used());
    }
  }
  std::size_t bytes() const { return bytes_; }

  const char* refuses() {
    if (const char* why = choose()) return why;
    for (const std::int64_t b : {std::int64_t{0}, blocks_ - 1})
      if (const char* why = block(b).refuses(sums())) return why;
    return nullptr;
  }

  void run() {
    const Operand& status = p_[LossSlot::status];
    if (status.given) check(cudaMemsetAsync(status.data, 0, sizeof(std::int32_t), stream_), "status");
    require(choose());
    copy_rows(matrix_of(p_[LinearSlot::x], 0, p_.rows, p_.depth), x_, stream_);
    for (std::int64_t b = 0; b < blocks_; ++b) fold(b);
    if (p_.rows > 0) merge();
    finish();
    if (!p_.has_gradient()) return;
    std::int64_t from = 0;
    for (std::int64_t b = blocks_ - 1; b >= 0; --b) {
      const LogitsBlock logits = block(b);
      if (has_kept_rows(b)) copy_kept(true);
      if (b < computed_) logits.fill(has_kept_rows(b) ? kept_rows_ : 0);
      launch("move_targets", move_targets<T>, {ceil_div(p_.rows, kThreads), kThreads}, stream_, rows_, p_.rows,
             from - logits.first);
      from = logits.first;
      add_gradients(logits, b == blocks_ - 1);
    }
    if (p_[LinearSlot::dx].given)
      launch("put_dx", put_dx<T>, {Run::blocks(p_.rows, p_.depth), Run::kThreads}, stream_, dx_, p_.depth,
             p_[LinearSlot::dx]);
  }

 private:
  /// Finds room for logits in dweight: of block b ends where those of b + 1 begin, and before b + 1's rows of dweight.
  /// So what is written when b + 1 has been read lies behind all that is kept of b and the blocks before it, whichever
  /// of logits and dweight is larger. Some rows of the next block find room in what is left, and in dx.
  void keep() {
    constexpr auto alignment = static_cast<std::int64_t>(kWorkspaceAlignment);
    const std::int64_t room = bytes_of(LinearSlot::dweight, p_.n), logits = p_.rows * stride();
    std::int64_t end = room;
    for (; room > 0 && computed_ > 0; --computed_) {
      char* const begin = p_[LinearSlot::dweight].data;
      end = std::min(end, room / p_.n * block_ * computed_);
      std::int64_t at = end - logits;
      at -= static_cast<std::int64_t>((reinterpret_cast<std::intptr_t>(begin) + at) % alignment);
      if (at < 0) break;
      end = at;
      kept_[static_cast<std::size_t>(computed_ - 1)] = begin + at;
    }
    if (computed_ == 0) return;
    keep_rows(LinearSlot::dweight, end);
    keep_rows(LinearSlot::dx, bytes_of(LinearSlot::dx, p_.rows));
  }
  void keep_rows(LinearSlot slot, std::int64_t bytes) {
    const std::int64_t rows = std::min(bytes / stride(), p_.rows - kept_rows_);
    if (rows == 0) return;
    pieces_[slot == LinearSlot::dx ? 1 : 0] = {p_[slot].data, kept_rows_, rows};
    kept_rows_ += rows;
  }
  /// Of a gradient of so many vectors, where they lie one after the other.
  std::int64_t bytes_of(LinearSlot slot, std::int64_t vectors) const {
    const Operand& o = p_[slot];
    if (!o.given || p_.rows == 0) return 0;
    const std::int64_t bytes = p_.depth * static_cast<std::int64_t>(size_of(o.dtype));
    return vectors == 1 || o.strides[0] == bytes ? vectors * bytes : 0;
  }

  /// The rows of the last block that is computed twice which are not: to where they are kept, or back.
  void copy_kept(bool back) const {
    for (const Piece& piece : pieces_) {
      if (piece.rows == 0) continue;
      char* const logits = logits_ + piece.first * stride();
      check(cudaMemcpyAsync(back ? logits : piece.memory, back ? piece.memory : logits,
                            static_cast<std::size_t>(piece.rows * stride()), cudaMemcpyDefault, stream_),
            "logits that are kept");
    }
  }
  bool has_kept_rows(std::int64_t b) const { return kept_rows_ > 0 && b == computed_ - 1; }

  std::int64_t stride() const { return LogitsBlock::stride_of(p_, std::min(block_, p_.n)); }
  LogitsBlock block(std::int64_t b) const {
    char* const kept = kept_[static_cast<std::size_t>(b)];
    const std::int64_t first = b * block_;
    return {p_,         x_,    kept != nullptr ? kept : logits_,
            gradients_, first, std::min(block_, p_.n - first),
            stride(),   room_, stream_,
            with_};
  }

  /// All blocks' products go by the algorithms of the first one's, or of one with as many classes beyond a multiple of
  /// 16 bytes as the last one has.
  const char* choose() {
    LogitsBlock first = block(0);
    const std::int64_t whole = 16 / first.element(), beyond = p_.n % whole;
    if (blocks_ > 1 && beyond != 0) first.classes += beyond - whole;
    const char* why = first.choose(sums());
    with_ = first.with;
    return why;
  }

  Matrix sums() const {
    return {dx_, sizeof(T) == sizeof(double) ? DType::float64 : DType::float32, p_.rows, p_.depth, p_.depth};
  }
  Operand states_at(double* data) const {
    return {reinterpret_cast<char*>(data), DType::float64, true, 0, {4 * sizeof(double)}};
  }
  RowProblem rows_as_row() const {
    RowProblem line = p_;
    line.n = p_.rows;
    line.rows = 1;
    return line;
  }

  /// The cross-entropy of a block's logits.
  LossProblem loss_of(const LogitsBlock& logits) const {
    LossProblem q = p_;
    q.op = Op::cross_entropy;
    q.outer_rank = 1;
    q.outer[0] = p_.rows;
    q.n = logits.classes;
    q.elements = q.rows * q.n;
    q[Slot::x] = logits.operand(logits.logits);
    q[Slot::y] = logits.operand(logits.gradients);
    q[Slot::states] = states_;
    Operand& weight = q[LossSlot::weight];
    if (weight.given) weight.data += logits.first * weight.axis_stride;
    return q;
  }

  RowProblem states_problem(const LogitsBlock& logits) const {
    RowProblem q = loss_of(logits);
    q[Slot::y].given = false;
    q[Slot::states] = states_at(part_states_ + 4 * p_.rows * (logits.first / block_));
    return q;
  }

  void fold(std::int64_t b) {
    const LogitsBlock logits = block(b);
    logits.fill();
    Parts parts = fold_room_;
    RowStates states;
    states.lay_out(states_problem(logits), parts, context_);
    states.run(context_);
    logits.with_elements([&]<class E>() {
      launch("take_targets", take_targets<E>, {ceil_div(p_.rows, kThreads), kThreads}, stream_, loss_of(logits),
             reinterpret_cast<const E*>(logits.logits), logits.stride / logits.element(), logits.first, logits.classes,
             reinterpret_cast<E*>(taken_));
    });
    if (has_kept_rows(b)) copy_kept(false);
  }

  void merge() const {
    MergeProblem m{};
    m.op = Op::merge_states;
    m.parts = static_cast<int>(blocks_);
    m.outer_rank = 1;
    m.rows = m.outer[0] = p_.rows;
    for (int b = 0; b < m.parts; ++b)
      m.statistic.data[static_cast<std::size_t>(b)] = reinterpret_cast<char*>(part_states_ + 4 * p_.rows * b);
    m.statistic.view = states_at(nullptr);
    m.out_statistic.data[0] = states_.data;
    m.out_statistic.view = states_;
    cuda_merge_kernels(Op::merge_states)[0].run(m, context_);
  }

  /// Losses, and what the gradient of each row is made with: of all logits it takes the target's alone.
  void finish() {
    LossProblem q = loss_of(block(0));
    q.n = p_.n;
    q[LossSlot::weight] = p_[LossSlot::weight];
    q[Slot::x] = {taken_, p_[Slot::x].dtype, true, 0, {static_cast<std::int64_t>(size_of(p_[Slot::x].dtype))}};
    const Grid grid{lift::chunk_count(p_.rows), kRowThreads};
    const RowProblem line = rows_as_row();
    LossWork<T, CrossEntropyRow<T>> work;
    work.rows = rows_;
    if (p_.reduction != Reduction::none) work.losses = totals_;
    if (p_.reduction == Reduction::mean) {
      launch("sum_targets", sum_targets<T>, grid, stream_, q, weights_);
      work.weights = total_of(line, weights_, stream_);
    }
    launch("finish_cross_entropy", finish_cross_entropy<T>, grid, stream_, q, work);
    if (p_.reduction == Reduction::none) return;
    launch("put_total", put_total, {1, 32}, stream_, q, total_of(line, totals_, stream_), work.weights);
  }

  void add_gradients(const LogitsBlock& logits, bool first) const {
    write(loss_of(logits));
    logits.remove_cap();
    if (p_[LinearSlot::dx].given && p_.rows > 0) {
      multiply(logits.dx(sums(), !first), with_.dx, room_, stream_);
    }
    logits.put_class_gradients();
  }

  void write(const LossProblem& q) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (refuses_plain(q) == nullptr && p_.rows > 0) {
        const std::int64_t chunks = lift::chunk_count(q.n);
        const lift::Factor factor(fold::make_scale<float>(q.scale).c);
        return with_element(q[Slot::x].dtype, [&]<class E>() {
          launch("write_plain_gradient", write_plain_gradient<E, CrossEntropyRow<float>>,
                 {ceil_div(p_.rows * chunks, 8), 256}, stream_, q, chunks, factor, rows_);
        });
      }
    }
    const std::int64_t items = write_items(q, false);
    launch("write_loss_gradient", write_loss_gradient<T, CrossEntropyRow<T>>, warps_for(items), stream_, q,
           GenericItems{items}, rows_);
  }

  const LinearProblem& p_;
  const Context& context_;
  Stream stream_;
  std::int64_t block_, blocks_;
  std::int64_t computed_;                     ///< blocks that are computed twice: the first ones
  std::array<char*, kMaxMergeParts> kept_{};  ///< where the others' logits are, but for the last one's
  std::array<Piece, 2> pieces_{};             ///< where the first kept_rows_ rows of the last of the former are
  std::int64_t kept_rows_ = 0;
  Matrix x_{};
  char *room_ = nullptr, *logits_ = nullptr, *gradients_ = nullptr, *taken_ = nullptr;
  T* dx_ = nullptr;
  double* part_states_ = nullptr;
  Operand states_{};
  CrossEntropyRow<T>* rows_ = nullptr;
  RowsSum *weights_ = nullptr, *totals_ = nullptr;
  Parts fold_room_{nullptr};
  Algorithms with_{};
  std::size_t bytes_ = 0;
};

}  // namespace

const char* lean_refuses(const LinearProblem& p, const Context& context) {
  if (p[Slot::mask].given || p[Slot::length].given) return "mode lean has no mask or length";
  if (p.label_smoothing > 0) return "mode lean has no label smoothing";
  if (!has_device()) return nullptr;
  const DeviceOf device(p[LinearSlot::x].data);
  const char* why = nullptr;
  with_fold_type(p, [&]<class T>(T) { why = LeanRun<T>(p, context, nullptr).refuses(); });
  return why;
}

std::size_t lean_workspace(const LinearProblem& p, const Context& context) {
  std::size_t bytes = 0;
  with_fold_type(p, [&]<class T>(T) { bytes = LeanRun<T>(p, context, nullptr).bytes(); });
  return bytes;
}

void lean_run(const LinearProblem& p, const Context& context) {
  const DeviceOf device(p[LinearSlot::x].data);
  const Scratch scratch(lean_workspace(p, context), context);
  with_fold_type(p, [&]<class T>(T) { LeanRun<T>(p, context, scratch.data()).run(); });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
