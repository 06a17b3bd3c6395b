// The library's refusals in the words of the command.
#pragma once

#include "softfold/error.hpp"

#include <string_view>

namespace softfold::cli {

/// Names options where the library names fields, and says what to try where it does not.
Error in_words_of_the_command(const Error& error, std::string_view verb);

}  // namespace softfold::cli
