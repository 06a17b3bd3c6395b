// The rows that every way of computing is held to the contract on. A Compute is a struct with
//   template <class S> static Results run(std::span<const S> x, double scale).
#pragma once

#include "oracle/contract.hpp"
#include "support/rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace softfold_test::oracle {

/// What elements are stored as.
using Storages = testing::Types<float, double, softfold::fold::Float16, softfold::fold::BFloat16>;

template <class S>
constexpr const char* storage_name() {
  if constexpr (std::is_same_v<S, double>) return "float64";
  if constexpr (std::is_same_v<S, float>) return "float32";
  if constexpr (std::is_same_v<S, softfold::fold::Float16>) return "float16";
  return "bfloat16";
}

template <class S>
void print_worst(const char* what, const Worst& w) {
  std::printf("  %-9s %-28s at most %5.1f%% of its bound (%s)\n", storage_name<S>(), what, 100 * w.of_bound,
              w.where.c_str());
}

/// A row as the oracles take it.
template <class S>
std::vector<double> in_double(const std::vector<S>& x) {
  std::vector<double> wide(x.size());
  std::transform(x.begin(), x.end(), wide.begin(), [](S v) { return static_cast<double>(softfold::fold::widen(v)); });
  return wide;
}

/// float64 results come closest to what the long double functions resolve: short rows are held against MPFR.
template <class S>
Exact exact_row(const std::vector<S>& x, double scale) {
  const bool exact = sizeof(S) == 8 && x.size() <= 2100;
  return exact ? in_mpfr(in_double(x), scale) : in_long_double(in_double(x), scale);
}

inline std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (int k = 0; k < static_cast<int>(Kind::count); ++k) kinds.push_back(static_cast<Kind>(k));
  return kinds;
}

/// check(kind, n, scale, name) of every combination.
template <class S, class Check>
void for_rows(const std::vector<Kind>& kinds, const std::vector<std::int64_t>& lengths,
              const std::vector<double>& scales, const Check& check) {
  for (const Kind kind : kinds)
    for (const std::int64_t n : lengths)
      for (const double scale : scales) {
        // The contract is for numbers: scale * x must be one.
        if (sizeof(S) == 8 && kind == Kind::huge && std::abs(scale) > 1) continue;
        check(kind, n, scale,
              std::string(name_of(kind)) + " n=" + std::to_string(n) + " scale=" + std::to_string(scale));
      }
}

template <class Compute, class S>
void check_row(Contract<S>& contract, const std::vector<S>& x, double scale, const std::string& at) {
  contract.check(Compute::template run<S>(x, scale), exact_row(x, scale), at);
}

template <class Compute, class S>
void check_kinds(Contract<S>& contract, const std::vector<std::int64_t>& lengths, const std::vector<double>& scales,
                 const std::vector<Kind>& kinds) {
  for_rows<S>(kinds, lengths, scales, [&](Kind kind, std::int64_t n, double scale, const std::string& at) {
    check_row<Compute, S>(contract, make_row<S>(kind, n), scale, at);
  });
}

template <class Compute, class S>
void check_short_rows() {
  Contract<S> contract;
  check_kinds<Compute, S>(contract, {0, 1, 2, 3, 7, 31, 127, 1021, 1023, 1024, 1025, 2047, 2048, 2049}, {1.},
                          all_kinds());
  check_kinds<Compute, S>(contract, {1, 5, 1021, 2050}, {0.08838834764831845, 3.7, -1., softfold::fold::kLn2, 0.},
                          all_kinds());
  contract.measured.print(storage_name<S>());
}

/// Scales whose product with log2(e) is subnormal: c's own error moves every score, by up to 2^-21 (float64: 2^-50).
template <class Compute, class S>
void check_faint_scales() {
  Contract<S> contract;
  contract.wider = 8;
  const std::vector<double> narrow{1e-60, 1e-42, -1e-42, 5e-39}, wide{5e-324, 1e-310, -1e-310, 1.2e-308};
  check_kinds<Compute, S>(contract, {1, 2, 33, 1025}, sizeof(S) == 8 ? wide : narrow, all_kinds());
  check_kinds<Compute, S>(contract, {20000}, sizeof(S) == 8 ? wide : narrow, {Kind::equal, Kind::huge});
  contract.measured.print(storage_name<S>());
}

template <class Compute, class S>
void check_medium_rows() {
  Contract<S> contract;
  check_kinds<Compute, S>(contract, {4095, 8191, 50257, 65537}, {1.}, all_kinds());
  contract.measured.print(storage_name<S>());
}

/// Elements of 16 bits have few values, and their sums are those of float32.
template <class S>
inline constexpr std::int64_t huge = std::int64_t{1} << (sizeof(S) == 2 ? 18 : 20);

template <class Compute, class S>
void check_huge_rows(std::int64_t n) {
  Contract<S> contract;
  check_kinds<Compute, S>(contract, {n - 1, n, n + 1}, {1.}, {Kind::gaussian, Kind::tiny});
  check_kinds<Compute, S>(contract, {n}, {1.}, {Kind::ascending, Kind::equal, Kind::wide, Kind::faint});
  contract.measured.print(storage_name<S>());
}

}  // namespace softfold_test::oracle
