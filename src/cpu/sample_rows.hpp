// One row's draw: what the filters leave, the state of that, and the way down its tree.
#pragma once

#include "cpu/row_worker.hpp"
#include "cpu/sample_elements.hpp"
#include "cpu/topk_rows.hpp"
#include "softfold/fold/sample.hpp"

#include <algorithm>
#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cpu {

class SampleWorker {
 public:
  using Lse = fold::LogSumExp<float>;
  using State = Lse::State;
  struct Drawn {
    std::int64_t token;  ///< -1: there is nothing to draw from
    State state;         ///< of what was drawn from
  };

  explicit SampleWorker(const SampleProblem& p)
      : p_(p), ops_(chunk_ops<float>()), guess_(thread_scratch().guess<float>()) {}

  void run(const Row& r, std::int64_t index, const Draw& draw) {
    const bool processed = p_[SampleSlot::bias].given || p_[SampleSlot::bitmask].given;
    const bool of_raw = p_.of == Distribution::raw;
    const bool top = p_[SampleSlot::top_tokens].given;
    const bool tells = p_[SampleSlot::log_probability].given || p_[SampleSlot::rank].given || top;
    const Elements raw = !processed || (of_raw && tells) ? elements(r, index, false) : Elements{};
    const Elements x = processed ? elements(r, index, true) : raw;
    const auto scale = fold::make_scale<float>(draw.temperature > 0 ? draw.scale / draw.temperature : 1.);
    // A temperature whose inverse is beyond float32 is as good as 0.
    const bool greedy = draw.temperature == 0 || scale.c == fold::infinity<float>();
    const float from = greedy ? kAll : threshold(x, scale.c, draw);
    const Drawn drawn = greedy ? largest(x) : descend(x, scale.c, from, draw.uniform);
    put(SampleSlot::tokens, index, drawn.token);
    if (p_[Slot::y].given) write_probabilities(r, x, drawn, greedy, scale.c, from);
    if (p_[SampleSlot::masked].given) write_masked(r, index, x, greedy ? drawn.token : -1, from);
    if (!tells) return;
    if (!of_raw && greedy && drawn.token >= 0) return put_point(index, drawn.token);
    const bool asked = p_[SampleSlot::log_probability].given && drawn.token >= 0;
    const auto own = of_raw ? fold::make_scale<float>(draw.scale) : scale;
    const Elements& all = of_raw ? raw : x;
    const bool known = !of_raw || (!greedy && !processed && !draw.filters() && draw.temperature == 1);
    if (!asked && !top) return put_numbers(index, all, drawn.token, 0.F);
    auto row = ops_.log_normaliser(known ? drawn.state : state_of(all, own.c, kAll), own);
    row.set_c(own.c);
    put_numbers(index, all, drawn.token, asked ? log_probability(row, all[drawn.token]) : 0.F);
    if (top) put_top(index, all, of_raw ? kAll : from, row);
  }

  /// The element to which the way leads from a node of a row: x are the node's elements, row_m is the row's frame.
  std::int64_t descend_node(const Elements& x, float c, double row_m, const fold::Descent& way) {
    return walk(levels(x, c, kAll), x, c, kAll, row_m, way);
  }

  /// The row's elements where they are, if they lie side by side and all exist; else gathered.
  Elements elements(const Row& r, std::int64_t index, bool processed) {
    const Operand& x = p_[Slot::x];
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    if (!processed && r.mask == nullptr && (x.axis_stride == size || r.length <= 1)) return {r.x, x.dtype, r.length};
    float* to = thread_scratch().get<float>(processed ? Scratch::sampled : Scratch::sampled_raw,
                                            static_cast<std::size_t>(r.length) + 1);
    with_dtype(x.dtype, [&]<class S>(S) {
      for (std::int64_t i = 0; i < r.length; ++i)
        to[i] = static_cast<float>(fold::widen(*reinterpret_cast<const S*>(r.x + i * x.axis_stride)));
    });
    if (processed) process(index, r.length, to);
    if (r.mask != nullptr)
      for (std::int64_t i = 0; i < r.length; ++i)
        if (r.mask[i * p_[Slot::mask].axis_stride] == 0) to[i] = kAll;
    return {reinterpret_cast<const char*>(to), DType::float32, r.length};
  }

