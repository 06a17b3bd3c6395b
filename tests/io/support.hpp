// What the tests of io/ share: a folder that vanishes, whole files as strings, and a check of refusals.
#pragma once

#include "softfold/error.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

namespace softfold_test {

/// An empty folder for one test.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "softfold-io-XXXXXX") {
    std::string name = path_.string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

inline std::string data_file(const std::string& name) { return std::string(SOFTFOLD_TEST_DATA) + "/io/" + name; }

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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
