// Kernels of one operation raced on the same rows, beside a copy or a read of the same bytes.
#pragma once

#include "blocks.hpp"
#include "ladder.hpp"
#include "turn.hpp"

#include "softfold/executor.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace softfold::cli {

/// Rows in memory, and room for their results.
struct Data {
  DType dtype;
  std::int64_t rows, n;
  Buffer x, y;
  std::size_t x_bytes, y_bytes;
};

struct Measured {
  std::string kernel, why_not;  ///< why_not: refused, nothing was measured
  std::optional<Traffic> traffic;
  Turn turn{};
  std::int64_t nan_rows = 0;  ///< rows with a NaN in their result
  std::string hash;
};

struct Race {
  std::int64_t rows, n;
  double ceiling;  ///< seconds of a copy, or of a read where nothing of x's size is written: of a turn in the middle
  std::vector<std::pair<std::string, Measured>> runners;
};

constexpr bool writes_all(Op op) { return op == Op::softmax || op == Op::log_softmax; }

/// Bytes of the result.
std::size_t result_bytes(Op op, const Data& d);

/// Who runs, and for about how many seconds each.
struct Racing {
  Op op;
  std::vector<Rung> rungs;  ///< Rung::automatic is refused by an Error, others with the reason in `why_not`
  double scale, seconds;
};
/// On the executor's threads.
Race race_here(const Racing& racing, const Data& d, Executor& executor);
/// On the first GPU, by events around replays of graphs; an operation that writes_all(). Throws as CudaDevice does.
Race race_on_gpu(const Racing& racing, const Data& d);

}  // namespace softfold::cli
