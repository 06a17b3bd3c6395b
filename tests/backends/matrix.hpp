// What the tests of the matrix share: running a problem, comparing outputs, naming what differs.
#pragma once

#include "own_plan.hpp"

#include <gtest/gtest.h>

#include <cstring>
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

/// Every case made once, and its result on the calling thread alone: what everything else must equal.
class Baseline {
 public:
  static const Problem& of(std::size_t index) { return all().results[index]; }
  static Problem fresh(std::size_t index) { return all().problems[index]; }

 private:
  struct All {
    std::vector<Problem> problems, results;
  };
  static const All& all() {
    static const All made = [] {
      All a;
      softfold::Context serial;
      serial.cpu = &softfold::serial_executor();
      for (const Case& c : cases()) {
        a.problems.push_back(c.make());
        a.results.push_back(a.problems.back());
        try {
          run(a.results.back(), serial);
        } catch (const softfold::Error& e) {
          ADD_FAILURE() << c.name << ": " << e.what();
        }
      }
      return a;
    }();
    return made;
  }
};

// Races are a matter of schedules, not of values, and finding them takes its time: a part of the list is enough for
// that.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kStep = 7;
#else
constexpr std::size_t kStep = 1;
#endif

/// For every case: variant(index) gives the problem, run in some other way, and its bits are the baseline's.
template <class Variant>
void expect_baseline_bits(const std::string& what, Variant&& variant) {
  int failures = 0;
  for (std::size_t i = 0; i < cases().size() && failures < 20; i += kStep) {
    const Problem got = variant(i);
    const std::string d = difference(got, Baseline::of(i));
    if (d.empty()) continue;
    ++failures;
    ADD_FAILURE() << cases()[i].name << ", " << what << ": " << d;
  }
}

}  // namespace softfold_test
