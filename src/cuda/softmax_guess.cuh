// softmax by clusters that stay for many rows, and the gradients of losses, as softmax_stay.cuh, but with a frame that
// all chunks of a row share, guessed before any of its elements is looked at.
#pragma once

#include "cuda/guess_part.cuh"
#include "cuda/stay_frame.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A warp's part of one row, a chunk or two, once its elements are in registers.
template <class E, Leaves kLeaves, Lands kLands, int kChunks>
struct GuessRow {
  using Shape = GuessShape<E>;
  using Place = typename Shape::Place;
  using Vectors = uint4[Place::kVectors];
  using Values = float[Shape::kCount];
  static constexpr int kLanes = Shape::kLanes;
  static constexpr bool kGradient = kLeaves == Leaves::gradient;
  using Mail = FrameMail<kChunks, kGradient>;

  const PlainRows& p;
  int chunks;             ///< of the row
  int kept_chunk, count;  ///< of the lane's chunk: its number (of 16 bit), and elements; 0: it has none
  GuessWaits& waits;

  /// The lane's. float32 has no register for it; 16 bit would wait for it (2 percent).
  __device__ __forceinline__ int chunk() const {
    if constexpr (sizeof(E) == 2) return kept_chunk;
    return waits.own().chunk + lane_index() / kLanes;
  }

  /// Of the lane's chunk.
  __device__ __forceinline__ char* y_of(int row) const {
    return p.y + row * p.y_stride + chunk() * (lift::kChunk * Place::kSize);
  }

  /// All chunks in one frame; false if that does not hold the row, of which nothing is written then. cut: some chunk of
  /// the warp is not full; where it has no element stands `rest`, frame.hidden().
  __device__ __forceinline__ bool guessed(GuessedFrame& frame, Vectors& raw, bool cut, float rest, Mail& mail, int turn,
                                          RowSource& source) const {
    const float c = p.factor.c, absent = lift::absent(c);
    const auto extremes = extremes_by_integers<E>(raw);
    const float high = frame.z(c > 0.F ? extremes.high : extremes.low, c);
    if constexpr (kGradient) mail.send_top(turn, high);
    const float least = c > 0.F ? extremes.low : extremes.high, low = frame.z(least, c);
    bool holds = GuessedFrame::holds(low, high);
    if (cut)
      holds = high <= GuessedFrame::kHighest &&
              GuessedFrame::hides(frame.z(rest, c), low, frame.z(least_above<E>(raw, rest, c, frame.sees_zero()), c));
    if (__all_sync(lift::kWholeWarp, holds)) return in_frame<false>(frame, raw, cut, mail, turn, source);
    // Rows that hold infinities; the code stands apart because the compiler would move the terms' registers to join it.
    if (cut) put_rest(raw, Packed<E>::narrow(absent), y_of(source.row(turn)));
    const float present =
        frame.z(cut || least == absent ? least_above<E>(raw, absent, c, frame.sees_zero()) : least, c);
    if (__all_sync(lift::kWholeWarp, GuessedFrame::holds(present, high)))
      return in_frame<true>(frame, raw, false, mail, turn, source);
    send(mail, turn, fold::canonical_nan<float>());
    fetch_gradient(turn, source);
    receive(mail, turn, source);
    return false;
  }

  /// The same of elements that are looked at one by one, be they absent or not.
  __device__ __forceinline__ bool guessed_each(GuessedFrame& frame, Vectors& raw, Mail& mail, int turn,
                                               RowSource& source) const {
    float v[Shape::kCount];
    unpack(raw, v);
    const lift::FrameTerms terms = frame.terms(p.factor.c);
    GuessedFrame::Seen seen;
    const float sum = lift::add_tree<Place::kWidth, kLanes, float, Shape::kCount>([&](int j, int k) {
      float& at = v[j * Place::kWidth + k];
      const float z = frame.z(at, p.factor.c);
      if (j % 2 == 0) {
        seen.template see<false>(z);
      } else {
        seen.template see<true>(z);
      }
      return at = terms.template term<true>(at);
    });
    if constexpr (kGradient) mail.send_top(turn, seen.high());
    send(mail, turn, __all_sync(lift::kWholeWarp, seen.holds()) ? sum : fold::canonical_nan<float>());
    return put_in_frame(frame, raw, v, GuessedFrame::kLeastTerm, mail, turn, source);
  }

