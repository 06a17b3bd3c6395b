// The attention scores of the MiniLM example, from its queries and keys: scale * Q K^T for the six layers, float32
// [6, 12, 128, 128]; or one long row made of them, for the streaming examples.
//
//   scores QKV.safetensors OUT.npy [--row COUNT]
//
//   --row COUNT   writes [COUNT] instead: the scores over and over, each time moved by its own amount in
//                 [-1/8, 1/8), a function of its index alone. M after the number is 2^20.
#include "softfold/error.hpp"
#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using softfold::Code;
using softfold::DType;
using softfold::Error;

constexpr int kLayers = 6, kHeads = 12, kTokens = 128, kDim = 32;

struct Arguments {
  std::string qkv, out;
  std::int64_t row = 0;  ///< 0: all scores
};

std::int64_t count(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool millions = stop + 1 == end && *stop == 'M';
  if (error != std::errc{} || (stop != end && !millions) || value < 1 || value > 1'000'000'000)
    throw Error(Code::usage, std::string(text), "a number from 1 to 10^9, or as many M");
  return millions ? value << 20 : value;
}

Arguments parse(std::span<char*> words) {
  Arguments result;
  std::vector<std::string> files;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const bool has_value = i + 1 < words.size();
    if (word == "--row" && has_value)
      result.row = count(words[++i]);
    else if (!word.starts_with("--"))
      files.emplace_back(word);
    else
      throw Error(Code::usage, std::string(word), "--row COUNT");
  }
  if (files.size() != 2)
    throw Error(Code::usage, std::to_string(files.size()) + " files", "scores QKV.safetensors OUT.npy");
  result.qkv = files[0];
  result.out = files[1];
  return result;
}

/// One tensor of the file, float32 [kHeads, kTokens, kDim].
std::vector<float> read(const std::string& path, const std::string& name) {
  const auto file = softfold::io::open_array(path, name, DType::float32);
  const std::int64_t expected[] = {kHeads, kTokens, kDim};
  if (!std::ranges::equal(file.shape(), expected))
    throw Error(Code::shape, name + " of another shape", "[12, 128, 32]", "the repository's qkv.safetensors");
  std::vector<float> values(std::size_t{kHeads} * kTokens * kDim);
  file.read(0, std::as_writable_bytes(std::span(values)));
  return values;
}

/// Appends scale * q k^T of one layer; the sums run in the order of D, so that the bits are the same everywhere.
void append_scores(std::vector<float>& scores, const std::vector<float>& q, const std::vector<float>& k) {
  const float scale = 1 / std::sqrt(static_cast<float>(kDim));
  for (std::size_t head = 0; head < kHeads; ++head) {
    for (std::size_t i = 0; i < kTokens; ++i) {
      const float* const qi = &q[(head * kTokens + i) * kDim];
      for (std::size_t j = 0; j < kTokens; ++j) {
        const float* const kj = &k[(head * kTokens + j) * kDim];
        float dot = 0;
        for (std::size_t d = 0; d < kDim; ++d) dot += qi[d] * kj[d];
        scores.push_back(dot * scale);
      }
    }
  }
}

/// A number in [-1/8, 1/8) from an index: the finaliser of a 64-bit mixer, then 24 bits of it.
float variation(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(static_cast<std::int64_t>(z >> 40) - (1 << 23)) * 0x1p-26f;
}

void write_row(const Arguments& arguments, const std::vector<float>& scores) {
  const std::int64_t shape[] = {arguments.row};
  auto out = softfold::io::create_npy(arguments.out, DType::float32, shape);
  std::vector<float> block(std::size_t{1} << 18);
  const auto n = static_cast<std::uint64_t>(arguments.row);
  for (std::uint64_t begin = 0; begin < n; begin += block.size()) {
    const std::uint64_t size = std::min<std::uint64_t>(block.size(), n - begin);
    for (std::uint64_t i = 0; i < size; ++i) block[i] = scores[(begin + i) % scores.size()] + variation(begin + i);
    out.write(begin * sizeof(float), std::as_bytes(std::span(block).first(size)));
  }
  out.commit();
}

void write_scores(const Arguments& arguments, const std::vector<float>& scores) {
  const std::int64_t shape[] = {kLayers, kHeads, kTokens, kTokens};
  auto out = softfold::io::create_npy(arguments.out, DType::float32, shape);
  out.write(0, std::as_bytes(std::span(scores)));
  out.commit();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse({argv, static_cast<std::size_t>(argc)});
    std::vector<float> scores;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = "layer" + std::to_string(layer);
      append_scores(scores, read(arguments.qkv, prefix + ".q"), read(arguments.qkv, prefix + ".k"));
    }
    if (arguments.row != 0)
      write_row(arguments, scores);
    else
      write_scores(arguments, scores);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scores: %s\n", error.what());
    return static_cast<int>(Code::internal);
  }
}
