// What the tests of io/ share: their data, and a check of refusals.
#pragma once

#include "softfold/error.hpp"
#include "support/files.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

namespace softfold_test {

inline std::string data_file(const std::string& name) { return std::string(SOFTFOLD_TEST_DATA) + "/io/" + name; }

inline void write_contents(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::span<const std::byte> bytes_of_text(const std::string& text) { return std::as_bytes(std::span(text)); }

/// Runs `call`, which must throw Error{code} whose message holds `part`.
template <class Call>
void expect_error(softfold::Code code, const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected a message with: " << part;
  } catch (const softfold::Error& error) {
    EXPECT_EQ(error.code, code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks: " << part;
    EXPECT_FALSE(error.got.empty());
    EXPECT_FALSE(error.allowed.empty());
  }
}

}  // namespace softfold_test
