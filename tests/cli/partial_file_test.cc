// The format of partial files: what is written is read back bit for bit, and no lie is taken.
#include "softfold/io/partial_file.hpp"

#include "support/bits.hpp"
#include "support/files.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cfenv>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace softfold_test {
namespace {

using namespace softfold;

/// What a partial file holds.
struct Partials {
  io::PartialSpan span;
  io::PartialRows rows;
};

template <class T>
Partials make(std::int64_t offset, std::int64_t length, int rows, double scale = 1, std::int64_t of = -1) {
  std::vector<Partial<T>> all;
  Random random(static_cast<std::uint64_t>(length));
  for (int r = 0; r < rows; ++r) {
    std::vector<T> x(static_cast<std::size_t>(length));
    for (T& v : x) v = static_cast<T>(random.uniform(-20, 20));
    all.emplace_back(scale, offset).append(x);
  }
  return {{fold::Real<T>::kDigits, scale, offset, length, rows, of}, all};
}

/// Rows [first, first + count), as a file's.
Partials some(const Partials& all, std::int64_t first, std::int64_t count) {
  Partials few = all;
  few.span.rows = count;
  std::visit(
      [&](auto& rows) {
        rows = std::remove_cvref_t<decltype(rows)>(rows.begin() + first, rows.begin() + first + count);
      },
      few.rows);
  return few;
}

class PartialFile : public ::testing::Test {
 protected:
  /// The bytes of the file that is written of them.
  std::vector<std::byte> format(const Partials& all) const {
    io::PartialOutput output(written_, all.span, {});
    output.write(all.rows);
    output.commit();
    return bytes_of_file(written_);
  }
  /// What a file of these bytes holds: passed over first, then kept, in blocks of two rows.
  Partials parse(std::span<const std::byte> bytes) const {
    constexpr std::int64_t block = 2;
    put(bytes);
    const io::InputFile file(given_);
    io::PartialReader reader(file);
    for (io::PartialReader checked = reader; checked.left() > 0;) checked.check(file, block);
    Partials all{reader.span(), reader.read(file, block)};
    while (reader.left() > 0) {
      const io::PartialRows next = reader.read(file, block);
      std::visit(
          [&](auto& rows) {
            const auto& more = std::get<std::remove_cvref_t<decltype(rows)>>(next);
            rows.insert(rows.end(), more.begin(), more.end());
          },
          all.rows);
    }
    return all;
  }
  void put(std::span<const std::byte> bytes) const {
    std::ofstream(given_, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  }
  static std::vector<std::byte> bytes_of_file(const std::string& path) {
    const io::InputFile file(path);
    std::vector<std::byte> bytes(file.size());
    file.read(0, bytes);
    return bytes;
  }

  const TemporaryFolder folder_;
  const std::string given_ = folder_ / "given.part", written_ = folder_ / "written.part";
};

TEST_F(PartialFile, ReadsBackWhatItWrote) {
  for (const std::int64_t offset : {0, 1, 1023, 1024, 3000, 4096}) {
    for (const std::int64_t length : {0, 1, 500, 1024, 1025, 5000, 20000}) {
      const auto bytes = format(make<float>(offset, length, 2, 0.25, offset + length));
      const auto wide = format(make<double>(offset, length, 3));
      EXPECT_EQ(format(parse(bytes)), bytes);
      EXPECT_EQ(format(parse(wide)), wide);
      const auto span = parse(bytes).span;
      EXPECT_EQ(span.offset, offset);
      EXPECT_EQ(span.length, length);
      EXPECT_EQ(span.rows, 2);
      EXPECT_EQ(span.row_length, offset + length);
      EXPECT_EQ(span.scale, 0.25);
    }
  }
}

TEST_F(PartialFile, JoinsToTheSameBitsInAnyEnvironmentOfTheCallers) {
  // A scale whose product with log2(e) is rounded: to other numbers in other directions.
  const auto b = format(make<double>(1700, 4000, 2, 1. / 3));
  const auto a = format(make<double>(0, 1700, 2, 1. / 3));
  const auto join = [&] {
    Partials parts[] = {parse(b), parse(a)};
    const io::JoinOrder order =
        io::order_of_join(std::vector<io::NamedSpan>{{"b", parts[0].span}, {"a", parts[1].span}});
    EXPECT_EQ(order.order, (std::vector<std::size_t>{1, 0}));
    io::join_rows(parts[1].rows, parts[0].rows);
    return format({order.joined, parts[1].rows});
  };
  const auto want = join();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const auto got = join();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(got, want) << mode;
  }
}

TEST_F(PartialFile, KeepsSpecialRows) {
  const float infinity = fold::infinity<float>();
  for (const float special : {infinity, -infinity, fold::canonical_nan<float>(), -0.F, fold::largest<float>()}) {
    Partial<float> p(1, 100);
    p.append(std::vector<float>(5000, special));
    const auto bytes = format({{24, 1, 100, 5000, 1, -1}, std::vector{p}});
    const auto back = parse(bytes);
    const auto& row = std::get<0>(back.rows)[0];
    EXPECT_TRUE(same(row.state(), p.state()));
    EXPECT_EQ(format(back), bytes);
  }
}

TEST_F(PartialFile, EveryDamagedByteAndEveryTruncationIsRefused) {
  const auto bytes = format(make<float>(1000, 3000, 1));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_THROW(parse(damaged), Error) << i;
  }
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_THROW(parse(std::span(bytes).first(n)), Error);
  auto longer = bytes;
  longer.push_back({});
  EXPECT_THROW(parse(longer), Error);
}

