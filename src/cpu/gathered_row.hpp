// The partials of one row, by their places, and what follows from them.
#pragma once

#include "cpu/reduce_run.hpp"
#include "cpu/row.hpp"
#include "cpu/shards.hpp"

#include <vector>

namespace softfold {
inline namespace v0 {
namespace cpu {

class GatheredRow {
 public:
  GatheredRow(const RowProblem& p, const Gathered& gathered)
      : p_(p), gathered_(gathered), parts_(static_cast<std::size_t>(gathered.parts)) {}

  /// The parts of a row from now on, as they come: nothing else may be asked of them before they are sorted.
  void gather(std::int64_t row) {
    const char* at = p_.at(gathered_.first, row);
    for (std::size_t i = 0; i < parts_.size(); ++i, at += gathered_.stride)
      parts_[i] = reinterpret_cast<const double*>(at);
  }
  /// Neighbours next to each other; of those at one place the empty ones first. Offsets and lengths are numbers.
  void sort() {
    std::sort(parts_.begin(), parts_.end(), [](const double* a, const double* b) {
      return a[kOffset] != b[kOffset] ? a[kOffset] < b[kOffset] : a[kLength] < b[kLength];
    });
  }
  void stand_at(std::int64_t row) {
    gather(row);
    sort();
  }
  const std::vector<const double*>& parts() const { return parts_; }
  double scale() const { return parts_[0][kScale]; }

  /// Calls take(chunk, level, state) for nodes that together are the whole row, from left to right: those that the
  /// parts hold, and divided(chunk, elements, count, state) for the chunks that cuts divide.
  template <class T, class Take, class Divided>
  void for_nodes(const Take& take, const Divided& divided) const {
    using State = typename fold::LogSumExp<T>::State;
    const T c = folded_c(fold::make_scale<T>(scale()));
    T chunk[lift::kChunk];
    int held = 0;
    for (const double* part : parts_) {
      const PartialPieces pieces(part);
      const lift::ShardLayout& l = pieces.layout;
      const auto single = [&](const double* from, std::int64_t begin, std::int64_t end) {
        for (; begin < end; ++begin) {
          chunk[held++] = static_cast<T>(*from++);
          if ((begin + 1) % lift::kChunk != 0 && begin + 1 != p_.n) continue;
          divided(begin / lift::kChunk, chunk, held, reduce_run<T>(chunk, held, c));
          held = 0;
        }
      };
      single(pieces.head, l.begin, l.first);
      const double* node = pieces.nodes;
      l.for_nodes([&](std::int64_t begin, int level) {
        take(begin, level, State{node[0], static_cast<T>(node[1])});
        node += 2;
      });
      single(pieces.tail, l.last, l.end);
    }
  }

  template <class T>
  typename fold::LogSumExp<T>::State state() const {
    lift::TreeBuilder<fold::LogSumExp<T>> tree;
    for_nodes<T>([&](std::int64_t, int level, const auto& s) { tree.push(s, level); },
                 [&](std::int64_t, const T*, int, const auto& s) { tree.push(s, 0); });
    return tree.root();
  }

  /// The part that holds an element of the row.
  const double* part_of(std::int64_t element) const {
    const auto place = static_cast<double>(element);
    for (const double* part : parts_)
      if (part[kOffset] <= place && place < part[kOffset] + part[kLength]) return part;
    return nullptr;
  }

 private:
  const RowProblem& p_;
  const Gathered& gathered_;
  std::vector<const double*> parts_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
