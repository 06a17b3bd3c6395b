// The operands of a call with many of them: each checked by itself, then every result against all the others.
#pragma once

#include "front/checks.hpp"

#include <array>

namespace softfold {
inline namespace v0 {

class NamedViews {
 public:
  enum Kind : std::uint8_t {
    input,
    output,
    output_over_x,       ///< it may also be the very view that x is
    output_over_second,  ///< it may also be the very view that the second one is
  };

  /// The first one is x. One that is not required may be "not given".
  void add(const char* name, const View& v, bool required, Kind kind = input) {
    if (!v.given() && !required) return;
    checks::check_view(v, name);
    all_[count_++] = {name, &v, kind};
  }
  void add_options(const RowOptions& o) {
    add("scales", o.scales, false);
    add("lengths", o.length, false);
    add("offsets", o.offsets, false);
    add("mask", o.mask, false);
  }
  /// One device; no result shares memory with anything else.
  void check_apart() const {
    for (std::size_t i = 0; i < count_; ++i) {
      const Named& out = all_[i];
      checks::check_device(*all_[0].view, *out.view, out.name);
      if (out.kind == input) continue;
      checks::check_output(*out.view, out.name);
      for (std::size_t j = 0; j < count_; ++j) {
        const bool in_place = (j == 0 && out.kind == output_over_x) || (j == 1 && out.kind == output_over_second);
        if (j != i) checks::check_overlap(*out.view, out.name, *all_[j].view, all_[j].name, in_place);
      }
    }
  }

 private:
  struct Named {
    const char* name;
    const View* view;
    Kind kind;
  };
  std::array<Named, 24> all_;
  std::size_t count_ = 0;
};

}  // namespace v0
}  // namespace softfold
