// Texts of the command line as values: sizes, dtypes, ranges, shapes; and the options that several verbs share.
#pragma once

#include "command.hpp"

#include "softfold/io/array_file.hpp"
#include "softfold/io/array_output.hpp"
#include "softfold/options.hpp"

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace softfold::cli {

/// The candidate that `word` most likely means: what it stands for elsewhere ("lse", "gpu"), else the nearest; or an
/// empty text.
std::string_view suggestion(std::string_view word, std::span<const std::string_view> candidates);
/// The index of `text` among `names`; what it is called in a refusal, which suggests the nearest. Throws
/// Error{Code::option}.
std::size_t parse_word(const std::string& text, const char* what, std::span<const std::string_view> names);
/// A number of elements: "131072", "128K", "128k", "64M" (powers of 1024); nothing where it is none.
std::optional<std::int64_t> parse_count(std::string_view text);
/// "256M" as bytes; K, M, G, T are powers of 1024. Throws Error{Code::option}.
std::uint64_t parse_bytes(const std::string& text);
/// "4096x128256" as sizes. Throws Error{Code::option}.
std::vector<std::int64_t> parse_shape(const std::string& text);
/// "float32", also "f32", "fp32", "bf16", ... Throws Error{Code::dtype}.
DType parse_dtype(const std::string& text);
Empty parse_empty(const std::string& text);
Rung parse_rung(const std::string& text, bool of_attention = false);  ///< attention alone merges
/// "cpu" or "cuda".
DeviceKind parse_backend(const std::string& text);
/// A name of one of `among`, or of any Op where that is empty; "-" stands for "_". Throws Error{Code::option}.
Op parse_op(const std::string& text, std::span<const Op> among = {});

/// "A:B", "A:", ":B" of `length` elements. Throws Error{Code::shape} unless 0 <= A <= B <= length.
struct Range {
  std::int64_t begin, end;
  std::int64_t length() const { return end - begin; }
};
Range parse_range(const std::string& text, std::int64_t length);

/// A shape as "4096x128256".
std::string text_of(std::span<const std::int64_t> shape);
/// Bytes as "1.25 GB" (powers of ten, as disks and bandwidths are counted).
std::string human_bytes(double bytes);

/// What an array's elements must be: of any dtype that a file's may be, floating, floating but not float64, or int32 or
/// int64.
enum class Elements { any, floating, not_double, whole };

/// Where an array is and how it is to be read.
struct InputOptions {
  std::string tensor, as;
  std::string tensor_option = "--tensor", as_option = "--as";  ///< their names, with the prefix

  /// `prefix`: of the options' names, where a verb reads two arrays.
  void declare(Command& command, const std::string& prefix = "", bool may_be_floating = true);
  /// An array, whose header is read within `memory`. Throws Error: Code::option for a header that is too long;
  /// Code::dtype, with the file's name, for other elements than are wanted.
  io::ArrayFile open(const std::string& path, std::uint64_t memory = UINT64_MAX, Elements wanted = Elements::any) const;
  io::ArrayFile open_floating(const std::string& path, std::uint64_t memory = UINT64_MAX) const {
    return open(path, memory, Elements::floating);
  }
  io::ArrayFile open_whole(const std::string& path, std::uint64_t memory = UINT64_MAX) const {
    return open(path, memory, Elements::whole);
  }
};

/// An array that an option names as FILE or FILE.safetensors:TENSOR. Throws Error{Code::dtype} for other elements than
/// are wanted.
io::ArrayFile open_operand(const std::string& text, Elements wanted);

/// Refuses files that were written to since they were opened.
void check_unchanged(std::span<const io::ArrayFile> files);
std::vector<io::FileId> ids_of(std::span<const io::ArrayFile> files);

/// Declares --threads.
void declare_threads(Command& command, int& threads);

/// How work is done: nothing here changes a result.
struct RunOptions {
  int threads = 0;
  std::string memory = "1G";
  std::string backend = "cpu";
  bool json = false;

  void declare(Command& command, bool with_memory = true);
  std::uint64_t memory_bytes() const { return parse_bytes(memory); }
};

/// io::commit_all of a verb's outputs.
void commit_all(std::span<io::ArrayOutput> outputs);
/// Refuses two outputs with one path. Empty ones are not wanted.
void require_apart(std::initializer_list<std::string_view> outputs);

/// The executor of --threads.
class Workers {
 public:
  explicit Workers(int threads);
  Executor& executor() const { return *executor_; }
  Context context() const { return {executor_, nullptr, nullptr}; }
  int threads() const { return executor_->concurrency(); }

 private:
  std::unique_ptr<Executor> owned_;
  Executor* executor_;
};

}  // namespace softfold::cli
