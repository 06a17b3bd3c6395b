// Refusals in the command's words: each says what to try, and names options, not the library's fields.
#include "cli/support.hpp"

#include <nlohmann/json.hpp>

namespace softfold_test {
namespace {

using softfold::io::TensorSpec;

class Wording : public CommandTest {
 protected:
  void SetUp() override {
    write_array(at("x.npy"), DType::float32, {4, 5}, random_elements(DType::float32, 20, 1));
    write_array(at("w.npy"), DType::float32, {7, 5}, random_elements(DType::float32, 35, 1));
    const std::vector<std::int64_t> targets(4, 1);
    write_array(at("t.npy"), DType::int64, {4}, std::as_bytes(std::span(targets)));
    write_array(at("q.npy"), DType::float32, {1, 2, 4, 5}, random_elements(DType::float32, 40, 1));
    write_array(at("five.npy"), DType::float32, {5}, random_elements(DType::float32, 5, 1));
  }
  /// A file of int64 under another name, said to be of another dtype; its data are cut to `bytes`.
  void write_as(const std::string& name, const std::string& of, const std::string& descr, int bytes = 32) const {
    std::string file = contents(at(of));
    file.replace(file.find("<i8"), 3, descr);
    std::ofstream(at(name), std::ios::binary) << file.substr(0, file.size() - 32 + static_cast<std::size_t>(bytes));
  }
  /// Refused, with something to try, and `part` in the message.
  void expect_try(Code code, const std::string& part, const Words& words) const {
    expect_refused(code, part, words);
    expect_refused(code, "try: ", words);
  }
};

TEST_F(Wording, EveryRefusalSaysWhatToTry) {
  const Words ce{"cross-entropy", "@x.npy", "@t.npy"}, linear{"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy"},
      attention{"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy"}, sample{"sample", "@x.npy", "@o.npy"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_try(Code::dtype, "int64", {"cross-entropy", "@x.npy", "@x.npy"});
  expect_try(Code::shape, "TARGETS of shape", {"cross-entropy", "@w.npy", "@t.npy"});
  expect_try(Code::option, "got --label-smoothing 1.1", with(ce, {"--label-smoothing", "1.1"}));
  expect_try(Code::option, "got --z-loss -1", with(ce, {"--z-loss", "-1"}));
  expect_try(Code::option, "got --softcap -1", with(linear, {"--softcap", "-1"}));
  expect_try(Code::shape, "X of shape", {"linear-cross-entropy", "@x.npy", "@q.npy", "@t.npy"});
  expect_try(Code::shape, "--bias of shape", with(linear, {"--bias", "@five.npy"}));
  expect_try(Code::shape, "--lengths", with(attention, {"--lengths", "5,13"}));
  expect_try(Code::data, "got --lengths[0] = 13", with(attention, {"--lengths", "13"}));
  expect_try(Code::shape, "--index", with(attention, {"--index", "0,5"}));
  expect_try(Code::dtype, "--mask", with(attention, {"--mask", "@five.npy"}));
  expect_try(Code::dtype, "try: leave out --dtype", with(attention, {"--dtype", "f16"}));
  expect_try(Code::option, "1e-50", with(attention, {"--softcap", "1e-50"}));
  expect_try(Code::option, "got --temperature -1", with(sample, {"--temperature", "-1"}));
  expect_try(Code::option, "got --top-p 1.5", with(sample, {"--top-p", "1.5"}));
  expect_try(Code::option, "got --top-p 1.0000001\n", with(sample, {"--top-p", "1.0000001"}));
  expect_try(Code::option, "got --min-p -1e-30\n", with(sample, {"--min-p", "-1e-30"}));
  expect_try(Code::option, "--top-logprobs 502",
             with(sample, {"--top-logprobs", "502", "--top-tokens", "@a.npy", "--top-lp", "@b.npy"}));
  expect_try(Code::shape, "axis", {"explain", "softmax", "4x5", "f32", "--axis", "5"});
  expect_try(Code::shape, "Q of shape", {"kl-divergence", "@x.npy", "@w.npy", "@o.npy"});
  expect_refused(Code::option, "try: --softcap 30\n", with(linear, {"--softcap", "-1"}));
  expect_refused(Code::option, "try: --top-p 0.9\n", with(sample, {"--top-p", "1.5"}));
  expect_try(Code::option, "--rows -1", {"bench", "softmax", "--n", "10", "--rows", "-1"});
}

TEST_F(Wording, ANumberThatIsTooLargeMeetsItsRange) {
  const std::string whole = "-9223372036854775808 .. 9223372036854775807", narrow = "-2147483648 .. 2147483647";
  expect_try(Code::option, whole, {"cross-entropy", "@x.npy", "@t.npy", "--ignore-index", "9223372036854775808"});
  for (const std::string seed : {"18446744073709551616", "-1"})
    expect_try(Code::option, "0 .. 18446744073709551615", {"sample", "@x.npy", "@o.npy", "--seed", seed});
  expect_ok({"sample", "@x.npy", "@o.npy", "--seed", "18446744073709551615"});
  expect_try(Code::option, narrow, {"softmax", "@x.npy", "@o.npy", "--axis", "2147483648"});
  expect_try(Code::option, "e+308", {"softmax", "@x.npy", "@o.npy", "--scale", "1e400"});
  expect_try(Code::option, "0, or a number of at least 5e-324", {"softmax", "@x.npy", "@o.npy", "--scale", "-1e-400"});
  expect_try(Code::option, "at least 32M", {"softmax", "@x.npy", "@o.npy", "--memory", "0"});
}

// Of an option with a range of its own no wider one is said, whatever type it is read into.
TEST_F(Wording, AnOptionsOwnRangeIsSaidOfAnyNumberOutsideIt) {
  for (const Words& words : {Words{"softmax", "@x.npy", "@o.npy"}, Words{"explain", "softmax", "4x5", "f32"},
                             Words{"bench", "softmax", "--n", "10"}}) {
    for (const std::string threads : {"-1", "4097", "2147483648", "99999999999", "-99999999999999999999"}) {
      Words all = words;
      all.insert(all.end(), {"--threads", threads});
      expect_refused(Code::option, "got --threads " + threads + "\n", all);
      expect_refused(Code::option, "allowed: a whole number, 0 .. 4096\n         try: --threads 0\n", all);
    }
  }
  const std::string from_0 = "allowed: a whole number, 0 .. 9223372036854775807\n", most = "99999999999999999999";
  for (const std::string number : {"-1", most.c_str()}) {
    expect_try(Code::option, from_0, {"topk", "@x.npy", "@v.npy", "@i.npy", "-k", number});
    expect_try(Code::option, from_0, {"sample", "@x.npy", "@o.npy", "--top-k", number});
    expect_try(Code::option, from_0, {"sample", "@x.npy", "@o.npy", "--top-logprobs", number});
    expect_try(Code::option, from_0, {"bench", "softmax", "--n", "10", "--rows", number});
    expect_try(Code::option, from_0, {"explain", "attention", "1x2x8x16", "f32", "--keys", number});
  }
  expect_try(Code::option, "1 .. 4096\n", {"bench", "ladder", "--op", "attention", "--heads", most});
  expect_try(Code::option, "1 .. 512\n", {"bench", "ladder", "--op", "attention", "--d", "0"});
  expect_try(Code::option, "--n 2000000 of", {"bench", "ladder", "--op", "attention", "--n", "2000000"});
  expect_try(Code::option, "-1 .. ", {"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--left", "-2"});
}

TEST_F(Wording, ATextThatIsNoNumberIsNotBelowTheRange) {
  for (const std::string option : {"--seed", "--offset"}) {
    for (const std::string text : {"abc", "-abc", "-inf", "-1.5", "-", "1.5", "-1e3"})
      expect_refused(Code::usage, "got the value '" + text + "' of " + option + "\n     allowed: a whole number\n",
                     {"sample", "@x.npy", "@o.npy", option, text});
    expect_refused(Code::option, "try: " + option + " 0\n", {"sample", "@x.npy", "@o.npy", option, "-01"});
    for (const std::string zero : {"-0", "-00"}) expect_ok({"sample", "@x.npy", "@o.npy", option, zero});
  }
}

TEST_F(Wording, AMissingFilesNeighbourIsSuggestedAsAFile) {
  for (const Words& words :
       {Words{"softmax", "@fiv.npy", "@o.npy"}, Words{"attention", "@q.npy", "@q.npy", "@fiv.npy", "@o.npy"},
        Words{"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--sink", "@fiv.npy"}})
    expect_refused(Code::file, "try: '" + at("five.npy") + "'\n", words);
  expect_refused(Code::option, "try: result.npy\n", {"softmax", "@x.npy", "-"});
}

// What is suggested is not refused in its turn.
TEST_F(Wording, TheNearestNumberThatIsAllowedIsSuggested) {
  expect_refused(Code::option, "try: --top-k 0\n", {"sample", "@x.npy", "@o.npy", "--top-k", "-1"});
  expect_refused(Code::option, "try: --top-logprobs 0\n", {"sample", "@x.npy", "@o.npy", "--top-logprobs", "-1"});
  expect_refused(Code::option, "try: --seed 0\n", {"sample", "@x.npy", "@o.npy", "--seed", "-1"});
  expect_refused(Code::option, "try: -k 0\n", {"topk", "@x.npy", "@v.npy", "@i.npy", "-k", "-1"});
  expect_refused(Code::option, "try: --rows 0\n", {"bench", "softmax", "--n", "10", "--rows", "-1"});
  expect_refused(Code::option, "try: --d 1\n", {"bench", "ladder", "--op", "attention", "--d", "0"});
  expect_refused(Code::option, "try: --left -1\n",
                 {"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--left", "-2"});
  expect_refused(Code::option, "1 .. 9223372036854775807\n         try: --kv-heads 1\n",
                 {"explain", "attention", "1x2x8x16", "f32", "--kv-heads", "0"});
  expect_refused(Code::shape, "try: is the layout right? --layout says",
                 {"explain", "attention", "1x4x8x16", "f32", "--kv-heads", "3"});
  const std::string beyond = "99999999999999999999";
  expect_refused(Code::option, "at most 2^53\n         try: leave out --row-length\n",
                 {"state", "@x.npy", "@x.part", "--row-length", beyond});
  for (const std::string& offset : {beyond, "-" + beyond})
    expect_refused(Code::option, "at most 2^53\n         try: --offset 0\n",
                   {"state", "@x.npy", "@x.part", "--offset", offset});
  for (const std::string scale : {"0", "-1", "nan", "inf", "-inf", "1e-400", "-1e-400", "1e400", "1e-40", "1e39"})
    expect_refused(Code::option,
                   "allowed: a positive number, 8.2e-39 .. 2.35e+38\n"
                   "         try: --scale 1, or --temperature 0 for the largest element\n",
                   {"sample", "@x.npy", "@o.npy", "--scale", scale});
  for (const std::string scale : {"8.2e-39", "2.35e38"}) expect_ok({"sample", "@x.npy", "@o.npy", "--scale", scale});
  expect_refused(Code::option, "got scale nan\n", {"topk", "@x.npy", "@v.npy", "@i.npy", "--scale", "nan"});
}

TEST_F(Wording, WhichFileToConvertIsSaid) {
  write_array(at("x64.npy"), DType::float64, {4, 5}, random_elements(DType::float64, 20, 1));
  write_array(at("b.npy"), DType::bfloat16, {4, 5}, random_elements(DType::bfloat16, 20, 1));
  const std::string widen = "try: '" + at("x.npy") + "' as float64: x.astype(numpy.float64) in NumPy\n";
  expect_refused(Code::dtype, widen, {"kl-divergence", "@x64.npy", "@x.npy", "@o.npy"});
  expect_refused(Code::dtype, widen, {"kl-divergence", "@x.npy", "@x64.npy", "@o.npy"});
  expect_refused(Code::dtype, "try: '" + at("x64.npy") + "' as float32: x.astype(numpy.float32) in NumPy\n",
                 {"kl-divergence", "@b.npy", "@x64.npy", "@o.npy", "--p-as", "bfloat16"});
  expect_ok({"kl-divergence", "@b.npy", "@x.npy", "@o.npy", "--p-as", "bfloat16"});
}

TEST_F(Wording, NamesOfElsewhereMeetTheOptionAndItsValue) {
  expect_refused(Code::option, "try: hugging-face\n", {"sample", "@x.npy", "@o.npy", "--order", "hf"});
  for (const char* verb : {"kldiv", "kl", "kl_div", "kl-div"})
    expect_refused(Code::usage, "try: kl-divergence\n", {verb, "@x.npy", "@x.npy", "@o.npy"});
  const auto topk = [&](const Words& more) {
    Words words{"topk", "@x.npy", "@v.npy", "@i.npy"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const Words& words : {topk({"-k=2"}), topk({"--top-k", "2"}), topk({"--top-k=2"}), topk({"--k", "2"})})
    expect_refused(Code::usage, "try: -k 2\n", words);
  expect_refused(Code::usage, "try: -k 1\n", topk({"--top-k"}));
  for (const Words& words : {Words{"kl-divergence", "@x.npy", "@x.npy", "@o.npy"}, Words{"entropy", "@x.npy", "@o.npy"},
                             Words{"softmax", "@x.npy", "@o.npy"}, Words{"cross-entropy", "@x.npy", "@t.npy"},
                             Words{"state", "@x.npy", "@x.part"}}) {
    const auto with = [&](const char* temperature) {
      Words all = words;
      all.insert(all.end(), {"--temperature", temperature});
      return all;
    };
    expect_refused(Code::usage, "try: --scale 0.5\n", with("2"));
    for (const char* none : {"0", "-1", "nan", "inf", "x"})
      expect_refused(Code::usage, "try: --scale 0.5 for a temperature of 2", with(none));
  }
  expect_refused(Code::usage, "try: --scale 4 --probabilities\n", topk({"--temperature=0.25"}));
}

TEST_F(Wording, RaggedRowsAreNotAFiles) {
  for (const char* option : {"--offsets", "--ofsets", "--lengths", "--lenght"})
    expect_try(Code::usage, "a file's rows have one length", {"softmax", "@x.npy", "@o.npy", option, "0,2"});
  expect_try(Code::usage, "take a mask", {"entropy", "@x.npy", "@o.npy", "--masks", "@x.npy"});
  expect_try(Code::usage, "take a mask", {"softmax", "@x.npy", "@o.npy", "--mask", "@x.npy"});
}

TEST_F(Wording, AnOutputOfferedAsAnOptionMeetsTheUsage) {
  for (const Words& words :
       {Words{"entropy", "@x.npy"}, Words{"kl-divergence", "@x.npy", "@x.npy"},
        Words{"cross-entropy", "@x.npy", "@t.npy"}, Words{"topk", "@x.npy"}, Words{"sample", "@x.npy"}}) {
    for (const char* option : {"-o", "--out", "--output"}) {
      Words all = words;
      all.insert(all.end(), {option, "@o.npy"});
      expect_try(Code::usage, "softfold " + words[0] + " ", all);
      expect_try(Code::usage, "without option", all);
    }
  }
}

TEST_F(Wording, OfTheLastAxisNoOptionIsTheNearest) {
  const std::string fix = "try: numpy.moveaxis(x, axis, -1) in NumPy, or leave it out for the last axis\n";
  for (const std::string option : {"--axis", "--axis=0", "--axes", "--ax", "--dim"}) {
    expect_refused(Code::usage, fix, {"entropy", "@x.npy", "@o.npy", option, "7"});
    expect_refused(Code::usage, fix, {"kl-divergence", "@x.npy", "@x.npy", "@o.npy", option, "0"});
    expect_refused(Code::usage, fix, {"topk", "@x.npy", "@v.npy", "@i.npy", option, "0"});
    expect_refused(Code::usage, fix, {"sample", "@x.npy", "@o.npy", option, "-1"});
    expect_refused(Code::usage, fix, {"bench", "softmax", option, "1"});
    expect_refused(Code::usage, "try: leave it out, or numpy.moveaxis", {"hash", "@x.npy", option, "0"});
  }
  for (const char* option : {"--ax", "--dim"})
    expect_refused(Code::usage, "try: --axis\n", {"softmax", "@x.npy", "@o.npy", option, "1"});
  expect_refused(Code::usage, "try: --as\n", {"topk", "@x.npy", "@v.npy", "@i.npy", "--sa", "f32"});
  expect_refused(Code::shape, "try: --axis -1\n", {"softmax", "@x.npy", "@o.npy", "--axis", "7"});
  expect_refused(Code::shape, "try: --axis -2\n", {"softmax", "@x.npy", "@o.npy", "--axis", "-4"});
  expect_refused(Code::usage, "--op log-softmax\n", {"verify", "log-softmax", "@x.npy"});
}

TEST_F(Wording, AnOptionWithoutEffectIsRefused) {
  const Words topk{"topk", "@x.npy", "@v.npy", "@i.npy", "--scale", "2"};
  expect_refused(Code::option, "got --scale 2 without --probabilities\n", topk);
  expect_refused(Code::option, "try: --scale 2 --probabilities, or leave out --scale\n", topk);
  for (const std::string of : {"raw", "sampled"}) {
    const Words sample{"sample", "@x.npy", "@o.npy", "--of", of};
    expect_refused(Code::option, "got --of " + of + " without LP or --top-logprobs\n", sample);
    expect_refused(Code::option, "try: softfold sample IN TOKENS LP --of " + of + ", or leave out --of\n", sample);
    expect_ok({"sample", "@x.npy", "@o.npy", "@lp.npy", "--of", of});
    expect_ok({"sample", "@x.npy", "@o.npy", "--top-logprobs", "2", "--top-tokens", "@t2.npy", "--top-lp", "@p.npy",
               "--of", of});
  }
  expect_ok({"topk", "@x.npy", "@v.npy", "@i.npy", "--scale", "2", "--probabilities"});
}

TEST_F(Wording, AnEmptyValueIsNotNothing) {
  expect_try(Code::usage, "'' of --dtype", {"softmax", "@x.npy", "@o.npy", "--dtype", ""});
  expect_try(Code::usage, "got '' for OUT", {"softmax", "@x.npy", ""});
  expect_try(Code::usage, "leave out LP", {"sample", "@x.npy", "@o.npy", ""});
  EXPECT_FALSE(std::filesystem::exists(at("o.npy")));
}

TEST_F(Wording, AnOptionIsNoValueOfAnother) {
  for (const Words& words :
       {Words{"bench", "ladder", "--op", "--json"}, Words{"softmax", "@x.npy", "@o.npy", "--dtype", "--json"},
        Words{"merge", "@x.part", "-o", "--json"}}) {
    const std::string name = words[words.size() - 2];
    expect_try(Code::usage, "the option '--json' as the value of " + name, words);
    EXPECT_EQ(nlohmann::json::parse(run(words).out).at("error").at("name"), "usage");
  }
  expect_try(Code::option, "the rung '--json'", {"softmax", "@x.npy", "@o.npy", "--rung=--json"});
}

TEST_F(Wording, AShortOptionIsNoValueOfAnother) {
  expect_ok({"state", "@x.npy", "@x.part"});
  for (const std::string name : {"-o", "--output"}) {
    for (const std::string value : {"-o", "-h"}) {
      const std::string got = "the option '" + value + "' as the value of " + name;
      expect_try(Code::usage, got, {"merge", "@x.part", name, value});
    }
  }
  expect_try(Code::usage, "the option '-k' as the value of --tensor", {"topk", "@x.npy", "--tensor", "-k"});
  // What is meant, and what is no option of the verb.
  expect_try(Code::dtype, "the dtype '-h'", {"softmax", "@x.npy", "@o.npy", "--dtype=-h"});
  for (const std::string value : {"-", "-1", "-.5", "-k", "-dtype"})
    expect_try(Code::dtype, "the dtype '" + value + "'", {"softmax", "@x.npy", "@o.npy", "--dtype", value});
}

TEST_F(Wording, ARungThatAnOperationLacksMayBeLeftOut) {
  expect_try(Code::unsupported, "try: leave out --rung", {"logsumexp", "@x.npy", "@o.npy", "--rung", "naive"});
  expect_try(Code::unsupported, "try: leave out --rung", {"verify", "@x.npy", "--rung", "safe"});
  expect_try(Code::unsupported, "try: leave out --rung", {"explain", "topk", "4x5", "f32", "--rung", "fused"});
  expect_ok({"logsumexp", "@x.npy", "@o.npy", "--rung", "tiled"});
}

TEST_F(Wording, AFileWithoutTensorsIsNamedSo) {
  std::ofstream(at("none.safetensors"), std::ios::binary) << std::string("\2\0\0\0\0\0\0\0{}", 10);
  expect_try(Code::option, "a .safetensors file without tensors", {"softmax", "@none.safetensors", "@o.npy"});
}

TEST_F(Wording, TargetsAreIntegersAndNothingElseIsSuggested) {
  write_as("u.npy", "t.npy", "<u8");
  write_as("u2.npy", "t.npy", "<u2", 8);
  write_array(at("f.npy"), DType::float32, {4}, random_elements(DType::float32, 4, 1));
  const std::string header = R"({"t":{"dtype":"U64","shape":[4],"data_offsets":[0,32]}})";
  std::ofstream(at("u.safetensors"), std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << std::string(32, '\0');
  for (const std::string name : {"@u.npy", "@u2.npy", "@f.npy", "@u.safetensors"}) {
    const std::string fix = name == "@u.safetensors" ? "store it as int64" : "x.astype(numpy.int64) in NumPy";
    for (const Words& words :
         {Words{"cross-entropy", "@x.npy", name}, Words{"linear-cross-entropy", "@x.npy", "@w.npy", name},
          Words{"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--lengths", name}})
      expect_refused(Code::dtype, "allowed: int32, int64\n         try: " + fix + "\n", words);
  }
  expect_try(Code::dtype, "x.astype(numpy.float32) in NumPy\n", {"softmax", "@u.npy", "@o.npy"});
  EXPECT_EQ(expect_ok({"cross-entropy", "--help"}).find("--targets-as"), std::string::npos);
  expect_refused(Code::usage, "--targets-as", {"cross-entropy", "@x.npy", "@t.npy", "--targets-as", "int32"});
}

TEST_F(Wording, ComplexNumbersAreNamedSoAndTheirPartsSuggested) {
  for (const std::string descr : {"<c8", ">c8"}) {
    write_as("c.npy", "t.npy", descr);
    for (const Words& words : {Words{"softmax", "@c.npy", "@o.npy"}, Words{"cross-entropy", "@x.npy", "@c.npy"},
                               Words{"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--bias", "@c.npy"}}) {
      expect_try(Code::dtype, "of complex dtype '" + descr + "'", words);
      expect_refused(Code::dtype, "try: x.real or numpy.abs(x) in NumPy\n", words);
    }
  }
}

// What helps against a target that is no class: --ignore-index where it is the only such, else one number for all.
TEST_F(Wording, AnotherIgnoreIndexIsSuggestedWhereItHelps) {
  const auto refused = [&](const std::vector<std::int64_t>& targets, const std::string& fix) {
    write_array(at("t.npy"), DType::int64, {4}, std::as_bytes(std::span(targets)));
    for (const Words& words :
         {Words{"cross-entropy", "@x.npy", "@t.npy"}, Words{"linear-cross-entropy", "@x.npy", "@w.npy", "@t.npy"}})
      expect_refused(Code::data, "or --ignore-index -100\n         try: " + fix, words);
  };
  refused({0, -1, 1, -1}, "--ignore-index -1, if rows with this target are not to count\n");
  expect_ok({"cross-entropy", "@x.npy", "@t.npy", "--ignore-index", "-1"});
  refused({0, -1, 1, -100}, "-100 for every row that is not to count, classes for the others\n");
  refused({0, -1, 1, 70}, "-100 for every row that is not to count, classes for the others\n");
}

TEST_F(Wording, OfSeveralTensorsTheOptionThatChoosesIsNamed) {
  const std::vector<TensorSpec> tensors{{"a", DType::float32, {1}}, {"b", DType::float32, {1}}};
  auto file = softfold::io::create_safetensors(at("s.safetensors"), tensors);
  for (const std::size_t i : {0u, 1u}) file.write(0, std::vector<std::byte>(4), i);
  file.commit();
  expect_try(Code::option, "try: --tensor a", {"softmax", "@s.safetensors", "@o.npy"});
  expect_try(Code::option, "try: --weight-tensor a", {"linear-cross-entropy", "@x.npy", "@s.safetensors", "@t.npy"});
  expect_try(Code::option, "try: --targets-tensor a", {"cross-entropy", "@x.npy", "@s.safetensors"});
}

TEST_F(Wording, OnlyAttentionMerges) {
  for (const Words& words :
       {Words{"softmax", "@x.npy", "@o.npy"}, Words{"verify", "@x.npy"}, Words{"explain", "softmax", "4x5", "f32"}}) {
    Words all = words;
    all.insert(all.end(), {"--rung", "merged"});
    expect_try(Code::option, "allowed: automatic, naive, safe, online, tiled, fused\n", all);
  }
  expect_ok({"attention", "@q.npy", "@q.npy", "@q.npy", "@o.npy", "--rung", "merged"});
}

TEST_F(Wording, WhatIsNotFiniteIsATextInJson) {
  std::vector<float> x(20, 0);
  x[1] = -INFINITY;
  write_array(at("x.npy"), DType::float32, {4, 5}, std::as_bytes(std::span(x)));
  const auto told = nlohmann::json::parse(expect_ok({"cross-entropy", "@x.npy", "@t.npy", "--json"}));
  EXPECT_EQ(told.at("mean"), "inf");
  EXPECT_EQ(told.at("sum"), "inf");
  EXPECT_EQ(told.at("perplexity"), "inf");
}

TEST_F(Wording, ControlBytesOfANameStayOffTheTerminal) {
  const std::string in = "@x\x1b[31m.npy", out = "@o\x1b[2J\a.npy", part = "@p\x1b[0m.part", more = "@q\x7f.part";
  std::filesystem::copy_file(at("x.npy"), at(in.substr(1)));
  for (const Words& words :
       {Words{"softmax", in, out}, Words{"hash", in}, Words{"topk", in, out, "@i.npy"}, Words{"sample", in, out},
        Words{"entropy", in, out}, Words{"state", in, part}, Words{"merge", part, "-o", more},
        Words{"finish", in, more, out}, Words{"verify", in}, Words{"attention", "@q.npy", "@q.npy", "@q.npy", out},
        Words{"softmax", in, out, "--dtype", out}, Words{"softmax", out, in, "--as", "int32"}}) {
    const Result result = run(words);
    for (const char control : {'\x1b', '\a', '\x7f'})
      EXPECT_EQ((result.out + result.err).find(control), std::string::npos) << words[0];
    EXPECT_TRUE(result.status == 0 || words.size() > 4) << words[0] << result.err;
  }
}

TEST_F(Wording, TooManyOpenFilesAreNoMatterOfTheFolder) {
  if (kSanitized)
    GTEST_SKIP() << "a sanitizer's run-time library needs more files to be loaded than the command then does";
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  int met = 0;
  for (rlim_t files = 5; files < 64 && met < 2; ++files) {
    const struct rlimit narrow { files, before.rlim_max };
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &narrow), 0);
    const pid_t child = start({"softmax", "@x.npy", "@o.npy"});
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    const Result result = wait_for(child);
    if (result.err.find("softfold: got") == std::string::npos) continue;
    ++met;
    EXPECT_NE(result.err.find("try: raise the limit on open files: ulimit -n\n"), std::string::npos) << result.err;
  }
  EXPECT_GT(met, 0);
}

}  // namespace
}  // namespace softfold_test
