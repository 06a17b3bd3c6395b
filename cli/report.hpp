// What a verb tells when it is done: as text for people, or with --json as one object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace softfold::cli {

using Json = nlohmann::ordered_json;

/// Prints the object with two spaces of indentation. NaN and infinities become null, as JSON has none.
void print(const Json& object);

/// The most memory this process has had resident, in bytes.
std::uint64_t peak_memory();

}  // namespace softfold::cli
