// Partials of shards of rows: the numbers in them, what these must be, and the problems that have them.
#pragma once

#include "front/problem.hpp"
#include "softfold/fold/topk.hpp"
#include "softfold/lift/shard.hpp"
#include "softfold/lift/stream.hpp"

namespace softfold {
inline namespace v0 {

/// What stands at the head of a row's partial, each a number of float64. Then 2 k numbers, the largest elements and
/// their indices; the single elements before the nodes, the nodes (m, d), the single elements behind them.
enum PartialWord : std::uint8_t {
  kVersion,
  kDigits,
  kScale,
  kSize,
  kOffset,
  kLength,
  kBest,
  kHasTarget,
  kTarget,
  kTargetIndex,  ///< in the whole row, also where another shard holds the element; -1: none
  kPartialWords
};

/// Rows of x (Slot::x) to their partials (Slot::states, `width` numbers each), and where the targets lie.
struct ShardProblem : LossProblem {
  std::int64_t k, width;
};

/// The partials of all shards: part i of row r lies i * stride bytes behind where row r of `first` does.
struct Gathered {
  Operand first;
  std::int64_t parts, stride, width;
};

/// Where the numbers of a shard's partial lie, behind its words and its k largest elements, and how many there are.
struct PartialPlaces {
  lift::ShardLayout layout;
  std::int64_t head, nodes, tail, width;

  constexpr PartialPlaces(const lift::ShardLayout& of, std::int64_t k)
      : layout(of),
        head(kPartialWords + 2 * k),
        nodes(head + layout.first - layout.begin),
        tail(nodes + 2 * layout.nodes()),
        width(tail + layout.end - layout.last) {}
  /// n: of the shard's elements.
  constexpr PartialPlaces(const Shard& shard, std::int64_t n, std::int64_t k)
      : PartialPlaces(lift::ShardLayout(shard.offset, shard.offset + n, shard.size), k) {}
  /// Of a partial whose words are sound.
  constexpr explicit PartialPlaces(const double* part)
      : PartialPlaces({static_cast<std::int64_t>(part[kOffset]), static_cast<std::int64_t>(part[kSize])},
                      static_cast<std::int64_t>(part[kLength]), static_cast<std::int64_t>(part[kBest])) {}
};

/// The pieces of one partial's fold.
struct PartialPieces {
  lift::ShardLayout layout;
  const double *head, *nodes, *tail;

  constexpr explicit PartialPieces(const double* part) : PartialPieces(part, PartialPlaces(part)) {}

 private:
  constexpr PartialPieces(const double* part, const PartialPlaces& places)
      : layout(places.layout), head(part + places.head), nodes(part + places.nodes), tail(part + places.tail) {}
};

SOFTFOLD_HD bool is_count(double value) { return value >= 0 && value <= 0x1p53 && value == ::floor(value); }

/// The first thing in which a partial's head is not as fold_shard writes it.
enum class PartialFault : std::uint8_t { none, version, digits, place, best, mark, target, width };

/// Of a partial of `width` numbers. Its pieces may be asked for where there is none.
SOFTFOLD_HD PartialFault fault_of(const double* part, std::int64_t width) {
  if (part[kVersion] != SOFTFOLD_BITS_VERSION) return PartialFault::version;
  if (part[kDigits] != fold::Real<float>::kDigits && part[kDigits] != fold::Real<double>::kDigits)
    return PartialFault::digits;
  if (!is_count(part[kSize]) || !is_count(part[kOffset]) || !is_count(part[kLength])) return PartialFault::place;
  // Added as integers: a sum of doubles may be rounded down to the size.
  const auto offset = static_cast<std::int64_t>(part[kOffset]), end = offset + static_cast<std::int64_t>(part[kLength]);
  if (end > static_cast<std::int64_t>(part[kSize])) return PartialFault::place;
  if (!is_count(part[kBest]) || part[kBest] > part[kSize]) return PartialFault::best;
  const double mark = part[kHasTarget], target = part[kTargetIndex];
  if (mark != 0 && mark != 1) return PartialFault::mark;
  if (target != -1 && !(mark == 1 && is_count(target) && target < part[kSize])) return PartialFault::target;
  return PartialPlaces(part).width > width ? PartialFault::width : PartialFault::none;
}

/// Whether (m, d) at `node` is one that 2^level chunks may have, in the bits that a fold gives it. Of NaNs any: they
/// are written as the canonical one.
template <class T>
SOFTFOLD_HD bool is_node_of(double scale, const double* node, int level) {
  const auto elements = static_cast<double>(std::int64_t{lift::kChunk} << level);
  const bool negative = fold::bits_as<std::uint64_t>(node[1]) >> 63 != 0;
  return lift::PossibleStates<T>(fold::make_scale<T>(scale)).have(node[0], node[1], elements) &&
         (fold::is_nan(node[1]) || !negative);
}
SOFTFOLD_HD bool is_node(const double* part, const double* node, int level) {
  return part[kDigits] == fold::Real<double>::kDigits ? is_node_of<double>(part[kScale], node, level)
                                                      : is_node_of<float>(part[kScale], node, level);
}

/// The j-th largest element of a partial; where there is none, what is behind all others.
template <class T>
SOFTFOLD_HD fold::Ranked<T> best_of(const double* part, std::int64_t j) {
  const double* entry = part + kPartialWords + 2 * j;
  if (!(entry[1] >= 0)) return {0, INT64_MAX};
  return fold::Ranked<T>::of(static_cast<T>(entry[0]), static_cast<std::int64_t>(entry[1]));
}
/// Whether it is an element of the shard, behind the one before it, or none.
SOFTFOLD_HD bool is_best(const double* part, std::int64_t j) {
  const double index = part[kPartialWords + 2 * j + 1];
  if (index == -1) return true;
  const bool inside = is_count(index) && index >= part[kOffset] && index < part[kOffset] + part[kLength];
  return inside && (j == 0 || best_of<double>(part, j - 1).before(best_of<double>(part, j)));
}

}  // namespace v0
}  // namespace softfold
