// fold_shard on the GPU: the chunks of the shard's nodes to states, in one read, then a row's partial from these. The k
// largest are found before, by topk's kernels.
#include "cuda/choose.hpp"
#include "cuda/in_order.cuh"
#include "cuda/kernels.hpp"
#include "cuda/levels.cuh"
#include "cuda/shards.cuh"
#include "cuda/shards.hpp"
#include "cuda/softmax_plain.cuh"
#include "cuda/states.hpp"
#include "front/choice.hpp"
#include "softfold/lift/nodes.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// The chunks that a shard's nodes are of: the first one's place in x, and how many a row has.
struct NodeChunks {
  std::int64_t begin, count;
  explicit NodeChunks(const lift::ShardLayout& l)
      : begin(l.first - l.begin), count(lift::chunk_count(l.last - l.first)) {}
};

/// A warp a chunk, of rows that are not plain.
template <class T>
__global__ void __launch_bounds__(kThreads) fold_shard_chunks(const __grid_constant__ RowProblem p, NodeChunks chunks,
                                                              typename fold::LogSumExp<T>::State* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= p.rows * chunks.count) return;
  const std::int64_t index = item / chunks.count;
  const FoldedRow<T> row(p, row_at(p, RowPlace(p, index)));
  const auto s = row.chunk_state(chunks.begin + (item - index * chunks.count) * lift::kChunk);
  if (threadIdx.x % 32 == 0) states[item] = s;
}

/// Threads that write one row's partial: `count` of them, of which this is `me`.
struct PartialTeam {
  int me, count;
};

/// The words of a partial in which rows do not differ; the others as they are without a target.
struct CommonWords {
  double words[kPartialWords] = {};

  explicit CommonWords(const ShardProblem& p) {
    words[kVersion] = SOFTFOLD_BITS_VERSION;
    words[kDigits] = p.is_double() ? fold::Real<double>::kDigits : fold::Real<float>::kDigits;
    words[kSize] = static_cast<double>(p.shard.size);
    words[kOffset] = static_cast<double>(p.shard.offset);
    words[kLength] = static_cast<double>(p.n);
    words[kBest] = static_cast<double>(p.k);
    words[kHasTarget] = p[LossSlot::targets].given ? 1. : 0.;
    words[kTargetIndex] = -1.;
  }
};

/// A row's elements as they are folded, and its partial.
template <class T>
struct ShardRow : FoldedRow<T> {
  const ShardProblem& p;
  const PartialPlaces& places;
  const RowPlace& place;  // a copy would go through memory
  double* to;

  __device__ __forceinline__ ShardRow(const ShardProblem& problem, const PartialPlaces& at, const RowPlace& row)
      : FoldedRow<T>(problem, row_at(problem, row)),
        p(problem),
        places(at),
        place(row),
        to(reinterpret_cast<double*>(p[Slot::states].data + place.offset(p[Slot::states]))) {}

  __device__ __forceinline__ double number(std::int64_t i) const {
    return fold::canonical(static_cast<double>(this->element(i)));
  }
  /// -1: there is none.
  __device__ __forceinline__ std::int64_t target() const {
    const Operand& targets = p[LossSlot::targets];
    return targets.given ? integer_at(targets.dtype, targets.data + place.offset(targets)) : -1;
  }
  /// By a warp, a lane a word.
  __device__ __forceinline__ void write_words(const CommonWords& common, std::int64_t t) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane >= kPartialWords) return;
    const std::int64_t i = t - p.shard.offset;
    double word = common.words[lane];
    if (lane == kScale) word = fold::canonical(this->row.scale);
    if (lane == kTarget && t >= 0 && i >= 0 && i < p.n) word = number(i);
    if (lane == kTargetIndex && t >= 0 && t < p.shard.size) word = static_cast<double>(t);
    to[lane] = word;
  }
  /// The largest elements' places in the row. topk has left `found` of them, with indices in x as integers.
  __device__ __forceinline__ void write_best(const PartialTeam& team, std::int64_t found) const {
    for (std::int64_t j = team.me; j < p.k; j += team.count) {
      double* entry = to + kPartialWords + 2 * j;
      const std::int64_t index = j < found ? __double_as_longlong(entry[1]) : -1;
      if (j >= found) entry[0] = -fold::infinity<double>();
      entry[1] = index >= 0 ? static_cast<double>(p.shard.offset + index) : -1.;
    }
  }
  /// The single elements, and zeros behind all.
  __device__ __forceinline__ void write_singles(const PartialTeam& team) const {
    const lift::ShardLayout& l = places.layout;
    write_elements(team, 0, l.first - l.begin, to + places.head);
    write_elements(team, l.last - l.begin, l.end - l.last, to + places.tail);
    for (std::int64_t i = places.width + team.me; i < p.width; i += team.count) to[i] = 0.;
  }

 private:
  /// A few are asked for before the first is written.
  __device__ __forceinline__ void write_elements(const PartialTeam& team, std::int64_t from, std::int64_t n,
                                                 double* at) const {
    constexpr int kSome = 4;
    for (std::int64_t i = team.me; i < n; i += kSome * team.count) {
      double some[kSome];
#pragma unroll
      for (int j = 0; j < kSome; ++j)
        if (i + j * team.count < n) some[j] = number(from + i + j * team.count);
#pragma unroll
      for (int j = 0; j < kSome; ++j)
        if (i + j * team.count < n) at[i + j * team.count] = some[j];
    }
  }
};