  /// Each chunk in its own frame. Any row.
  __device__ __forceinline__ lift::Root exactly(const Vectors& raw, int row, const StayBox& box, MailTurns& turns,
                                                int turn) const {
    const auto extremes = extremes_by_integers<E>(raw);
    float v[Shape::kCount];
    unpack(raw, v);
    const auto own = Shape::Fold::terms(v, p.factor.c, extremes);
    if (count > 0) send_mail<kLanes>(box[chunk()], turns.barrier(turn), mail_of(own));
    turns.wait(turn, StayMail::bytes(chunks));
    const auto root = box.template merge<kChunks>(chunks);
    const ChunkMultiplier multiplier(root, own.node, own.state.m);
    const float unit = fold::Scalar<float>::mul(multiplier.value, own.unit);
    uint4 results[Place::kVectors];
    if constexpr (kGradient) {
      put_gradients(results, v, own.dense ? 0x1p-62F : 0.F, unit, GradientWords(p.gradients + row), root, row,
                    y_of(row));
    } else if (!multiplier.regular) {
      fill<E, false>(y_of(row), nullptr, 0, lane_index() % kLanes, kLanes, count, count,
                     constant_of<false>(root.state(), p.empty));
    } else {
      put(results, v, y_of(row), own.dense, unit);
    }
    return root;
  }

 private:
  __device__ __forceinline__ void send(Mail& mail, int turn, float sum) const {
    if (count > 0) mail.template send_sum<kLanes>(turn, static_cast<unsigned>(chunk()), sum);
  }
  /// Of the next row, once this row's mail is sent: all would wait for the warp that does it before.
  __device__ __forceinline__ void fetch_gradient(int turn, const RowSource& source) const {
    if constexpr (kGradient) {
      const int ahead = source.row(turn + 1);
      if (ahead < static_cast<int>(p.rows)) GuessPart<E, kLands>::fetch_gradient(p, waits, turn + 1, ahead);
    }
  }
  __device__ __forceinline__ void receive(Mail& mail, int turn, RowSource& source) const {
    mail.wait(turn);
    source.ask();
  }
  /// kAbsent: some elements may be absent. hides: where others are none stands frame.hidden().
  template <bool kAbsent>
  __device__ __forceinline__ bool in_frame(GuessedFrame& frame, Vectors& raw, bool hides, Mail& mail, int turn,
                                           RowSource& source) const {
    float v[Shape::kCount];
    unpack(raw, v);
    const float own = Shape::Fold::template terms_in<kAbsent>(frame.terms(p.factor.c), v);
    send(mail, turn, hides && own < GuessedFrame::kLeastSeen ? fold::canonical_nan<float>() : own);
    return put_in_frame(frame, raw, v, hides ? GuessedFrame::kLeastHidden : GuessedFrame::kLeastTerm, mail, turn,
                        source);
  }
  /// Once the row's chunks are sent: terms, none below `least` but those that are 0, to results.
  __device__ __forceinline__ bool put_in_frame(GuessedFrame& frame, Vectors& raw, Values& v, float least, Mail& mail,
                                               int turn, RowSource& source) const {
    const int n = static_cast<int>(p.n);
    fetch_gradient(turn, source);
    char* y = y_of(source.row(turn));
    const auto& run = mail.own_run(turn, n);
    receive(mail, turn, source);
    [[maybe_unused]] GradientRow gradient;
    if constexpr (kGradient) gradient = waits.gradient(turn);
    const float sum = mail.sum(run, n);
    if (!(sum > 0.F)) return false;
    float unit = reciprocal_of_normal(sum);

    if constexpr (kGradient) {
      if (gradient.kind == GradientRow::Kind::wild) return false;  // results may be NaN, which pack() does not write
      put_guessed_gradients(raw, v, least, unit, gradient, y);
      // Where no other warp waits for it.
      if (int top; mail.takes_top(turn, top)) FramedState::put(p.states + source.row(turn), frame, sum, top);
    } else {
      put(raw, v, y, fold::Scalar<float>::mul(least, unit) >= fold::Real<float>::kSmallest, unit);
    }
    frame.follow(sum);
    return true;
  }

  /// `rest` where a chunk has no element.
  __device__ __forceinline__ void put_rest(Vectors& raw, E rest, const char* y) const {
    E all[Place::kWidth];
#pragma unroll
    for (E& e : all) e = rest;
    const uint4 rests = Packed<E>::join(all), head = raw[0];
    const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / Place::kSize;
    const int from = Place::kWidth * (lane_index() % kLanes) - shift;
#pragma unroll
    for (int j = 0; j < Place::kVectors; ++j) {
      const int here = count - from - Place::kWidth * kLanes * j;
      if (here <= 0) {
        raw[j] = rests;
      } else if (here < Place::kWidth) {
        raw[j] = joined(rests, raw[j], here * Place::kSize);
      }
    }
    // The slots before the first element are those of the chunk's end.
    if (from < 0)
      raw[0] = joined(joined(raw[0], rests, -from * Place::kSize), head, (count - lift::kChunk - from) * Place::kSize);
  }
  static __device__ __forceinline__ void unpack(const Vectors& raw, Values& v) {
#pragma unroll
    for (int j = 0; j < Place::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Place::kWidth);
  }

