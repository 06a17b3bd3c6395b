// What a verb tells when it is done: as text for people, or with --json as one object.
#pragma once

#include "softfold/tensor.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace softfold::cli {

using Json = nlohmann::ordered_json;

/// A number, or where JSON has none a text: "inf", "-inf", "nan".
Json number(double value);
/// Prints the object with two spaces of indentation.
void print(const Json& object);

/// Tells on standard error, in one line, what the caller may not expect.
void note(const std::string& text);
/// Notes that a bfloat16 .npy that was written must be read with --as, which the file cannot say.
void note_bfloat16(const std::string& written, DType dtype);
/// "1 row", "2 rows".
std::string counted(std::int64_t count, const std::string& what);

/// The most memory this process has had resident, in bytes.
std::uint64_t peak_memory();

}  // namespace softfold::cli