/// The root over up to 256 nodes of one level, by a warp.
__device__ __forceinline__ fold::LogSumExp<float>::State merge_nodes_of(const fold::LogSumExp<float>::State* nodes,
                                                                        int count) {
  return lift::merge_states([&](int i) { return nodes[i]; }, count);
}
__device__ __forceinline__ fold::LogSumExp<double>::State merge_nodes_of(const fold::LogSumExp<double>::State* nodes,
                                                                         int count) {
  using Lse = fold::LogSumExp<double>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto root = [](Lse::State s) {
#pragma unroll 1
    for (int distance = 1; distance < 32; distance *= 2) s = Lse::merge(s, shuffle(s, distance));
    return s;
  };
  auto own = Lse::identity();
  for (int first = 0; first < count; first += 32) {
    const auto node = root(first + lane < count ? nodes[first + lane] : Lse::identity());
    if (lane == first / 32) own = node;
  }
  return root(own);
}

/// The nodes of a shard from its chunks' states, by the warps of a team, each node by one.
template <class T>
class NodeWriter {
 public:
  using Lse = fold::LogSumExp<T>;
  using State = typename Lse::State;
  static constexpr int kPieceLevel = 8, kPiece = 1 << kPieceLevel;

  /// open: for nodes that wait for their right neighbour, one a level.
  __device__ __forceinline__ NodeWriter(const State* states, State* open) : states_(states), open_(open) {}

  __device__ __forceinline__ void write(const PartialTeam& team, const lift::ShardLayout& layout, double* to) const {
    const std::int64_t first = layout.first / lift::kChunk;
    int turn = 0;
    layout.for_nodes([&](std::int64_t chunk, int level) {
      if (turn == team.me / 32) {
        const State s = node(states_ + chunk - first, level);
        if (threadIdx.x % 32 == 0) to[0] = s.m, to[1] = fold::canonical(static_cast<double>(s.d));
      }
      turn = (turn + 1) % (team.count / 32);
      to += 2;
    });
  }

 private:
  /// Of 2^level chunks: pieces of 256, merged as they come.
  __device__ __forceinline__ State node(const State* chunks, int level) const {
    if (level <= kPieceLevel) return merge_nodes_of(chunks, 1 << level);
    State s = Lse::identity();
#pragma unroll 1
    for (std::int64_t piece = 0; piece >> (level - kPieceLevel) == 0; ++piece) {
      s = merge_nodes_of(chunks + kPiece * piece, kPiece);
      int above = 0;
      for (; (piece >> above & 1) != 0; ++above) s = Lse::merge(open_[above], s);
      __syncwarp();
      if (threadIdx.x % 32 == 0) open_[above] = s;
      __syncwarp();
    }
    return s;
  }

  const State* states_;
  State* open_;
};

/// A warp a row, or where there is much to write a block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    write_partials(const __grid_constant__ ShardProblem p, const __grid_constant__ PartialPlaces places,
                   const __grid_constant__ CommonWords common, std::int64_t found, std::int64_t chunks, bool by_blocks,
                   const typename fold::LogSumExp<T>::State* states) {
  begin_in_order();
  __shared__ typename fold::LogSumExp<T>::State open[kWarps][lift::kMaxLevels];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t index = by_blocks ? blockIdx.x : std::int64_t{blockIdx.x} * kWarps + warp;
  if (index >= p.rows) return;
  const PartialTeam team{static_cast<int>(threadIdx.x) % (by_blocks ? kThreads : 32), by_blocks ? kThreads : 32};
  const RowPlace place(p, index);
  const ShardRow<T> row(p, places, place);
  const std::int64_t target = row.target();
  NodeWriter<T>(states + index * chunks, open[warp]).write(team, places.layout, row.to + places.nodes);
  if (team.me >= team.count - 32) row.write_words(common, target);
  row.write_best(team, found);
  row.write_singles(team);
}