  /// Terms to results, by `raw`, and away.
  __device__ __forceinline__ void put(Vectors& raw, Values& v, char* y, bool dense, float unit) const {
    finish<false, Place::kWidth>(
        v, dense, unit, [] {}, [&](int j) { raw[j] = Packed<E>::pack(v + j * Place::kWidth); });
    write(raw, y);
  }
  /// Of a row that is not wild. (Constants by the stores of all others: a call would have registers spilled.)
  __device__ __forceinline__ void put_guessed_gradients(Vectors& raw, Values& v, float least, float unit,
                                                        const GradientRow& gradient, char* y) const {
    if (gradient.kind == GradientRow::Kind::regular) {
      to_gradients(v, least, unit, gradient);
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) raw[j] = Packed<E>::pack(v + j * Place::kWidth);
    } else {
      // (Packed<E>::narrow makes another NaN of it.)
      const E nan = fold::narrow<E>(fold::canonical_nan<float>());
      const bool zero = gradient.kind == GradientRow::Kind::zero;
      E constants[Place::kWidth];
#pragma unroll
      for (E& e : constants) e = zero ? fold::narrow<E>(0.F) : nan;
#pragma unroll
      for (uint4& vector : raw) vector = Packed<E>::join(constants);
    }
    write(raw, y);
  }
  __device__ __forceinline__ void put_gradients(Vectors& raw, Values& v, float least, float unit,
                                                const GradientWords& gradient, const lift::Root& root, int row,
                                                char* y) const {
    if (chunk() == 0 && lane_index() % kLanes == 0) p.states[row] = root.state();
    put_gradient<E>(typename Shape::Elements(y), y, count, v, least, unit, gradient.row(), root, [&] {
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j) raw[j] = Packed<E>::pack(v + j * Place::kWidth);
      write(raw, y);
    });
  }
  __device__ __forceinline__ void write(const Vectors& raw, char* y) const {
    const int lane = lane_index() % kLanes;
    if constexpr (kLands != Lands::anywhere) {
      uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
      for (int j = 0; j < Place::kVectors; ++j)
        if (Place::kWidth * (lane + kLanes * j) < count) to[kLanes * j] = raw[j];
    } else if (__any_sync(lift::kWholeWarp, count % lift::kChunk != 0)) {
      write_vectors<E, kLanes, Place::kVectors>(y, count, [&](int j) { return raw[j]; });
    } else {
      write_whole_chunks(raw, y);
    }
  }
  /// Of chunks that begin inside a vector: a vector that two of them share is written once, and of what is left at the
  /// part's ends a lane writes an element.
  __device__ __forceinline__ void write_whole_chunks(const Vectors& raw, char* y) const {
    const int lane = lane_index(), group_lane = lane % kLanes;
    const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16);
    uint4* to = reinterpret_cast<uint4*>(y - shift) + group_lane;
    const bool has_chunk = count > 0, two = __all_sync(lift::kWholeWarp, has_chunk);
    const auto other = [&](unsigned w) { return __shfl_sync(lift::kWholeWarp, w, two ? lane ^ kLanes : lane); };
    const uint4& own = raw[0];
    const uint4 before{other(own.x), other(own.y), other(own.z), other(own.w)};
    const uint4 first = group_lane == 0 ? joined(own, before, shift) : own;
    if (lane == 0) waits.own().ends = first;
    if (has_chunk) {
      if (lane != 0 || shift == 0) to[0] = first;
#pragma unroll
      for (int j = 1; j < Place::kVectors; ++j) to[kLanes * j] = raw[j];
    }
    __syncwarp();
    if (lane >= Place::kWidth || shift == 0) return;
    const int at = lane * Place::kSize - shift, behind = (two ? 2 : 1) * (lift::kChunk * Place::kSize);
    *reinterpret_cast<E*>(y + (at < 0 ? at + behind : at)) = reinterpret_cast<const E*>(&waits.own().ends)[lane];
  }
};

/// What warps exchange of rows that no guess held.
struct Misses {
  MailTurns turns;
  int of_warp[kStayWarps];  ///< how many there were

  /// By all threads of the block; then CopyBarrier::publish() and turns.expect().
  __device__ __forceinline__ void init() {
    if (threadIdx.x < kStayWarps) of_warp[threadIdx.x] = 0;
    turns.init();
  }

  static __device__ __forceinline__ StayBox box(int warp_bytes, int chunks, int turn) {
    extern __shared__ __align__(kCopyLine) char landing_memory[];
    const int warps = static_cast<int>(blockDim.x) / 32;
    return {reinterpret_cast<StayMail*>(landing_memory + warps * warp_bytes + turn % 2 * StayBox::bytes(chunks))};
  }
};

