// topk: the library's values and indices, in blocks of any size.
#include "cli/support.hpp"

namespace softfold_test {
namespace {

TEST_F(CommandTest, TopkHasTheLibrarysBitsInBlocksOfAnySize) {
  using softfold::View;
  constexpr std::int64_t rows = 3001, n = 4000, k = 6;
  const Shape shape{rows, n}, few{rows, k};
  const auto x = random_elements(DType::float32, rows * n, 2);
  write_array(at("x.npy"), DType::float32, shape, x);
  std::vector<float> values(rows * k), p(rows * k);
  std::vector<std::int64_t> indices(rows * k);
  softfold::TopkOptions o;
  o.probabilities = View(p.data(), DType::float32, few);
  softfold::topk(View(x.data(), DType::float32, shape), View(values.data(), DType::float32, few),
                 View(indices.data(), DType::int64, few), o);
  const auto expect_file = [&](const char* name, const auto& expected) {
    const auto bytes = std::as_bytes(std::span(expected));
    EXPECT_EQ(elements_of(softfold::io::open_array(at(name))), std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  for (const std::string memory : {"32M", "1G"}) {
    expect_ok({"topk", "@x.npy", "@v.npy", "@i.npy", "-k", "6", "--memory", memory});
    expect_file("v.npy", values);
    expect_file("i.npy", indices);
    expect_ok({"topk", "@x.npy", "@p.npy", "@i.npy", "-k", "6", "--probabilities", "--memory", memory});
    expect_file("p.npy", p);
  }
  const auto told = run({"topk", "@x.npy", "@v.npy", "@i.npy", "-k", "6"}).err;
  EXPECT_EQ(told.find("bfloat16"), std::string::npos) << told;
  write_array(at("b.npy"), DType::bfloat16, few, random_elements(DType::bfloat16, rows * k, 2));
  EXPECT_NE(run({"topk", "@b.npy", "@v.npy", "@i.npy", "-k", "2", "--as", "bfloat16"}).err.find("bfloat16"),
            std::string::npos);
  write_header("e.npy", "5, 0");
  expect_refused(Code::option, "try: -k 0", {"topk", "@e.npy", "@v.npy", "@i.npy"});
  for (const std::string name : {"@x.npy", "@e.npy"}) {
    expect_ok({"topk", name, "@v.npy", "@i.npy", "-k", "0"});
    EXPECT_EQ(shape_of(softfold::io::open_array(at("i.npy"))), (Shape{name == "@x.npy" ? rows : 5, 0}));
  }
  write_header("many.npy", "1099511627776, 0");  // none of them is worth a step
  expect_ok({"topk", "@many.npy", "@v.npy", "@i.npy", "-k", "0"});
  expect_refused(Code::option, "0 .. 4000", {"topk", "@x.npy", "@v.npy", "@i.npy", "-k", "4001"});
}

}  // namespace
}  // namespace softfold_test
