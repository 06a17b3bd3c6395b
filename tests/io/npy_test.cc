// .npy files: what NumPy wrote is read, what is written is what NumPy writes, and a header that lies is refused.
#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"

#include "support.hpp"
#include "values.hpp"

namespace {

using namespace softfold;
using namespace softfold_test;
using Shape = std::vector<std::int64_t>;

std::string all_bytes(const io::ArrayFile& array) {
  std::string bytes(array.bytes(), '\0');
  array.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Shape shape_of(const io::ArrayFile& array) { return {array.shape().begin(), array.shape().end()}; }

/// An .npy file's text: version 1 unless told, the length of `dict` unless told.
std::string npy(const std::string& dict, const std::string& data = "", char version = 1, long length = -1) {
  const auto n = static_cast<std::uint32_t>(length >= 0 ? length : static_cast<long>(dict.size()));
  std::string text = "\x93NUMPY";
  text += {version, '\0', static_cast<char>(n & 0xff), static_cast<char>(n >> 8 & 0xff)};
  if (version > 1) text += {static_cast<char>(n >> 16 & 0xff), static_cast<char>(n >> 24)};
  return text + dict + data;
}

io::ArrayHeader parse(const std::string& text, std::optional<DType> as = {}) {
  return io::parse_npy_header(bytes_of_text(text), text.size(), as);
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

TEST(NpyRead, EveryDtypeAsNumpyWroteIt) {
  for (const DType dtype : kAllDTypes) {
    const auto array = io::open_array(data_file(std::string(name_of(dtype)) + ".npy"), "", dtype);
    EXPECT_EQ(array.dtype(), dtype);
    EXPECT_EQ(shape_of(array), (Shape{3, 5, 7}));
    EXPECT_EQ(all_bytes(array), expected_bytes(dtype, 105)) << name_of(dtype);
  }
}

TEST(NpyRead, EveryShapeAndVersion) {
  const std::pair<const char*, Shape> files[] = {{"scalar.npy", {}},          {"vector.npy", {19}},
                                                 {"empty.npy", {2, 0, 5}},    {"rank8.npy", {1, 2, 1, 1, 3, 1, 1, 2}},
                                                 {"version2.npy", {3, 5, 7}}, {"version3.npy", {3, 5, 7}}};
  for (const auto& [name, shape] : files) {
    const auto array = io::open_array(data_file(name));
    EXPECT_EQ(shape_of(array), shape) << name;
    const auto count = static_cast<std::int64_t>(array.bytes() / size_of(array.dtype()));
    EXPECT_EQ(all_bytes(array), expected_bytes(array.dtype(), count)) << name;
  }
}

TEST(NpyRead, PartsOfTheData) {
  const auto array = io::open_array(data_file("float64.npy"));
  const std::string whole = expected_bytes(DType::float64, 105);
  std::string part(100, '\0');
  array.read(333, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, whole.substr(333, 100));
  array.read(array.bytes(), {});
  expect_error(Code::shape, "100 bytes from byte 741 on",
               [&] { array.read(741, std::as_writable_bytes(std::span(part))); });
  expect_error(Code::shape, "0 bytes from byte 841 on", [&] { array.read(841, {}); });
}

TEST(NpyRead, BeyondFourGigabytes) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.npy";
  const std::uint64_t bytes = (std::uint64_t{5} << 30) + 8;
  const Shape shape{static_cast<std::int64_t>(bytes / 8)};
  const std::string head = io::format_npy_header(DType::float64, shape);
  write_contents(path, head);
  std::filesystem::resize_file(path, head.size() + bytes - 4);  // a hole takes no space
  std::ofstream(path, std::ios::binary | std::ios::app) << "last";
  const auto array = io::open_array(path);
  EXPECT_EQ(shape_of(array), shape);
  std::string end(8, 'x');
  array.read(bytes - 8, std::as_writable_bytes(std::span(end)));
  EXPECT_EQ(end, std::string(4, '\0') + "last");
}

TEST(NpyRead, HeadersThatNumpyWouldReadToo) {
  const std::string four(4, 'x');
  EXPECT_EQ(parse(npy("{\"shape\":(1L,),\"fortran_order\":False,\"descr\":\"<f4\"}", four)).shape, Shape{1});
  EXPECT_EQ(parse(npy("\n { 'descr' :\t'<f4' , 'fortran_order' : True , 'shape' : ( 1 , 1 ) } \r\n", four)).shape,
            (Shape{1, 1}));
  const std::string padded = dict("<f4", "(1, 1)") + std::string(100'000, ' ') + "\n";
  EXPECT_EQ(parse(npy(padded, four, 2)).offset, 12 + padded.size());
  EXPECT_EQ(parse(npy(dict("<f4", "(0, 7)", "True"))).shape, (Shape{0, 7}));
}

TEST(NpyRead, Bfloat16OnlyWhenTold) {
  for (const char* descr : {"<V2", "|V2", "<u2"}) {
    const std::string text = npy(dict(descr, "(2,)"), "abcd");
    EXPECT_EQ(parse(text, DType::bfloat16).dtype, DType::bfloat16);
    expect_error(Code::dtype, "--as bfloat16", [&] { parse(text); });
    expect_error(Code::dtype, descr, [&] { parse(text, DType::float16); });
  }
  expect_error(Code::dtype, "float32 opened as bfloat16",
               [] { parse(npy(dict("<f4", "()"), "abcd"), DType::bfloat16); });
}

TEST(NpyRefuse, WhatNumpyWroteButIsNotTaken) {
  expect_error(Code::strides, "ascontiguousarray", [] { io::open_array(data_file("fortran.npy")); });
  expect_error(Code::dtype, "newbyteorder('<')", [] { io::open_array(data_file("big_endian.npy")); });
  expect_error(Code::dtype, "never loaded", [] { io::open_array(data_file("objects.npy")); });
  expect_error(Code::dtype, "structured", [] { io::open_array(data_file("structured.npy")); });
  expect_error(Code::dtype, "complex dtype '<c8'", [] { io::open_array(data_file("complex.npy")); });
  expect_error(Code::shape, "9 axes", [] { io::open_array(data_file("rank9.npy")); });
}

TEST(NpyRefuse, NotSuchAFile) {
  expect_error(Code::file, "does not begin as .npy files do", [] { parse(""); });
  expect_error(Code::file, "does not begin as .npy files do", [] { parse("\x93NUMP"); });
  expect_error(Code::file, "does not begin as .npy files do", [] { parse(std::string(200, 'x')); });
  expect_error(Code::file, "version 4.0", [] { parse(npy(dict("<f4", "()"), "abcd", 4)); });
  expect_error(Code::file, "version 0.0", [] { parse(npy(dict("<f4", "()"), "abcd", 0)); });
}

TEST(NpyRefuse, AHeaderCutShort) {
  const std::string whole = npy(dict("<f4", "()"), "abcd");
  for (std::size_t size = 6; size + 4 < whole.size(); ++size)
    expect_error(Code::file, "ends inside its header", [&] { parse(whole.substr(0, size)); });
  const std::string second = npy(dict("<f4", "()"), "abcd", 2);
  for (std::size_t size = 6; size + 4 < second.size(); ++size)
    expect_error(Code::file, "ends inside its header", [&] { parse(second.substr(0, size)); });
  expect_error(Code::file, "said to have 1048577 bytes", [] { parse(npy(dict("<f4", "()"), "", 2, (1 << 20) + 1)); });
  expect_error(Code::file, "said to have 4294967295 bytes", [] { parse(npy("", "", 3, 0xffffffffL)); });
}

TEST(NpyRefuse, DataThatTheHeaderBelies) {
  expect_error(Code::file, "cut short: 11 bytes of data where its header says 12",
               [] { parse(npy(dict("<f4", "(3,)"), std::string(11, 'x'))); });
  expect_error(Code::file, "with bytes after its data: 13 bytes of data where its header says 12",
               [] { parse(npy(dict("<f4", "(3,)"), std::string(13, 'x'))); });
  expect_error(Code::file, "larger than any file", [] { parse(npy(dict("<f8", "(1152921504606846976, 1)"))); });
  expect_error(Code::file, "larger than any file", [] { parse(npy(dict("<f4", "(0, 4294967296, 4294967296)"))); });
  expect_error(Code::file, "a size beyond 2^63 - 1", [] { parse(npy(dict("<f4", "(9223372036854775808,)"))); });
  expect_error(Code::file, "a negative size", [] { parse(npy(dict("<f4", "(-1, -1)"), "abcd")); });
}

TEST(NpyRefuse, ADictThatIsNone) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "cannot be read at ''"},
      {"{", "cannot be read"},
      {"{}", "without all of"},
      {"{'descr': '<f4', 'shape': (), }", "without all of"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (), }", "the key 'descr' twice"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}", "the unknown key 'x'"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "cannot be read at '0, 'shape'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", "cannot be read at '[1]}'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (01,)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,", "cannot be read at ''"},
      {"{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}", "cannot be read"},
      {"{'descr': '<f4, 'fortran_order: False, shape: (1,)}", "cannot be read"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "cannot be read at 'x'"},
      {"{'descr': None, 'fortran_order': False, 'shape': (1,)}", "cannot be read at 'None"}};
  for (const auto& one : cases) expect_error(Code::file, one.second, [&] { parse(npy(one.first, "abcd")); });
}