/// Row after row, until one that the guess does not hold, or all are done. step: how many are.
template <class E, Leaves kLeaves, Lands kLands, int kChunks>
__device__ __forceinline__ void guess_rows(const PlainRows& p, RowSource& source, int& step, GuessedFrame& frame,
                                           FrameMail<kChunks, kLeaves == Leaves::gradient>& mail, GuessWaits& waits) {
  using Place = typename GuessShape<E>::Place;
  constexpr bool kGradient = kLeaves == Leaves::gradient;
  const GuessPart<E, kLands> part(p, waits);
  const int rows = static_cast<int>(p.rows);
  source.resume();
#pragma unroll 1
  for (; source.row(step) < rows; ++step) {
    // The landing place is free again as soon as its elements are in registers.
    const int ahead = source.row(step + 1);
    part.landed().wait(static_cast<unsigned>(step) % 2);
    const bool cut = part.cut();
    float rest = lift::absent(p.factor.c);
    if constexpr (sizeof(E) == 2) rest = cut ? frame.template hidden<E>(p.factor.c) : 0.F;
    uint4 raw[Place::kVectors];
    part.read(raw, kLands == Lands::in_one_place ? nullptr : part.first(source.row(step)), cut, rest);
    const int waited = Place::loaded(raw);
    source.keep();
    __syncwarp();
    if (ahead < rows) part.template fetch_elements<kGradient>(ahead, waited);
    source.send(step, mail.turns.barrier(step));
    const GuessRow<E, kLeaves, kLands, kChunks> own{p, part.chunks, part.kept_chunk, part.count, waits};
    bool held;
    if constexpr (sizeof(E) == 2) {
      held = own.guessed(frame, raw, cut, rest, mail, step, source);
    } else {
      held = own.guessed_each(frame, raw, mail, step, source);
    }
    if (!held) return source.keep();
  }
}

/// GuessRow::exactly of a row whose elements have left their landing place.
template <class E, Leaves kLeaves, Lands kLands, int kChunks>
__device__ __noinline__ lift::Root read_again_exactly(const PlainRows& p, int row, Misses& misses, GuessWaits& waits) {
  using Shape = GuessShape<E>;
  const GuessPart<E, kLands> part(p, waits);
  uint4 raw[Shape::Place::kVectors];
  const char* x = part.first(row) + lane_index() / Shape::kLanes * part.kChunkBytes;
  typename Shape::Elements(x).gather(raw, x, part.count, lift::absent(p.factor.c));
  const GuessRow<E, kLeaves, kLands, kChunks> own{p, part.chunks, part.kept_chunk, part.count, waits};
  int& turn = misses.of_warp[warp_index()];
  const lift::Root root = own.exactly(raw, row, Misses::box(Shape::kWarpBytes, part.chunks, turn), misses.turns, turn);
  __syncwarp();
  if (lane_index() == 0) ++turn;
  return root;
}

/// softmax_cluster_stays. A row that the guess does not hold is read again.
template <class E, Leaves kLeaves, Lands kLands, int kChunks>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_cluster_guesses(const __grid_constant__ PlainRows p, int clusters) {
  // A gradient's first elements are on their way while the rows are prepared (loss_rows.cuh).
  if constexpr (kLeaves != Leaves::gradient) begin_in_order();
  constexpr bool kGradient = kLeaves == Leaves::gradient;
  using Cluster = lift::Cluster;
  __shared__ Misses misses;
  __shared__ FrameMail<kChunks, kGradient> mail;
  __shared__ GuessWaits waits;
  __shared__ RowSource::Queue queue;
  RowSource source({p.taken, static_cast<unsigned>(p.rows)}, clusters, queue);
  const RowCounter::Word seen = source.init();
  const int rows = static_cast<int>(p.rows);
  {
    const GuessPart<E, kLands> part(p, waits);
    part.init();
    misses.init();
    mail.init(part.chunks, RowSource::kBytes);
    CopyBarrier::publish();
    misses.turns.expect(StayMail::bytes(part.chunks));
    mail.expect();
    __syncwarp();
    const int first = source.by_stride(0);
    if (first < rows) part.template fetch_elements<kGradient>(first, 0);
    if constexpr (kGradient) {
      begin_first();
      if (first < rows) part.fetch_gradient(p, waits, 0, first);
    }
  }
  Cluster::arrive();
  source.begin(seen);
  Cluster::wait();

  GuessedFrame frame;
#pragma unroll 1
  for (int step = 0;; ++step) {
    guess_rows<E, kLeaves, kLands, kChunks>(p, source, step, frame, mail, waits);
    const int row = source.row(step);
    if (row >= rows) break;
    [[maybe_unused]] int top;
    if constexpr (kGradient) mail.takes_top(step, top);
    frame.follow(read_again_exactly<E, kLeaves, kLands, kChunks>(p, row, misses, waits));
  }
  Cluster::arrive();  // nobody leaves while others still send
  Cluster::wait();
  source.end();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