/// The k largest elements, or as many as there are, into the partials.
TopkProblem best_problem(const ShardProblem& p) {
  TopkProblem q;
  static_cast<RowProblem&>(q) = p;
  q.op = Op::topk;
  q.scale = 1;  // the order is the elements', whatever their scale
  q.k = std::min(p.k, p.n);
  q.sorted = true;
  q[Slot::scales].given = q[Slot::states].given = false;
  for (Operand& o : q.more) o.given = false;
  Operand &values = q[TopkSlot::values], &indices = q[TopkSlot::indices];
  values = indices = p[Slot::states];
  values.axis_stride = indices.axis_stride = 2 * sizeof(double);
  values.data += kPartialWords * sizeof(double);
  indices.data += (kPartialWords + 1) * sizeof(double);
  indices.dtype = DType::int64;
  return q;
}

/// The steps of a call, and what they need memory for.
class ShardFold {
 public:
  ShardFold(const ShardProblem& p, const Context& context)
      : p_(p), context_(context), places_(p.shard, p.n, p.k), chunks_(places_.layout), best_(best_problem(p)) {
    if (best_.k > 0) finds_ = first_able(best_, cuda_topk_kernels(), context);
  }

  std::size_t bytes() {
    Parts counted(nullptr);
    lay_out(counted);
    return counted.used();
  }
  void run(char* memory) {
    Parts parts(memory);
    lay_out(parts);
    Stream stream = stream_of(context_);
    if (finds_ != nullptr) {
      Context own = context_;
      own.workspace = &of_best_;
      finds_->run(best_, own);
      stream = stream.following();
    }
    with_fold_type(p_, [&]<class T>(T) { run_fold<T>(stream); });
  }

 private:
  static constexpr std::size_t kStateBytes = sizeof(fold::LogSumExp<double>::State);
  static_assert(sizeof(fold::LogSumExp<float>::State) == kStateBytes);

  void lay_out(Parts& parts) {
    states_ = parts.bytes_for<char>(static_cast<std::size_t>(p_.rows * chunks_.count) * kStateBytes);
    if (finds_ == nullptr || finds_->workspace == nullptr) return;
    const std::size_t bytes = finds_->workspace(best_, context_);
    of_best_ = {parts.bytes_for<char>(bytes), bytes};
  }

  template <class T>
  void run_fold(Stream stream) const {
    auto* states = reinterpret_cast<typename fold::LogSumExp<T>::State*>(states_);
    if (chunks_.count > 0) {
      fold_chunks(states, stream);
      stream = stream.following();
    }
    const bool by_blocks = p_.width - 2 * places_.layout.nodes() > 64;
    const std::int64_t blocks = by_blocks ? p_.rows : ceil_div(p_.rows, kWarps);
    launch("write_partials", write_partials<T>, {blocks, kThreads}, stream, p_, places_, CommonWords(p_), best_.k,
           chunks_.count, by_blocks, states);
  }
  /// The whole chunks' states, by the kernels that fold plain rows where the shard's are such.
  template <class State>
  void fold_chunks(State* states, const Stream& stream) const {
    if constexpr (std::is_same_v<State, fold::LogSumExp<float>::State>) {
      RowProblem q = p_;
      q.n = places_.layout.last - places_.layout.first;
      q[Slot::x].data += chunks_.begin * q[Slot::x].axis_stride;
      q[Slot::states].given = false;
      if (refuses_plain(q) == nullptr) return fold_plain_chunks(q, states, stream);
    }
    using T = decltype(State::d);
    launch("fold_shard_chunks", fold_shard_chunks<T>, warps_for(p_.rows * chunks_.count), stream, p_, chunks_, states);
  }

  const ShardProblem& p_;
  const Context& context_;
  PartialPlaces places_;
  NodeChunks chunks_;
  TopkProblem best_;
  const TopkKernel* finds_ = nullptr;
  Workspace of_best_{};
  char* states_ = nullptr;
};

}  // namespace

void fold_shard(const ShardProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::states].data);
  ShardFold fold(p, context);
  const Scratch scratch(fold.bytes(), context);
  fold.run(scratch.data());
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
