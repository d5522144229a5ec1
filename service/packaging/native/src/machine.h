// What this machine's CPU is, as Linux tells; as service/processor.py, service/machine.py and service/cgroups.py read it.
#pragma once
#include <set>
#include <string>

namespace relaxc_runtime {

/// `x86_64` or `aarch64`.
std::string cpu_arch();

/// LLVM's names of this CPU's features. AMX counts only where the kernel grants this process its tile state.
const std::set<std::string>& cpu_features();

/// LLVM's name of a feature that /proc/cpuinfo has under `flag`; empty for a flag that no target names.
std::string feature_of(const std::string& arch, const std::string& flag);

/// How many cores of this process's are worth using, each once whatever its threads, within a container's quota.
int cpu_cores();

}  // namespace relaxc_runtime
