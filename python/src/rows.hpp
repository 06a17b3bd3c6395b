// The row operations as Python calls them.
#pragma once

#include "array.hpp"
#include "axes.hpp"

#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

namespace softfold::python {

/// The keywords of a row operation, as Python gave them.
struct RowArguments {
  nb::handle axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty;
  bool keepdims = false;
  bool out_as_keepdims = false;  ///< run_rows_into's `out` is a caller's own: of the shape that keepdims asks for
};

/// Allocates what `out` does not give, runs, and returns the result as the caller's own kind of array.
nb::object run_rows(Op op, std::span<const nb::handle> inputs, const RowArguments& arguments);
/// The same with everything viewable and `out` given: what the other faces end in. `stream`: a cudaStream_t.
void run_rows_into(Op op, std::span<const nb::handle> inputs, const RowArguments& arguments, std::uintptr_t stream);

/// The options that all row operations share, opened; views of them are valid as long as this lives.
struct OpenRowOptions {
  Array scales, lengths, offsets, mask;
  RowOptions options;

  /// Fills options but for the axis and the four views.
  void open_options(const RowArguments& arguments);
  /// Gives options the four views.
  void view_options();
};

/// The arrays of one call; views of them are valid as long as this lives.
class OpenArrays {
 public:
  /// An empty view for None.
  View open(nb::handle object, const char* name, Access access = Access::read, const char* dtypes = kFloatingDTypes);
  /// Class indices, or where they are taken class probabilities.
  View open_target(nb::handle object, bool takes_probabilities = false);
  View open_result(nb::handle object, const char* name, const char* dtypes = kFloatingDTypes) {
    return open(object, name, Access::write, dtypes);
  }

 private:
  std::deque<Array> arrays_;
};

/// A number goes to `number`, an array to `view`.
template <class T>
void take(OpenArrays& arrays, nb::handle given, const char* name, T& number, View& view) {
  if (nb::hasattr(given, "shape")) {
    constexpr const char* kWhole = std::is_unsigned_v<T> ? "int64" : kIntegerDTypes;  // seeds, and counts
    view = arrays.open(given, name, Access::read, std::is_integral_v<T> ? kWhole : "float32, float64");
  } else {
    if constexpr (std::is_integral_v<T>) {
      number = whole<T>(given, name);
    } else {
      number = nb::cast<T>(given);
    }
  }
}

Op op_of(std::string_view name);
Reduction reduction_of(const std::string& name);

void bind_rows(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_losses(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_topk(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_shards(nb::module_& m);
void bind_merges(nb::module_& m);
void bind_streams(nb::module_& m);
void bind_threads(nb::module_& m);
void bind_xla(nb::module_& m);
void bind_errors(nb::module_& m);

/// The executor of Python's calls: a pool of std::threads, which a forked child makes anew.
std::shared_ptr<Executor> executor();

/// Holding the GIL for a microsecond costs others less than letting go of it.
inline constexpr std::int64_t kGilElements = 2048;

/// Runs a plan, letting other Python threads go on if it is worth it.
template <class Make>
void run_plan(std::int64_t elements, const Make& make) {
  if (elements < kGilElements) return make().run();
  const nb::gil_scoped_release others_run;
  make().run();
}

}  // namespace softfold::python
