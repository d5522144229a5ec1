#include "threads.h"

#include <cstdlib>
#include <string>

#include "failure.h"
#include "machine.h"

namespace relaxc_runtime {

int default_threads() {
  const char* text = std::getenv("RELAXC_THREADS");
  if (!text || !*text) return cpu_cores();
  char* end = nullptr;
  long count = std::strtol(text, &end, 10);
  if (*end || count < 0 || count > 1024) throw Failure(RELAXC_INVALID_OPTION, "RELAXC_THREADS is " + in_quotes(text) + ", which is no number of threads");
  return count ? static_cast<int>(count) : cpu_cores();
}

}  // namespace relaxc_runtime