TEST(NpyRefuse, TextOfTheFileIsMadeFitForATerminal) {
  expect_error(Code::dtype, "'?[31m'", [] { parse(npy(dict("\x1b[31m", "()"))); });
  expect_error(Code::dtype, "xxx...'", [] { parse(npy(dict(std::string(5000, 'x'), "()"))); });
}

TEST(NpyWrite, TheBytesThatNumpyWrites) {
  const TemporaryFolder folder;
  const std::pair<std::string, Shape> files[] = {{"float32.npy", {3, 5, 7}},
                                                 {"float64.npy", {3, 5, 7}},
                                                 {"float16.npy", {3, 5, 7}},
                                                 {"bfloat16.npy", {3, 5, 7}},
                                                 {"bool.npy", {3, 5, 7}},
                                                 {"int32.npy", {3, 5, 7}},
                                                 {"int64.npy", {3, 5, 7}},
                                                 {"scalar.npy", {}},
                                                 {"vector.npy", {19}},
                                                 {"empty.npy", {2, 0, 5}},
                                                 {"rank8.npy", {1, 2, 1, 1, 3, 1, 1, 2}}};
  for (const auto& [name, shape] : files) {
    const std::optional<DType> as = name == "bfloat16.npy" ? std::optional(DType::bfloat16) : std::nullopt;
    const auto source = io::open_array(data_file(name), "", as);
    const std::string bytes = all_bytes(source);
    auto output = io::create_npy(folder / name, source.dtype(), shape);
    // In two blocks, the later one first.
    const auto half = bytes.size() / 2;
    output.write(half, bytes_of_text(bytes).subspan(half));
    output.write(0, bytes_of_text(bytes).first(half));
    output.commit();
    EXPECT_EQ(contents(folder / name), contents(data_file(name))) << name;
  }
}

TEST(NpyWrite, RefusesBeforeAnyFileExists) {
  const TemporaryFolder folder;
  const auto create = [&](Shape shape) { io::create_npy(folder / "y.npy", DType::float32, shape); };
  expect_error(Code::shape, "9 axes", [&] { create(Shape(9, 1)); });
  expect_error(Code::shape, "[3, -1]", [&] { create({3, -1}); });
  expect_error(Code::shape, "[4294967296, 4294967296]", [&] { create({4294967296, 4294967296}); });
  EXPECT_EQ(folder.entries(), 0);
}

TEST(NpyWrite, RefusesBytesBeyondTheArrayAndACommitWithBytesMissing) {
  const TemporaryFolder folder;
  auto output = io::create_npy(folder / "y.npy", DType::float32, Shape{3});
  const std::string twelve(12, 'x');
  expect_error(Code::shape, "12 bytes written at byte 1", [&] { output.write(1, bytes_of_text(twelve)); });
  output.write(0, bytes_of_text(twelve).first(11));
  expect_error(Code::internal, "a commit", [&] { output.commit(); });
  EXPECT_FALSE(std::filesystem::exists(folder / "y.npy"));
}

}  // namespace
