// ragged_units: how it is launched.
#include "cuda/ragged_units.cuh"

#include "cuda/elements.hpp"
#include "cuda/stay.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

void launch_ragged_units(const RowProblem& p, std::int64_t longest, const RaggedQueue& source,
                         const RaggedQueue& longer, const RaggedQueue& missed, Stream stream) {
  const float c = lift::Factor(fold::make_scale<float>(p.scale).c).c;
  with_element(p[Slot::x].dtype, [&]<class E>() {
    using Units = RaggedUnits<E>;
    const RaggedUnitRows rows{p, extent_of<E>(p), c, longest, source, longer, missed};
    const auto blocks = static_cast<int>(longest / (Units::kWarps * Units::kElements));
    const auto go = [&](auto kernel) {
      launch_to_stay("ragged_units", kernel, {blocks, Units::kWarps + 1}, Units::shared_bytes(blocks), p.rows, stream,
                     rows);
    };
    static_assert(16 * Units::kWarps <= 8 * 32);
    if (blocks * Units::kWarps <= 2 * 32) return go(ragged_units<E, 2>);
    go(ragged_units<E, 8>);
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
