// One exception type for the whole library: what was given, what is allowed, and the nearest fix.
#pragma once

#include "softfold/config.hpp"

#include <exception>
#include <string>
#include <utility>

namespace softfold {
inline namespace v0 {

/// Why a call was refused or failed. The values are those of the C ABI's status codes and of the CLI's exit codes.
enum class Code : int {
  ok = 0,
  internal = 1,     ///< a defect of softfold
  usage = 2,        ///< an unknown option or verb (CLI)
  dtype = 3,        ///< a dtype the operation does not take
  shape = 4,        ///< shapes, axes or sizes that do not fit together
  strides = 5,      ///< strides, overlap or alignment that cannot work
  option = 6,       ///< an option's value, or a combination of options, that is not allowed
  unsupported = 7,  ///< an operation, option or device that this build does not have
  state = 8,        ///< states or partials that do not belong together (scale, precision, offset)
  file = 9,         ///< a file that is missing, truncated or lies about itself
  io = 10,          ///< reading or writing failed (full disk, permission)
  out_of_memory = 11,
  device = 12,        ///< the device or its driver reported an error
  data = 13,          ///< values that make the call meaningless (found while checking, before any work)
  verification = 14,  ///< `softfold verify` or `doctor` found a result outside the contract
};

class SOFTFOLD_API Error : public std::exception {
 public:
  Error(Code code_, std::string got_, std::string allowed_, std::string fix_ = {})
      : code(code_), got(std::move(got_)), allowed(std::move(allowed_)), fix(std::move(fix_)) {
    message_ = "softfold: got " + got + "; allowed: " + allowed;
    if (!fix.empty()) message_ += "; try: " + fix;
  }
  const char* what() const noexcept override { return message_.c_str(); }

  Code code;
  std::string got;      ///< what the caller gave
  std::string allowed;  ///< what would have been accepted
  std::string fix;      ///< the nearest call that works; may be empty

 private:
  std::string message_;
};

}  // namespace v0
}  // namespace softfold
