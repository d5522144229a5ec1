// What is raised inside: a status of the C header, and one sentence.
#pragma once
#include <relaxc/runtime.h>

#include <stdexcept>
#include <string>

namespace relaxc_runtime {

struct Failure : std::runtime_error {
  Failure(relaxc_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  relaxc_status status;
};

[[noreturn]] inline void corrupt(const std::string& message) { throw Failure(RELAXC_ARTIFACT_CORRUPT, message); }

/// Text in single quotes, as errors name things.
inline std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

}  // namespace relaxc_runtime
