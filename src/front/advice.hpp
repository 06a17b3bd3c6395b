// What to try, where the command has words of its own for it.
#pragma once

#include <string>

namespace softfold {
inline namespace v0 {

/// That an option is not given; to the command's users, that its own is left out.
inline std::string leave_at_default(const std::string& name) { return "leave " + name + " as it is by default"; }

}  // namespace v0
}  // namespace softfold
