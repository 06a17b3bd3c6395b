// softmax, log_softmax, the gradients of losses, and states by clusters that stay for many rows, which may have a
// mask, as softmax_stay.cuh, but with a frame that all chunks of a row share, guessed before any of its elements is
// looked at.
#pragma once

#include "cuda/guess_results.cuh"
#include "cuda/stay_frame.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A warp's part of one row after another, a chunk or two of each: from elements in registers to results.
template <class E, GuessForm kForm>
struct GuessRows {
  using Part = GuessPart<E, kForm>;
  using Results = GuessResults<E, kForm>;
  using Shape = GuessShape<E, kForm>;
  using Place = typename Shape::Place;
  using Vectors = typename Results::Vectors;
  using Values = typename Results::Values;
  using GridMail = std::conditional_t<Shape::kTight, GroupLooks<Shape::kRunWarps>,
                                      GroupMail<Shape::kRunWarps, kForm.chunks / Part::GridRows::kRunChunks>>;
  static constexpr Tops kTops = kForm.log() || kForm.state() ? Tops::all
                                : kForm.gradient()           ? Tops::first_block
                                                             : Tops::none;
  using Mail = std::conditional_t<kForm.grid, GridMail, FrameMail<kForm.chunks, kTops>>;
  using Source = std::conditional_t<kForm.grid, GroupSource, RowSource<kForm.behind ? 3 : 2>>;
  static constexpr int kLanes = Shape::kLanes;

  const Part& part;
  Mail& mail;
  Source& source;
  GuessedFrame& frame;

  /// All chunks of the step's row in one frame, and its results, or of rows that are written behind those of the row
  /// before. False if a frame does not hold the row that would be written, of which nothing is. cut: some chunk of the
  /// warp is not full; where it has no element stands `rest`, frame.hidden().
  __device__ __forceinline__ bool guessed(Vectors& raw, bool cut, float rest, int step) const {
    const float c = part.p.factor.c, absent = lift::absent(c);
    const auto extremes = extremes_by_integers<E>(raw);
    const float high = frame.z(c > 0.F ? extremes.high : extremes.low, c);
    const float least = c > 0.F ? extremes.low : extremes.high, low = frame.z(least, c);
    bool holds = GuessedFrame::holds(low, high);
    if (cut)
      holds = high <= GuessedFrame::kHighest &&
              GuessedFrame::hides(frame.z(rest, c), low, frame.z(least_above<E>(raw, rest, c, frame.sees_zero()), c));
    if (__all_sync(lift::kWholeWarp, holds)) return in_frame<false>(raw, high, cut, true, step);
    // Rows that hold infinities; the code stands apart because the compiler would move the terms' registers to join it.
    if (cut) put_rest(raw, Packed<E>::narrow(absent), part.y_of(source.row(step)));
    const float present =
        frame.z(cut || least == absent ? least_above<E>(raw, absent, c, frame.sees_zero()) : least, c);
    const bool held = __all_sync(lift::kWholeWarp, GuessedFrame::holds(present, high));
    return in_frame<true>(raw, high, cut, held, step);
  }

  /// The same of elements that are looked at one by one, be they absent or not.
  __device__ __forceinline__ bool guessed_each(Vectors& raw, int step) const {
    ask_before(step);
    Values v;
    unpack<E>(raw, v);
    const lift::FrameTerms terms = frame.terms(part.p.factor.c);
    GuessedFrame::Seen seen;
    const float sum = lift::add_tree<Place::kWidth, kLanes, float, Shape::kCount>([&](int j, int k) {
      float& at = v[j * Place::kWidth + k];
      const float z = frame.z(at, part.p.factor.c);
      if (j % 2 == 0) {
        seen.template see<false>(z);
      } else {
        seen.template see<true>(z);
      }
      const float term = terms.template term<true>(at);
      if constexpr (!kForm.log() && !kForm.state()) at = term;
      return term;
    });
    const float own = __all_sync(lift::kWholeWarp, seen.holds()) ? sum : fold::canonical_nan<float>();
    return exchange(raw, v, own, seen.high(), GuessedFrame::kLeastTerm, step);
  }

  /// Of rows that are written behind, the last one's results.
  __device__ __forceinline__ bool put_last(int step) const {
    Vectors raw;
    Values v;
    if constexpr (kForm.grid) mail.fetch(step);
    Received row = receive(step);
    take_top(row, step);
    __syncwarp();  // behind what one lane wrote of the frame
    part.take_kept(raw, v);
    return put(raw, v, row, GuessedFrame{part.waits.own().magic}, least(part.cut()), part.y_of(source.row(step)), step);
  }

