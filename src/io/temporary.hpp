// Temporaries that stand beside an output until it is whole, and how to tell an abandoned one.
#pragma once

#include "softfold/config.hpp"

#include <string>

namespace softfold {
inline namespace v0 {
namespace io {

struct Temporary {
  std::string path;
  int fd = -1;  ///< open for writing and locked; -1: errno says why not
};

/// Creates a new file `.softfold-<host>-<pid>-<random>.tmp` in `folder` with `mode` (less the umask).
/// Its lock (flock) lives as long as the process that made it, or until the file is closed.
Temporary create_temporary(const std::string& folder, unsigned mode);

/// Removes this host's temporaries in `folder` that no living process holds. Best effort: never throws an Error.
/// The lock decides, not the process id: ids mean nothing across containers that share a folder.
void remove_stale_temporaries(const std::string& folder);

}  // namespace io
}  // namespace v0
}  // namespace softfold