/// Writes `value` at `at` and makes the checksums right again: a lie, not damage.
template <class Value>
std::vector<std::byte> lie(std::vector<std::byte> bytes, std::size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  for (const std::size_t end : {std::size_t{64}, bytes.size() - 8}) {
    Hash hash;
    hash.bytes(bytes.data(), end);
    const std::uint64_t sum = hash.value();
    std::memcpy(bytes.data() + end, &sum, 8);
  }
  return bytes;
}

TEST_F(PartialFile, LiesAreRefused) {
  // 64 bytes of head, 8 of checksum; one node: m at 72, d at 80; no raw numbers.
  const auto bytes = format(make<float>(0, 1024, 1));
  ASSERT_EQ(bytes.size(), 72u + 12 + 8);
  const auto refused = [&](Code code, std::size_t at, auto value) {
    try {
      parse(lie(bytes, at, value));
      ADD_FAILURE() << "taken: " << value << " at " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.code, code) << error.what();
    }
  };
  EXPECT_NO_THROW(parse(lie(bytes, 24, 2.)));
  refused(Code::file, 8, std::uint32_t{2});        // format
  refused(Code::state, 12, std::uint32_t{99});     // bits version
  refused(Code::file, 16, std::uint32_t{53});      // digits: the size does not fit
  refused(Code::file, 20, std::uint32_t{512});     // chunk
  refused(Code::file, 24, std::nan(""));           // scale
  refused(Code::file, 24, 1e300);                  // scale
  refused(Code::file, 24, 1e-42);                  // scale
  refused(Code::file, 32, std::int64_t{-1});       // offset
  refused(Code::file, 40, std::int64_t{1} << 60);  // length
  refused(Code::file, 48, std::int64_t{0});        // rows
  refused(Code::file, 48, std::int64_t{1} << 60);  // rows
  refused(Code::file, 56, std::int64_t{1000});     // row length
  refused(Code::file, 72, 0.5);                    // m is an integer
  refused(Code::file, 72, std::nan(""));           // m
  refused(Code::file, 72, INFINITY);               // m, with a d that is neither 1 nor NaN
  refused(Code::file, 72, 1e300);                  // m beyond the largest float32's
  refused(Code::file, 72, -0x1p129);               // m
  refused(Code::file, 80, 0.F);                    // d, with a finite m
  refused(Code::file, 80, std::nanf(""));          // d, with a finite m
  refused(Code::file, 80, 0.5F);                   // d below what any row has
  refused(Code::file, 80, 5000.F);                 // d above
  refused(Code::file, 80, -1.F);                   // d
}

TEST_F(PartialFile, ALargerFileThanItsHeadSaysIsRefusedUnread) {
  put(format(make<float>(0, 1024, 1)));
  std::filesystem::resize_file(given_, std::uintmax_t{1} << 37);  // far more than its head says
  try {
    io::PartialReader{io::InputFile(given_)};
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Code::file) << error.what();
  }
}

TEST_F(PartialFile, BlocksOfRowsAreTheWholeFile) {
  const Partials all = make<float>(1000, 3000, 7, 0.25, 5000);
  const auto bytes = format(all);
  for (const std::int64_t block : {1, 3, 7, 100}) {
    io::PartialOutput output(written_, all.span, {});
    for (std::int64_t row = 0; row < 7; row += block) output.write(some(all, row, std::min(block, 7 - row)).rows);
    output.commit();
    EXPECT_EQ(bytes_of_file(written_), bytes) << block;
    put(bytes);
    const io::InputFile file(given_);
    io::PartialReader reader(file), checked = reader;
    EXPECT_EQ(reader.span().row_length, 5000);
    for (std::int64_t row = 0; row < 7; row += block) {
      const Partials few = some(all, row, std::min(block, 7 - row));
      EXPECT_EQ(format({few.span, reader.read(file, block)}), format(few));
      checked.check(file, block);
      EXPECT_EQ(checked.left(), 7 - row - few.span.rows);
    }
  }
}

TEST_F(PartialFile, BlocksThatAreNotTheSpansRowsAreRefused) {
  const Partials all = make<float>(1000, 3000, 2);
  io::PartialOutput output(written_, all.span, {});
  EXPECT_THROW(output.write(make<float>(1000, 2999, 2).rows), Error);
  EXPECT_THROW(output.write(make<double>(1000, 3000, 2).rows), Error);
  EXPECT_THROW(output.commit(), Error);  // no row was written
  output.write(all.rows);
  EXPECT_THROW(output.write(some(all, 0, 1).rows), Error);
}

TEST_F(PartialFile, ARewrittenFileIsNotReadOn) {
  put(format(make<float>(0, 1500, 4)));
  io::PartialReader reader{io::InputFile(given_)};
  reader.read(io::InputFile(given_), 2);
  put(format(make<float>(0, 1500, 4, 2)));
  EXPECT_THROW(reader.read(io::InputFile(given_), 2), Error);
  std::filesystem::resize_file(given_, 100);
  try {
    reader.read(io::InputFile(given_), 2);
    ADD_FAILURE() << "read on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Code::file);
    EXPECT_EQ(error.got, "'" + given_ + "', which has 100 bytes");  // named once
  }
}

TEST_F(PartialFile, NoRowsIsRefused) { EXPECT_THROW(format(some(make<float>(0, 5, 1), 0, 0)), Error); }

}  // namespace
}  // namespace softfold_test