 private:
  static constexpr float kAll = -std::numeric_limits<float>::infinity();

  void process(std::int64_t index, std::int64_t n, float* x) const {
    const Operand &bias = p_[SampleSlot::bias], &words = p_[SampleSlot::bitmask];
    if (bias.given) {
      const char* at = p_.at(bias, index);
      with_dtype(bias.dtype, [&]<class S>(S) {
        for (std::int64_t i = 0; i < n; ++i) {
          const auto b = static_cast<float>(fold::widen(*reinterpret_cast<const S*>(at + i * bias.axis_stride)));
          x[i] = b == kAll ? kAll : x[i] + b;  // what is forbidden may be anything
        }
      });
    }
    if (!words.given) return;
    const char* at = p_.at(words, index);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto word =
          static_cast<std::uint32_t>(*reinterpret_cast<const std::int32_t*>(at + i / 32 * words.axis_stride));
      if ((word >> (i % 32) & 1U) == 0) x[i] = kAll;
    }
  }

  /// The k best elements, in no order.
  std::int64_t best(const Elements& x, std::int64_t k, fold::Ranked<float>** entries) {
    auto* room = thread_scratch().get<fold::Ranked<float>>(Scratch::best, BestOf<float>::size_for(k));
    BestOf<float> best(room, k);
    x.for_pieces(BestOf<float>::kPiece, [&](const void* at, int n, std::int64_t i) {
      best.offer(at, x.dtype, n, i, [](int) { return true; });
    });
    *entries = room;
    return best.finish();
  }

  /// Its state is that of a row with nothing in it, or with one element, or NaN.
  Drawn largest(const Elements& x) {
    fold::Ranked<float>* first;
    if (best(x, 1, &first) == 0 || first->value() == kAll) return {-1, Lse::identity()};
    if (fold::is_nan(first->value())) return {-1, Lse::not_a_number()};
    return {first->index, {0., 1.F}};
  }

  /// What the filters leave are the elements from this one up. NaN if the row is no distribution.
  float threshold(const Elements& x, float c, const Draw& draw) {
    if (!draw.filters()) return kAll;
    const bool cuts = draw.top_k > 0 && draw.top_k < x.n;
    fold::Ranked<float>* entries;
    const std::int64_t count = best(x, cuts ? draw.top_k : 1, &entries);
    if (count == 0) return kAll;
    const auto before = [](const auto& a, const auto& b) { return a.before(b); };
    const float top = std::min_element(entries, entries + count, before)->value();
    if (!(std::fabs(top) < fold::infinity<float>())) return top == kAll ? kAll : fold::canonical_nan<float>();
    const float kth = cuts ? std::max_element(entries, entries + count, before)->value() : kAll;
    const float near = draw.min_p > 0 ? fold::least_of_min_p(top, draw.min_p, c) : kAll;
    if (draw.top_p >= 1) return std::max(kth, near);
    const float first = p_.order == FilterOrder::min_p_first ? std::max(kth, near) : kth;
    return std::max({first, near, weigh(x, c, first, top, draw.top_p)});
  }

  struct Weighed {
    float value;
    std::uint64_t count;
  };

  /// The largest element such that those from it up have a share of at least top_p of those from `first` up.
  float weigh(const Elements& x, float c, float first, float top, double top_p) {
    auto* weighed = thread_scratch().get<Weighed>(Scratch::sampled_counts, static_cast<std::size_t>(x.n));
    const double m = Lse::frame(top, c).m;
    std::int64_t size = 0;
    std::uint64_t total = 0;
    x.for_pieces(lift::kChunk, [&](const void* at, int n, std::int64_t i) {
      const double unit = terms(x, at, n, i, c, first, m);
      for (int k = 0; k < n; ++k) {
        const std::uint64_t count = fold::count_of(static_cast<double>(terms_[k]) * unit);
        if (count != 0) weighed[size++] = {x[i + k], count};
        total += count;
      }
    });
    return select(weighed, size, fold::share_of(top_p, total));
  }

  /// terms_[0 .. n) times the result are the terms of the n elements at `at`, those from `from` up, in the frame m.
  double terms(const Elements& x, const void* at, int n, std::int64_t begin, float c, float from, double m) {
    const void* some = filtered(x, at, n, from);
    const auto reduced = ops_.reduce_keeping[index(filtered_dtype(x, from))](some, n, c, terms_, guess_, false);
    double frame = static_cast<double>(reduced.frame);
    if (fold::is_nan(reduced.frame)) {  // nothing there, or outside the fast range: by the definition
      frame = reduced.state.m;
      for (int k = 0; k < n; ++k) {
        const float v = from == kAll ? x[begin + k] : chunk_[k];
        terms_[k] = v == kAll             ? 0.F
                    : Lse::is_fast(frame) ? fold::term<fold::Scalar<float>>(v, c, Lse::narrow(frame))
                                          : fold::term_wide(v, c, frame);
      }
    }
    return frame == -fold::infinity<double>() ? 0. : std::ldexp(1., static_cast<int>(std::max(frame - m, -1000.)));
  }

  /// The value down to which, from the largest on, the counts reach `need`.
  static float select(Weighed* a, std::int64_t size, std::uint64_t need) {
    for (int rounds = 0;; ++rounds) {
      if (rounds == 64)  // unlucky pivots
        std::sort(a, a + size, [](const Weighed& v, const Weighed& w) { return v.value < w.value; });
      const float pivot = std::max(std::min(a[0].value, a[size / 2].value),
                                   std::min(std::max(a[0].value, a[size / 2].value), a[size - 1].value));
      Weighed* equal = std::partition(a, a + size, [pivot](const Weighed& w) { return w.value > pivot; });
      Weighed* less = std::partition(equal, a + size, [pivot](const Weighed& w) { return w.value == pivot; });
      const auto sum = [](const Weighed* from, const Weighed* to) {
        std::uint64_t s = 0;
        for (; from != to; ++from) s += from->count;
        return s;
      };
      const std::uint64_t above = sum(a, equal), here = sum(equal, less);
      if (need <= above) {
        size = equal - a;
      } else if (need <= above + here) {
        return pivot;
      } else {
        need -= above + here;
        size -= less - a;
        a = less;
      }
    }
  }

  /// n <= kChunk elements of which those below `from` are not there.
  const void* filtered(const Elements& x, const void* at, int n, float from) {
    if (from == kAll) return at;
    with_dtype(x.dtype, [&]<class S>(S) {
      for (int i = 0; i < n; ++i) {
        const auto v = static_cast<float>(fold::widen(static_cast<const S*>(at)[i]));
        chunk_[i] = v >= from ? v : kAll;
      }
    });
    return chunk_;
  }
  DType filtered_dtype(const Elements& x, float from) const { return from == kAll ? x.dtype : DType::float32; }

  /// The chunks' states, for all the levels above them to be built behind.
  State* chunk_states(const Elements& x, float c, float from) {
    auto* nodes =
        thread_scratch().get<State>(Scratch::nodes, static_cast<std::size_t>(2 * lift::chunk_count(x.n)) + 64);
    const auto reduce = ops_.reduce[index(filtered_dtype(x, from))];
    const bool far = from == kAll && reads_far(p_);  // what was filtered lies in the cache
    State* to = nodes;
    x.for_pieces(lift::kChunk, [&](const void* at, int n, std::int64_t) {
      *to++ = reduce(filtered(x, at, n, from), n, c, terms_, guess_, far).state;
    });
    return nodes;
  }

  State state_of(const Elements& x, float c, float from) {
    return lift::reduce_nodes<Lse>(chunk_states(x, c, from), lift::chunk_count(x.n));
  }

  /// The tree above the chunks, level by level.
  struct Levels {
    const State* nodes[lift::kMaxLevels];
    std::int64_t size[lift::kMaxLevels];
    int top = 0;  ///< the root's
  };
  Levels levels(const Elements& x, float c, float from) {
    Levels tree;
    State* nodes = chunk_states(x, c, from);
    tree.nodes[0] = nodes, tree.size[0] = lift::chunk_count(x.n);
    for (; tree.size[tree.top] > 1; ++tree.top) {
      const std::int64_t size = tree.size[tree.top], half = (size + 1) / 2;
      State* up = nodes + size;
      for (std::int64_t i = 0; i < half; ++i)
        up[i] = 2 * i + 1 < size ? Lse::merge(nodes[2 * i], nodes[2 * i + 1]) : nodes[2 * i];
      tree.size[tree.top + 1] = half;
      tree.nodes[tree.top + 1] = nodes = up;
    }
    return tree;
  }

  /// From the root to a chunk, and in it to an element.
  Drawn descend(const Elements& x, float c, float from, double uniform) {
    if (x.n == 0) return {-1, Lse::identity()};
    if (fold::is_nan(from)) return {-1, Lse::not_a_number()};
    const Levels tree = levels(x, c, from);
    const State root = *tree.nodes[tree.top];
    if (!fold::Normaliser<float>(root).regular) return {-1, root};
    return {walk(tree, x, c, from, root.m, {uniform * static_cast<double>(root.d)}), root};
  }

  std::int64_t walk(const Levels& tree, const Elements& x, float c, float from, double row_m, fold::Descent way) {
    std::int64_t i = 0;
    for (int level = tree.top - 1; level >= 0; --level) {
      i *= 2;
      const State* nodes = tree.nodes[level];
      if (i + 1 < tree.size[level] &&
          way.goes_right(fold::mass_of(nodes[i], row_m), fold::mass_of(nodes[i + 1], row_m)))
        ++i;
    }
    const std::int64_t begin = i * lift::kChunk;
    return begin + descend_chunk(x, begin, c, from, row_m, way);
  }

  int descend_chunk(const Elements& x, std::int64_t begin, float c, float from, double row_m, fold::Descent way) {
    const int n = static_cast<int>(std::min<std::int64_t>(lift::kChunk, x.n - begin));
    const double unit = terms(x, x.at(begin), n, begin, c, from, row_m);
    std::fill(terms_ + n, terms_ + lift::kChunk, 0.F);
    // sums_[s .. 2 s): the sums of elements whose places agree modulo s.
    std::copy_n(terms_, lift::kChunk, sums_ + lift::kChunk);
    for (int s = lift::kChunk / 2; s > 0; s /= 2)
      for (int k = 0; k < s; ++k) sums_[s + k] = sums_[2 * s + k] + sums_[3 * s + k];
    int place = 0;
    for (int s = 1; s < lift::kChunk; s *= 2) {
      const double left = static_cast<double>(sums_[2 * s + place]) * unit;
      const double right = static_cast<double>(sums_[3 * s + place]) * unit;
      if (way.goes_right(left, right)) place += s;
    }
    return place;
  }

  /// The distribution that was drawn from.
  void write_probabilities(const Row& r, const Elements& x, const Drawn& drawn, bool greedy, float c, float from) {
    Sink sink(p_, r);
    const fold::Normaliser<float> row(drawn.state);
    if (row.empty) return sink.fill(0, r.n, p_.empty == Empty::nan ? fold::canonical_nan<double>() : 0.);
    if (!row.regular || greedy) {
      sink.fill(0, r.n, 0.);
      if (greedy && row.regular) return sink.fill(drawn.token, drawn.token + 1, 1.);
      return sink.fill_present(0, r.length, fold::canonical_nan<double>());
    }
    const auto write = ops_.write[index(filtered_dtype(x, from))][index(sink.dtype())];
    x.for_pieces(lift::kChunk, [&](const void* at, int n, std::int64_t i) {
      write(filtered(x, at, n, from), n, c, row, sink.begin(i), false);
      sink.end(i, n);
    });
    sink.fill(r.length, r.n, 0.);
  }

  /// The logits, -inf where they were taken away. `only`: the one that stays, or -1.
  void write_masked(const Row& r, std::int64_t row, const Elements& x, std::int64_t only, float from) {
    const Operand& o = p_[SampleSlot::masked];
    char* to = p_.at(o, row);
    with_dtype(o.dtype, [&]<class S>(S) {
      for (std::int64_t i = 0; i < r.n; ++i) {
        const float v = i < r.length ? x[i] : kAll;
        const bool gone = only >= 0 ? i != only : v < from;
        *reinterpret_cast<S*>(to + i * o.axis_stride) = fold::narrow<S>(gone ? kAll : fold::canonical(v));
      }
    });
  }

  static float log_probability(const fold::LogNormaliser<float>& row, float x) {
    return row.regular ? row.log_probability(x) : fold::canonical_nan<float>();
  }

  /// The largest elements, none of which is below `from`.
  void put_top(std::int64_t index, const Elements& x, float from, const fold::LogNormaliser<float>& row) {
    fold::Ranked<float>* entries;
    const std::int64_t count = best(x, p_.top, &entries);
    std::sort(entries, entries + count, [](const auto& a, const auto& b) { return a.before(b); });
    for (std::int64_t j = 0; j < p_.top; ++j) {
      const float v = j < count ? x[entries[j].index] : kAll;
      const bool there = v != kAll && !(v < from);
      put_entry(index, j, there ? entries[j].index : -1, there ? log_probability(row, v) : kAll);
    }
  }
  void put_entry(std::int64_t index, std::int64_t j, std::int64_t token, float log_probability) {
    const Operand &tokens = p_[SampleSlot::top_tokens], &lps = p_[SampleSlot::top_log_probabilities];
    put_integer(tokens, p_.at(tokens, index) + j * tokens.axis_stride, token);
    put_number(lps, p_.at(lps, index) + j * lps.axis_stride, static_cast<double>(log_probability));
  }

  void put_numbers(std::int64_t row, const Elements& x, std::int64_t token, float log_probability) {
    put_real(row, token < 0 ? fold::canonical_nan<float>() : log_probability);
    if (p_[SampleSlot::rank].given) put(SampleSlot::rank, row, token < 0 ? 0 : x.count_from(x[token]));
  }
  /// Of a distribution that has one element.
  void put_point(std::int64_t row, std::int64_t token) {
    put_real(row, 0.F);
    if (p_[SampleSlot::rank].given) put(SampleSlot::rank, row, 1);
    for (std::int64_t j = 0; j < p_.top; ++j) put_entry(row, j, j == 0 ? token : -1, j == 0 ? 0.F : kAll);
  }
  void put_real(std::int64_t row, float value) {
    const Operand& o = p_[SampleSlot::log_probability];
    if (o.given) put_number(o, p_.at(o, row), static_cast<double>(value));
  }
  void put(SampleSlot slot, std::int64_t row, std::int64_t value) {
    put_integer(p_[slot], p_.at(p_[slot], row), value);
  }

  const SampleProblem& p_;
  const ChunkOps<float>& ops_;
  lift::Guess<float>& guess_;
  alignas(64) float terms_[ChunkOps<float>::kTermsRoom + lift::kChunk];
  alignas(64) float chunk_[lift::kChunk];
  alignas(64) float sums_[2 * lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
