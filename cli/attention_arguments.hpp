// AttentionOptions as words of the command: of `softfold attention`, and of `softfold explain attention`.
#pragma once

#include "arguments.hpp"
#include "fabricated.hpp"
#include "loaded.hpp"

#include "softfold/io/array_file.hpp"

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace softfold::cli {

/// Each operand is a file, or FILE.safetensors:TENSOR; those of one axis may be numbers with commas between them.
struct AttentionArguments {
  std::string layout, rung = "automatic";
  std::optional<double> scale, softcap;
  std::optional<std::int64_t> left, right;
  bool causal = false;
  std::string sink, slopes, bias, mask, lengths, starts, index, q_offsets, kv_offsets;

  /// `whose` begins the help of what other operations do not have.
  void declare(Command& command, const std::string& whose = "");
  /// The first option given that other operations do not have; or an empty text.
  std::string_view first_given() const;
};

/// AttentionOptions and the arrays that they view.
class AttentionOperands {
 public:
  /// Reads what the arguments name. With `fabricated` bias and mask may be shapes too, as 8x1x4096, of operands that
  /// are made there. Throws Error: Code::option (words, numbers), and what open_array throws.
  explicit AttentionOperands(const AttentionArguments& arguments, Fabricated* fabricated = nullptr);

  /// Sequences in the cache that --index needs; `otherwise` without one.
  std::int64_t cache_size(std::int64_t otherwise) const;
  /// Says of the operands that they lie elsewhere, for a plan that is never run.
  void move_to(Device device);

  AttentionOptions options;
  std::vector<io::ArrayFile> files;  ///< all that was read: no output may be one of them, and none may change

 private:
  View read(const char* name, const std::string& text, std::optional<DType> list, Fabricated* fabricated);

  std::deque<Loaded> arrays_;
};

}  // namespace softfold::cli
