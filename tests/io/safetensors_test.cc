// .safetensors files: what the safetensors package wrote is read, what is written it reads, and lies are refused.
#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"
#include "softfold/io/nearest.hpp"

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

/// A .safetensors file's text; the length is that of `json` unless told.
std::string safetensors(const std::string& json, const std::string& data = "", std::int64_t length = -1) {
  std::string text;
  append(text, length >= 0 ? length : static_cast<std::int64_t>(json.size()));
  return text + json + data;
}

io::SafetensorsHeader parse(const std::string& text) {
  return io::parse_safetensors_header(bytes_of_text(text), text.size());
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(SafetensorsRead, EveryDtypeAsThePackageWroteIt) {
  for (const DType dtype : kAllDTypes) {
    const auto array = io::open_array(data_file("many.safetensors"), "x." + std::string(name_of(dtype)));
    EXPECT_EQ(array.dtype(), dtype);
    EXPECT_EQ(shape_of(array), (Shape{3, 5, 7}));
    EXPECT_EQ(all_bytes(array), expected_bytes(dtype, 105)) << name_of(dtype);
  }
  EXPECT_EQ(all_bytes(io::open_array(data_file("many.safetensors"), "scalar")), expected_bytes(DType::float64, 1));
  EXPECT_EQ(shape_of(io::open_array(data_file("many.safetensors"), "empty")), (Shape{2, 0, 5}));
}

TEST(SafetensorsRead, TheOnlyTensorNeedsNoName) {
  const auto array = io::open_array(data_file("one.safetensors"));
  EXPECT_EQ(all_bytes(array), expected_bytes(DType::float32, 105));
}

TEST(SafetensorsRead, ListsTensorsAndMetadata) {
  const auto one = io::list_tensors(data_file("one.safetensors"));
  EXPECT_EQ(one.metadata, (std::map<std::string, std::string>{{"made_by", "make.py"}}));
  EXPECT_EQ(one.tensors.size(), 1u);
  const auto many = io::list_tensors(data_file("many.safetensors"));
  EXPECT_EQ(many.tensors.size(), 10u);
  EXPECT_TRUE(many.metadata.empty());
  EXPECT_TRUE(io::list_tensors(data_file("none.safetensors")).tensors.empty());
}

TEST(SafetensorsRead, IsToldByItsFirstBytes) {
  const TemporaryFolder folder;
  std::filesystem::copy(data_file("one.safetensors"), folder / "x.model");
  EXPECT_EQ(io::open_array(folder / "x.model").bytes(), 420u);
  write_contents(folder / "x.pt", "PK\x03\x04 and so on");
  expect_error(Code::file, "a zip archive", [&] { io::open_array(folder / "x.pt"); });
  write_contents(folder / "x.txt", "1 2 3 4 5 6 7");
  expect_error(Code::file, "neither an .npy nor a .safetensors", [&] { io::open_array(folder / "x.txt"); });
}

TEST(SafetensorsRead, DtypesOfOthersDoNoHarmUntilOpened) {
  const auto header =
      parse(safetensors("{" + tensor("a", "F4", "[3]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[2,4]") + "," +
                            tensor("c", "F32", "[1]", "[4,8]") + "}",
                        "01234567"));
  EXPECT_EQ(io::find_tensor(header, "c").bytes, 4u);
  expect_error(Code::dtype, "'a' of dtype 'F4'", [&] { io::find_tensor(header, "a"); });
  expect_error(Code::dtype, "'b' of dtype 'U8'", [&] { io::find_tensor(header, "b"); });
  expect_error(Code::dtype, "float32 opened as bfloat16", [&] { io::find_tensor(header, "c", DType::bfloat16); });
}

TEST(SafetensorsRefuse, ANameThatIsNotThere) {
  const auto open = [](const char* file, const char* name) { io::open_array(data_file(file), name); };
  expect_error(Code::option, "the name 'x.flaot32'; allowed: 'x.int64', 'scalar'",
               [&] { open("many.safetensors", "x.flaot32"); });
  expect_error(Code::option, "try: 'x.float32'", [&] { open("many.safetensors", "x.float23"); });
  expect_error(Code::option, "... (10 in all)", [&] { open("many.safetensors", "nothing like it"); });
  expect_error(Code::option, "no name for a tensor", [&] { open("many.safetensors", ""); });
  expect_error(Code::option, "without tensors", [&] { open("none.safetensors", ""); });
  expect_error(Code::option, "for an .npy file", [&] { open("float32.npy", "logits"); });
}

TEST(SafetensorsRefuse, NoNameAmongSeveral) {
  const auto header = parse(safetensors(
      "{" + tensor("", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[4,8]") + "}", "01234567"));
  expect_error(Code::option, "try: 'b'", [&] { io::find_tensor(header, ""); });
  EXPECT_EQ(io::find_tensor(header, "b").bytes, 4u);
}

TEST(SafetensorsRefuse, TooManyAxes) {
  const auto header = parse(safetensors("{" + tensor("a", "BOOL", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", "0"));
  expect_error(Code::shape, "9 axes", [&] { io::find_tensor(header, "a"); });
}

TEST(SafetensorsRefuse, AHeaderCutShort) {
  const std::string whole = safetensors("{" + tensor("a", "F32", "[1]", "[0,4]") + "}", "0123");
  EXPECT_EQ(parse(whole).tensors.size(), 1u);
  for (std::size_t size = 0; size + 4 < whole.size(); ++size)
    expect_error(Code::file, "ends inside its header", [&] { parse(whole.substr(0, size)); });
  expect_error(Code::file, "said to have 100000001 bytes", [] { parse(safetensors("{}", "", 100'000'001)); });
  // A length of 2^64 - 1: a careless sum with the eight bytes before it is small.
  expect_error(Code::file, "said to have 18446744073709551615", [] { parse(std::string(8, '\xff') + "{}"); });
}

TEST(SafetensorsRefuse, DataThatTheHeaderBelies) {
  const auto refused = [](const std::string& part, const std::string& tensors, std::size_t bytes) {
    expect_error(Code::file, part, [&] { parse(safetensors("{" + tensors + "}", std::string(bytes, 'x'))); });
  };
  refused("3 bytes of data where its header says 4", tensor("a", "F32", "[1]", "[0,4]"), 3);
  refused("5 bytes of data where its header says 4", tensor("a", "F32", "[1]", "[0,4]"), 5);
  refused("1 bytes of data where its header says 0", "", 1);
  refused("'F32[2]' in 4 bytes", tensor("a", "F32", "[2]", "[0,4]"), 4);
  refused("'U8[2]' in 4 bytes", tensor("a", "U8", "[2]", "[0,4]"), 4);
  refused("other than a beginning and an end", tensor("a", "F32", "[1]", "[4,0]"), 4);
  refused("begins at byte 4 of the data; the one before it ends at 0", tensor("a", "F32", "[1]", "[4,8]"), 8);
  refused("begins at byte 2 of the data; the one before it ends at 4",
          tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[2,6]"), 6);
  refused("begins at byte 5 of the data; the one before it ends at 4",
          tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[5,9]"), 9);
  refused("the tensor 'a' twice", tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("a", "F32", "[1]", "[4,8]"), 8);
  // Products and sums that wrap to what is there.
  refused("in 0 bytes", tensor("a", "F32", "[4611686018427387904,4]", "[0,0]"), 0);
  refused("in 0 bytes", tensor("a", "F32", "[0,4611686018427387904,4]", "[0,0]"), 0);
  refused("where its header says 18446744073709551615", tensor("a", "F4", "[]", "[0,18446744073709551615]"), 0);
  refused("begins at byte 1",
          tensor("a", "F4", "[]", "[0,18446744073709551615]") + "," + tensor("b", "F4", "[]", "[1,2]"), 1);
}

TEST(SafetensorsRefuse, AHeaderThatIsNone) {
  const std::string nested = "{\"a\":" + std::string(100'000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a JSON object"},
      {" {}", "not a JSON object"},
      {"[]", "not a JSON object"},
      {std::string("{}\0", 3), "not a JSON object"},
      {"{} {}", "not JSON at its byte 4"},
      {"{\"a\":1}", "the number 1 at 'a'"},
      {"{\"a\":null}", "null at 'a'"},
      {"{\"a\":true}", "a truth value at 'a'"},
      {"{\"a\":\"b\"}", "a string at 'a'"},
      {"{\"a\":{}}", "without all of dtype, shape and data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", "without all of"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "a key twice at 'dtype' of the tensor 'a'"},
      {"{\"a\":{\"strides\":[]}}", "an unknown key at 'strides'"},
      {"{\"a\":{\"shape\":5}}", "the number 5 at 'shape'"},
      {"{\"a\":{\"shape\":[-1]}}", "a negative number"},
      {"{\"a\":{\"shape\":[1.5]}}", "the number '1.5'"},
      {"{\"a\":{\"shape\":[9223372036854775808]}}", "the number 9223372036854775808"},
      {"{\"a\":{\"shape\":[18446744073709551616]}}", "the number '18446744073709551616'"},
      {"{\"a\":{\"shape\":[[1]]}}", "an array"},
      {"{\"a\":{\"shape\":{}}}", "an object"},
      {"{\"a\":{\"data_offsets\":[0]}}", "other than a beginning and an end"},
      {"{\"a\":{\"data_offsets\":[0,0,0]}}", "the number 0"},
      {"{\"__metadata__\":{\"a\":1}}", "the number 1"},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", "a key twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "'__metadata__' twice"},
      {"{\"a\xff\":{}}", "not JSON"},
      {nested, "an array at 'a'"}};
  for (const auto& one : cases) expect_error(Code::file, one.second, [&] { parse(safetensors(one.first)); });
}

TEST(SafetensorsWrite, OneTensorIsTheFileThatThePackageWrites) {
  const TemporaryFolder folder;
  const std::string bytes = expected_bytes(DType::float32, 105);
  const io::TensorSpec logits{"logits", DType::float32, {3, 5, 7}};
  auto output = io::create_safetensors(folder / "y.safetensors", {&logits, 1}, {{"made_by", "make.py"}});
  output.write(200, bytes_of_text(bytes).subspan(200));
  output.write(0, bytes_of_text(bytes).first(200));
  output.commit();
  EXPECT_EQ(contents(folder / "y.safetensors"), contents(data_file("one.safetensors")));
}

TEST(SafetensorsWrite, SeveralTensorsComeBackAligned) {
  const TemporaryFolder folder;
  std::vector<io::TensorSpec> specs{{"none", DType::float64, {0, 3}}};
  for (const DType dtype : kAllDTypes)
    specs.push_back({"x \"" + std::string(name_of(dtype)) + "\" \u00e9", dtype, {19}});
  const std::map<std::string, std::string> metadata{{"a", "b"}, {"line\nbreak", "\u2211"}};
  auto output = io::create_safetensors(folder / "y.safetensors", specs, metadata);
  for (std::size_t i = 0; i < specs.size(); ++i)
    output.write(0, bytes_of_text(expected_bytes(specs[i].dtype, i == 0 ? 0 : 19)), i);
  const std::string beyond(9, 'x');
  expect_error(Code::shape, "9 bytes written at byte 11", [&] { output.write(11, bytes_of_text(beyond), 5); });
  output.commit();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto array = io::open_array(folder / "y.safetensors", specs[i].name);
    EXPECT_EQ(array.offset(), output.array(i).offset);
    EXPECT_EQ(array.offset() % size_of(specs[i].dtype), 0u);
    EXPECT_EQ(shape_of(array), specs[i].shape);
    EXPECT_EQ(all_bytes(array), expected_bytes(specs[i].dtype, i == 0 ? 0 : 19));
  }
  EXPECT_EQ(io::list_tensors(folder / "y.safetensors").metadata, metadata);
}

TEST(SafetensorsWrite, RefusesBeforeAnyFileExists) {
  const TemporaryFolder folder;
  const auto create = [&](std::vector<io::TensorSpec> specs) {
    io::create_safetensors(folder / "y.safetensors", specs);
  };
  expect_error(Code::option, "called ''", [&] { create({{"", DType::float32, {1}}}); });
  expect_error(Code::option, "called '__metadata__'", [&] { create({{"__metadata__", DType::float32, {1}}}); });
  expect_error(Code::option, "two tensors called 'a'", [&] {
    create({{"a", DType::float32, {1}}, {"a", DType::float32, {1}}});
  });
  expect_error(Code::option, "not UTF-8", [&] { create({{"\xff", DType::float32, {1}}}); });
  expect_error(Code::shape, "9 axes", [&] { create({{"a", DType::float32, Shape(9, 1)}}); });
  expect_error(Code::shape, "[-1]", [&] { create({{"a", DType::float32, {-1}}}); });
  expect_error(Code::shape, "more than 2^63 - 1 bytes", [&] {
    create({{"a", DType::boolean, {INT64_MAX}}, {"b", DType::boolean, {1}}});
  });
  EXPECT_EQ(folder.entries(), 0);
}

TEST(CreateArray, TheEndingDecides) {
  const TemporaryFolder folder;
  for (const char* name : {"y.npy", "y.safetensors"}) {
    auto output = io::create_array(folder / name, {"y", DType::boolean, {3}});
    output.write(0, bytes_of_text(expected_bytes(DType::boolean, 3)));
    output.commit();
    EXPECT_EQ(all_bytes(io::open_array(folder / name)), expected_bytes(DType::boolean, 3));
  }
  expect_error(Code::option, "y.txt.npy", [&] { io::create_array(folder / "y.txt", {"y", DType::boolean, {3}}); });
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::string_view verbs[] = {"softmax", "log-softmax", "logsumexp", "state", "merge", "finish", "verify"};
  EXPECT_EQ(io::nearest("sofmax", verbs), "softmax");
  EXPECT_EQ(io::nearest("logsumexpp", verbs), "logsumexp");
  EXPECT_EQ(io::nearest("stat", verbs), "state");
  EXPECT_EQ(io::nearest("mereg", verbs), "merge");
  EXPECT_EQ(io::nearest("sumexp", verbs), "logsumexp");  // contained
  EXPECT_EQ(io::nearest("attention", verbs), "");
  EXPECT_EQ(io::nearest("", verbs), "");
  EXPECT_EQ(io::nearest("x", {}), "");
}

}  // namespace
