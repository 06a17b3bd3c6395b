// What the tests of the matrix share: running a problem, comparing outputs, naming what differs.
#pragma once

#include "own_plan.hpp"
#include "support/thread_counts.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>

namespace softfold_test {

inline void run(Problem& p, const softfold::Context& context = {}) {
  const Bound b = bind(p);
  plan_of(b, p.op, p.is_merge(), context).run();
}

/// "" if equal, else where the two first differ.
inline std::string difference(const Array& a, const Array& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return "other shapes or dtypes";
  const auto x = a.elements(), y = b.elements();
  if (x == y) return "";
  const std::size_t size = size_of(a.dtype());
  std::size_t first = 0, differing = 0;
  for (std::size_t k = 0; k < x.size(); k += size) {
    if (std::memcmp(&x[k], &y[k], size) == 0) continue;
    if (differing++ == 0) first = k / size;
  }
  return std::to_string(differing) + " of " + std::to_string(x.size() / size) + " elements differ, the first at " +
         std::to_string(first);
}

inline std::string difference(const Problem& a, const Problem& b) {
  if (a.outputs.size() != b.outputs.size()) return "another number of outputs";
  for (std::size_t i = 0; i < a.outputs.size(); ++i)
    if (const auto d = difference(a.outputs[i], b.outputs[i]); !d.empty())
      return "output " + std::to_string(i) + ": " + d;
  return "";
}

/// A case made once, and its result on the calling thread alone: what everything else must equal. Made when first asked
/// for, because every test is a process of its own and many look at a part of the list.
class Baseline {
 public:
  static const Problem& of(std::size_t index) {
    Made& m = made(index);
    if (!m.result) {
      m.result = m.problem;
      softfold::Context serial;
      serial.cpu = &softfold::serial_executor();
      try {
        run(*m.result, serial);
      } catch (const softfold::Error& e) {
        ADD_FAILURE() << cases()[index].name << ": " << e.what();
      }
    }
    return *m.result;
  }
  static Problem fresh(std::size_t index) { return made(index).problem; }

 private:
  struct Made {
    Problem problem;
    std::optional<Problem> result;
  };
  static Made& made(std::size_t index) {
    static std::vector<std::optional<Made>> all(cases().size());
    if (!all[index]) all[index] = Made{cases()[index].make(), {}};
    return *all[index];
  }
};

/// For every case: variant(index) gives the problem, run in some other way, and its bits are the baseline's. With
/// kStep above one, the next call takes the cases after this one's.
template <class Variant>
void expect_baseline_bits(const std::string& what, Variant&& variant) {
  static std::size_t calls = 0;
  int failures = 0;
  for (std::size_t i = calls++ % kStep; i < cases().size() && failures < 20; i += kStep) {
    const Problem got = variant(i);
    const std::string d = difference(got, Baseline::of(i));
    if (d.empty()) continue;
    ++failures;
    ADD_FAILURE() << cases()[i].name << ", " << what << ": " << d;
  }
}

}  // namespace softfold_test
