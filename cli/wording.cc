#include "wording.hpp"

#include "front/advice.hpp"

#include <fmt/format.h>
#include <cctype>
#include <string>

namespace softfold::cli {
namespace {

/// A field of the library's options, the command's option for it, and what to try where a refusal is about it and the
/// library has no fix, or one that is a value of the field.
struct Field {
  std::string_view name, option, fix;
};
constexpr Field kFields[] = {{"label_smoothing", "--label-smoothing", "--label-smoothing 0.1"},
                             {"z_loss", "--z-loss", "--z-loss 1e-4"},
                             {"ignore_index", "--ignore-index", "--ignore-index -100"},
                             {"softcap", "--softcap", "--softcap 30"},
                             {"temperature", "--temperature", "--temperature 1"},
                             {"top_k", "--top-k", "--top-k 50"},
                             {"top_p", "--top-p", "--top-p 0.9"},
                             {"min_p", "--min-p", "--min-p 0.05"},
                             {"kv_lengths", "--lengths", "leave --lengths out: all keys exist then"},
                             {"kv_starts", "--starts", "leave --starts out: keys exist from the first on then"},
                             {"kv_index", "--index", "leave --index out: sequence b has the keys K[b] then"},
                             {"q_offsets", "--q-offsets", ""},
                             {"kv_offsets", "--kv-offsets", ""},
                             {"AttentionOptions::layout", "--layout", ""},
                             {"mask", "--mask", "a mask of such a shape, its axes of full size or 1"},
                             {"bias", "--bias", "a bias of such a shape"},
                             {"slopes", "--slopes", ""},
                             {"sink", "--sink", ""},
                             {"x of shape", "X of shape", "X (rows, features) and WEIGHT (classes, features)"},
                             {"weight", "WEIGHT", "store WEIGHT as (classes, features)"},
                             {"axis", "--axis", "--axis -1"},
                             {"out of dtype", "--dtype", "leave out --dtype: the result has Q's"}};

bool in_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; }

/// `text` begins with this name, and the name ends there.
bool begins_with(std::string_view text, std::string_view name) {
  return text.starts_with(name) && (text.size() == name.size() || !in_a_word(text[name.size()]));
}

/// The fields' names that are no English words, replaced outside of quotes: a file may have any name.
std::string with_options(std::string_view text) {
  std::string out;
  bool quoted = false, inside = false;
  for (std::size_t i = 0; i < text.size();) {
    const Field* found = nullptr;
    if (!quoted && !inside)
      for (const Field& field : kFields)
        if (field.name.find_first_of("_:") != std::string_view::npos && begins_with(text.substr(i), field.name))
          found = &field;
    if (found != nullptr) {
      out += found->option;
      i += found->name.size();
      continue;
    }
    if (text[i] == '\'' && !inside)
      quoted = !quoted;
    else if (text[i] == '\'' && quoted)
      quoted = false;
    inside = in_a_word(text[i]) || text[i] == '/';
    out += text[i++];
  }
  return out;
}

}  // namespace

Error in_words_of_the_command(const Error& error, std::string_view verb) {
  std::string got = error.got, fix = with_options(error.fix);
  if (fix == leave_at_default("rung")) fix = "leave out --rung";
  for (const Field& field : kFields) {
    if (!begins_with(got, field.name)) continue;
    got.replace(0, field.name.size(), field.option);
    if (!field.fix.empty() && (fix.empty() || begins_with(error.fix, field.name))) fix = field.fix;
    break;
  }
  const bool of_the_call = error.code == Code::dtype || error.code == Code::shape || error.code == Code::option ||
                           error.code == Code::data || error.code == Code::usage;
  if (fix.empty() && of_the_call) fix = fmt::format("softfold {} --help", verb);
  return Error(error.code, with_options(got), with_options(error.allowed), fix);
}

}  // namespace softfold::cli
