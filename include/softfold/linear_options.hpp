// What a caller may ask of linear_cross_entropy.
#pragma once

#include "softfold/options.hpp"

namespace softfold {
inline namespace v0 {

/// How many logits are held at once.
enum class LinearMode : std::uint8_t {
  fast,  ///< all of them, and (without softcap) their gradient in their place: three matrix products
  lean,  ///< those of a block of classes; those not kept in dweight are computed twice: 3 to 4. On the CPU as fast
};

/// Options of linear_cross_entropy: logits z = x weight^T + bias of B rows of D features and V classes, or
/// softcap tanh(z / softcap); their cross-entropy; its gradients.
struct LinearCrossEntropyOptions {
  /// Of the logits. Its dx is not used (Code::option): the gradients are those below. Of its rows' options axis,
  /// offsets, causal and rung stay as they are by default.
  CrossEntropyOptions loss;
  View bias{};         ///< floating, [V]
  double softcap = 0;  ///< 0: off
  LinearMode mode = LinearMode::fast;
  View dx{};       ///< result, of x's shape; before that, as dweight, memory that mode lean works in on a GPU
  View dweight{};  ///< result, of weight's shape
  View dbias{};    ///< result, [V]; with a bias only
};

}  // namespace v0
}  // namespace softfold
