// A row that arrives in pieces: its state and logsumexp at any time, its probabilities on a second pass. The bits are
// those of the whole row, however it was cut.
//
//   softfold::Stream row(softfold::DType::float32);
//   while (read(piece)) row.push(piece);             // a number, a span, a View, another stream's Partial
//   double lse = row.logsumexp();
//   while (read_again(piece)) row.softmax(piece, y);
#pragma once

#include "softfold/lift/stream.hpp"
#include "softfold/options.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <variant>

namespace softfold {
inline namespace v0 {

/// Holds a few thousand numbers at most, whatever the row's length. Not for two threads at once; a const stream may be
/// read, and its second pass run, by several.
class SOFTFOLD_API Stream {
 public:
  /// A row of elements of `dtype` (float64 is folded in float64, every other floating dtype in float32), each
  /// multiplied by `scale`. `offset`: where in its row the first element stands, for a shard that another process will
  /// join. Refused: a dtype that is not floating (Code::dtype), a scale that plan() refuses: one whose product
  /// with log2(e) is not finite, or subnormal (Code::option), an offset outside 0 .. 2^53 (Code::shape).
  explicit Stream(DType dtype = DType::float32, double scale = 1, std::int64_t offset = 0, const Context& context = {});

  /// The next element. A double is taken by a float64 stream alone, a float by the others (Code::dtype).
  void push(float element);
  void push(double element);
  /// The next elements.
  void push(std::span<const float> elements);
  void push(std::span<const double> elements);
  /// The next elements: a 1-D view on the CPU, strided as it may be, of float64 for a float64 stream and of any other
  /// floating dtype for the rest. Long pieces are folded by the context's threads. Refused, the stream being left as it
  /// was: another dtype, another rank or an end() beyond 2^53 (Code::dtype, shape), memory that is not the host's
  /// (Code::unsupported).
  void push(const View& piece);
  /// What another stream, file or process holds of the same row, from end() on (Code::state).
  void push(const Partial<float>& piece);
  void push(const Partial<double>& piece);

  DType dtype() const { return dtype_; }
  double scale() const;
  /// Elements so far.
  std::int64_t length() const;
  /// offset + length: where the next element stands.
  std::int64_t end() const;

  /// (m, d, scale, digits), the row of four that softfold::state would have written: the whole row's bits for a stream
  /// from offset 0, else right within the stated bound.
  std::array<double, 4> state() const;
  /// ln sum exp(scale x) of the elements so far; -inf for none. A float32 fold's is a float, widened.
  double logsumexp() const;
  /// What travels: T is float, or double for a float64 stream (else Code::dtype).
  template <class T>
  const Partial<T>& partial() const;

  /// The second pass, once everything has been pushed: y = the probabilities (log-probabilities) of a piece of the row,
  /// which may be cut in another way than before, in any order. x, y: 1-D, of one length; y may be x. If the state is
  /// not this stream's own alone, but joined from several, use finish_softmax (softfold.hpp).
  void softmax(const View& x, const View& y, Empty empty = Empty::zero) const;
  void log_softmax(const View& x, const View& y, Empty empty = Empty::zero) const;

 private:
  template <class F>
  void with_partial(F&& f);
  void finish(bool log, const View& x, const View& y, Empty empty) const;

  DType dtype_;
  Context context_;
  std::variant<Partial<float>, Partial<double>> partial_;
};

/// The partial of all parts, given in any order. Refused (Code::state): none, different scales, a gap or an overlap.
SOFTFOLD_API Partial<float> join(std::span<const Partial<float>> parts);
SOFTFOLD_API Partial<double> join(std::span<const Partial<double>> parts);

}  // namespace v0
}  // namespace softfold
