// A refusal: the code, and words that its parts must hold. Nothing may have been written.
#pragma once

#include "backends/matrix.hpp"

#include <gtest/gtest.h>

#include <string>

namespace softfold_test {

using softfold::Code;

/// Words of got, allowed and fix; "" asks for nothing (got and allowed are never empty).
struct Words {
  std::string got = {}, allowed = {}, fix = {};
};

template <class F>
void expect_refused(const std::string& what, Code code, const Words& words, F&& f) {
  try {
    f();
    ADD_FAILURE() << what << ": not refused";
  } catch (const softfold::Error& e) {
    EXPECT_EQ(static_cast<int>(e.code), static_cast<int>(code)) << what << ": " << e.what();
    EXPECT_NE(e.got.find(words.got), std::string::npos) << what << ": got \"" << e.got << "\" lacks " << words.got;
    EXPECT_NE(e.allowed.find(words.allowed), std::string::npos)
        << what << ": allowed \"" << e.allowed << "\" lacks " << words.allowed;
    EXPECT_NE(e.fix.find(words.fix), std::string::npos) << what << ": fix \"" << e.fix << "\" lacks " << words.fix;
    EXPECT_FALSE(e.got.empty() || e.allowed.empty()) << what << ": " << e.what();
    EXPECT_NE(std::string(e.what()).find(e.got), std::string::npos) << what;
  }
}

/// A valid problem, its views, and a check that a spoilt copy of them is refused before anything is written.
class Spoilt {
 public:
  explicit Spoilt(Problem p) : problem_(std::move(p)), good_(bind(problem_)) {
    plan_of(good_, problem_.op, problem_.is_merge());  // throws unless the problem itself is fine
  }
  explicit Spoilt(const RowCase& c) : Spoilt(make_problem(c)) {}

  Problem& problem() { return problem_; }
  const Bound& good() const { return good_; }

  template <class Spoil>
  void expect(const std::string& what, Code code, const Words& words, Spoil&& spoil) {
    Bound bad = good_;
    spoil(bad);
    const auto before = memory();
    expect_refused(std::string(softfold::name_of(problem_.op)) + ", " + what, code, words,
                   [&] { plan_of(bad, problem_.op, problem_.is_merge()).run(); });
    EXPECT_EQ(memory(), before) << what << ": something was written";
  }

 private:
  std::vector<std::vector<unsigned char>> memory() {
    std::vector<std::vector<unsigned char>> all;
    for (Array* t : problem_.operands()) all.push_back(t->bytes());
    return all;
  }
  Problem problem_;
  Bound good_;
};

}  // namespace softfold_test