 private:
  /// What a row's mail says.
  struct Received {
    float sum = 0.F;       ///< of its terms, in its frame; NaN if that does not hold it
    GradientRow gradient;  ///< which has landed with it
    bool takes = false;    ///< the thread is the one that has its largest z, if not all have
    int top = 0;           ///< its bits
  };

  /// Of the warp's terms, but for those that are 0.
  static __device__ __forceinline__ float least(bool cut) {
    return sizeof(E) == 2 && cut ? GuessedFrame::kLeastHidden : GuessedFrame::kLeastTerm;
  }
  /// kAbsent: some elements may be absent; else frame.hidden() stands where a warp that is cut has none. held: the
  /// frame holds the warp's elements.
  template <bool kAbsent>
  __device__ __forceinline__ bool in_frame(Vectors& raw, float high, bool cut, bool held, int step) const {
    Values v;
    unpack<E>(raw, v);
    ask_before(step);
    if constexpr (kForm.log()) keep_packed(raw);
    const float own = Shape::Fold::template terms_in<kAbsent>(frame.terms(part.p.factor.c), v);
    const bool seen = held && (kAbsent || !cut || own >= GuessedFrame::kLeastSeen);
    return exchange(raw, v, seen ? own : fold::canonical_nan<float>(), high, least(cut), step);
  }
  /// The lane's chunk's sum sent, and the row written that has been received.
  __device__ __forceinline__ bool exchange(Vectors& raw, Values& v, float own, float high, float least,
                                           int step) const {
    if constexpr (kForm.behind) {
      // Of a cluster no row's mail is sent before that of the row before has been read (MailTurns).
      if constexpr (kForm.grid) send(own, high, step);
      Received row;
      char* y = nullptr;  // known before the mail is
      if (step > 0) {
        y = part.y_of(source.row(step - 1));
        row = receive(step - 1);
        take_top(row, step - 1);
      }
      source.ask();
      if constexpr (!kForm.grid) {
        source.send(step, mail.turns.barrier(step));
        send(own, high, step);
      }
      part.swap_kept(raw, v);
      const GuessedFrame before{part.waits.own().magic};
      __syncwarp();
      if (lane_index() == 0) part.waits.own().magic = frame.magic;
      return step == 0 || put(raw, v, row, before, least, y, step - 1);
    } else {
      send(own, high, step);
      char* y = part.y_of(source.row(step));
      Received row = receive(step);
      source.ask();
      return put(raw, v, row, frame, least, y, step);
    }
  }
  /// Of a group, what the others have sent of the row before; a little before it is wanted, when most has come.
  __device__ __forceinline__ void ask_before(int step) const {
    if constexpr (kForm.grid)
      if (step > 0) mail.fetch(step - 1);
  }
  __device__ __forceinline__ void send(float own, float, int step) const requires(kForm.grid) {
    mail.send_sum(step, part.count > 0 ? own : 0.F);
  }
  __device__ __forceinline__ void send(float own, float high, int step) const requires(!kForm.grid) {
    if constexpr (kForm.gradient()) mail.send_top(step, high);
    const auto sum = mail.sum_with_top(own, high);
    if (part.count > 0) mail.template send_sum<kLanes>(step, static_cast<unsigned>(part.chunk()), sum);
    // Of the next row, once this row's mail is sent: all would wait for the warp that does it before.
    if constexpr (kForm.gradient()) {
      const int ahead = source.row(step + 1);
      if (ahead < static_cast<int>(part.p.rows)) part.fetch_gradient(step + 1, ahead);
    }
  }
  __device__ __forceinline__ Received receive(int step) const requires(kForm.grid) { return {mail.receive(step)}; }
  __device__ __forceinline__ Received receive(int step) const requires(!kForm.grid) {
    const int n = static_cast<int>(part.p.n);
    const auto& run = mail.own_run(step, n);
    Received row;
    // The first row is folded while the rows are prepared (loss_rows.cuh). Its gradient is asked for before its mail
    // has come, but for rows that are written behind, which lose 7 percent by another order of their code.
    if constexpr (kForm.gradient() && !kForm.behind)
      if (step == 0) row.gradient = first_gradient();
    mail.template wait<sizeof(E) == 2>(step);
    if constexpr (kForm.gradient()) {
      if (step > 0) {
        row.gradient = part.waits.gradient(step);
      } else if constexpr (kForm.behind) {
        row.gradient = first_gradient();
      }
    }
    const auto sums = run;
    row.sum = mail.sum(sums, n);
    if constexpr (kTops == Tops::all) row.top = mail.top(sums);
    return row;
  }
  __device__ __forceinline__ GradientRow first_gradient() const {
    begin_first();
    return part.p.gradients[source.row(0)];
  }
  __device__ __forceinline__ void take_top(Received& row, int step) const {
    if constexpr (kForm.gradient()) row.takes = mail.takes_top(step, row.top);
  }
  /// The step's row from its terms in the frame `of`, none below `low`, whose results `raw` is for.
  __device__ __forceinline__ bool put(Vectors& raw, Values& v, Received& row, const GuessedFrame of, float low, char* y,
                                      int step) const {
    if (!(row.sum > 0.F)) return false;
    if constexpr (kForm.state()) {
      if (part.is_first()) FramedState::put(part.p.states + source.row(step), of, row.sum, row.top);
      frame.follow(row.sum, of);
      return true;
    }
    // Known already; but bfloat16 rows of 384 chunks are 3 percent slower if it is not asked again, we know not why.
    if constexpr (kForm.behind && kForm.leaves == Leaves::softmax) low = least(part.cut());
    const Results results{part};
    const float unit = reciprocal_of_normal(row.sum);
    if constexpr (kForm.gradient()) {
      if (row.gradient.kind == GradientRow::Kind::wild)
        return false;  // results may be NaN, which pack() does not write
      results.put_guessed_gradients(raw, v, low, unit, row.gradient, y);
      // Where no other warp waits for it.
      if constexpr (!kForm.behind) take_top(row, step);
      if (row.takes) FramedState::put(part.p.states + source.row(step), of, row.sum, row.top);
    } else if constexpr (kForm.log()) {
      results.put_logarithms(raw, v, y, [&] {
        auto norm = part.p.log_normaliser(lift::state_of(of.node(row.sum, row.top)), true);
        norm.fast = true;  // as all frames are; now the compiler knows
        return norm;
      });
    } else {
      results.put(raw, v, y, fold::Scalar<float>::mul(low, unit) >= fold::Real<float>::kSmallest, unit);
    }
    frame.follow(row.sum, of);
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
      const int here = part.count - from - Place::kWidth * kLanes * j;
      if (here <= 0) {
        raw[j] = rests;
      } else if (here < Place::kWidth) {
        raw[j] = joined(rests, raw[j], here * Place::kSize);
      }
    }
    // The slots before the first element are those of the chunk's end.
    if (from < 0)
      raw[0] =
          joined(joined(raw[0], rests, -from * Place::kSize), head, (part.count - lift::kChunk - from) * Place::kSize);
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

/// Row after row, until one that no guess held, which it returns, or all are done; step: of the row that is folded.
template <class E, GuessForm kForm>
__device__ __forceinline__ int guess_rows(const typename GuessPart<E, kForm>::Problem& p,
                                          typename GuessRows<E, kForm>::Source& source, int& step, GuessedFrame& frame,
                                          typename GuessRows<E, kForm>::Mail& mail, GuessWaits& waits) {
  using Place = typename GuessShape<E, kForm>::Place;
  const GuessPart<E, kForm> part(p, waits);
  const GuessRows<E, kForm> own{part, mail, source, frame};
  const int rows = static_cast<int>(p.rows);
  source.resume();
#pragma unroll 1
  for (; source.row(step) < rows; ++step) {
    // The landing place is free again as soon as its elements are in registers.
    const int ahead = source.row(step + 1);
    part.landed().wait(static_cast<unsigned>(step) % 2);
    const bool cut = part.cut();
    float rest = lift::absent(p.factor.c);
    if constexpr (sizeof(E) == 2 && !kForm.masked) rest = cut ? frame.template hidden<E>(p.factor.c) : 0.F;
    uint4 raw[Place::kVectors];
    part.read(raw, source.row(step), cut, rest);
    constexpr bool kBytesOfMask = kForm.masked && !GuessPart<E, kForm>::kOnVectors;
    const int waited = Place::template loaded<kBytesOfMask>(raw);
    source.keep();
    __syncwarp();
    if (ahead < rows) part.fetch_elements(ahead, waited);
    if constexpr (!kForm.behind) source.send(step, mail.turns.barrier(step));
    bool held;
    if constexpr (sizeof(E) == 2) {
      held = own.guessed(raw, cut, rest, step);
    } else {
      held = own.guessed_each(raw, step);
    }
    if (!held) {
      source.keep();
      return source.row(kForm.behind ? step - 1 : step);
    }
  }
  if constexpr (kForm.behind)
    if (step > 0 && !own.put_last(step - 1)) return source.row(step - 1);
  return rows;
}

/// A row's elements, which have left their landing place, and their terms, each chunk's in its own frame.
template <class E, GuessForm kForm>
__device__ __forceinline__ auto fold_again(const GuessPart<E, kForm>& part, int row,
                                           typename GuessRows<E, kForm>::Vectors& raw,
                                           typename GuessRows<E, kForm>::Values& v) {
  using Shape = GuessShape<E, kForm>;
  const char* x = part.first(row) + lane_index() / Shape::kLanes * part.kChunkBytes;
  const typename Shape::Elements elements(x);
  elements.gather(raw, x, part.count, lift::absent(part.p.factor.c));
  if constexpr (kForm.masked)
    hide_in_memory(elements, raw, part.mask_of(row), part.count, lift::absent(part.p.factor.c));
  const auto extremes = extremes_by_integers<E>(raw);
  unpack<E>(raw, v);
  if constexpr (kForm.log()) keep_packed(raw);
  return Shape::Fold::terms(v, part.p.factor.c, extremes);
}

/// A row that no guess held.
template <class E, GuessForm kForm>
__device__ __noinline__ lift::Root read_again_exactly(const typename GuessPart<E, kForm>::Problem& p, int row,
                                                      Misses& misses, GuessWaits& waits) {
  using Shape = GuessShape<E, kForm>;
  const GuessPart<E, kForm> part(p, waits);
  typename GuessRows<E, kForm>::Vectors raw;
  typename GuessRows<E, kForm>::Values v;
  const auto own = fold_again(part, row, raw, v);
  int& turn = misses.of_warp[warp_index()];
  const StayBox box = Misses::box(Shape::kWarpBytes, part.chunks, turn);
  if (part.count > 0) send_mail<Shape::kLanes>(box[part.chunk()], misses.turns.barrier(turn), mail_of(own));
  misses.turns.wait(turn, StayMail::bytes(part.chunks));
  const lift::Root root = box.template merge<kForm.chunks>(part.chunks);
  GuessResults<E, kForm>{part}.put_exactly(raw, v, own, root, row);
  __syncwarp();
  if (lane_index() == 0) ++turn;
  return root;
}

/// softmax_cluster_stays, or with a mask softmax_masked_stays and fold_masked_stays. A row that the guess does not hold
/// is read again. (nvcc takes no GuessForm here.)
template <class E, Leaves kLeaves, Lands kLands, int kChunks, bool kBehind, bool kMasked = false>
__global__ void __launch_bounds__(kStayWarps * 32, 1)
    softmax_cluster_guesses(const __grid_constant__ std::conditional_t<kMasked, MaskedRows, PlainRows> p,
                            int clusters) {
  // A gradient waits later, for the rows that are prepared (GuessRows::first_gradient).
  if constexpr (kLeaves != Leaves::gradient) begin_in_order();
  constexpr GuessForm kForm{kLeaves, kLands, kChunks, kBehind, false, kMasked};
  using Cluster = lift::Cluster;
  __shared__ Misses misses;
  __shared__ typename GuessRows<E, kForm>::Mail mail;
  __shared__ GuessWaits waits;
  using Source = typename GuessRows<E, kForm>::Source;
  __shared__ typename Source::Queue queue;
  Source source({p.taken, static_cast<unsigned>(p.rows)}, clusters, queue);
  const int rows = static_cast<int>(p.rows);
  RowCounter::Word seen;
  {
    const GuessPart<E, kForm> part(p, waits);
    part.init();
    CopyBarrier::publish();
    const int first = source.by_stride(0);
    if (first < rows) part.fetch_elements(first, 0, true);
    seen = source.init();
    misses.init();
    mail.init(part.chunks, Source::kBytes);
    CopyBarrier::publish();
    misses.turns.expect(StayMail::bytes(part.chunks));
    mail.expect();
  }
  Cluster::arrive_shared();
  source.begin(seen);
  Cluster::wait();

  GuessedFrame frame;
#pragma unroll 1
  for (int step = 0;; ++step) {
    const int row = guess_rows<E, kForm>(p, source, step, frame, mail, waits);
    if (row >= rows) break;
    [[maybe_unused]] int top;
    if constexpr (kForm.gradient() && !kForm.behind) mail.takes_top(step, top);
    frame.follow(read_again_exactly<E, kForm>(p, row, misses, waits));
    if (source.row(step) >= rows) break;  // the last one, written behind
  }
  Cluster::arrive_relaxed();  // nobody leaves while others still send
  Cluster::wait();
  source.end();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
