#include "machine.h"

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <sched.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

namespace relaxc_runtime {
namespace {

struct Feature {
  const char *arch, *flag, *name;
};

// Linux's name of a flag → LLVM's. tests/packaging/test_native.py compares with service/processor.py.
constexpr Feature kFeatures[] = {
#define X86(flag, name) {"x86_64", flag, name},
#define ARM(flag, name, word, bit) {"aarch64", flag, name},
#include "features.inc"
};

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

#ifdef __aarch64__
// The kernel tells each process by bits. /proc/cpuinfo tells the same, but under an emulator it is another machine's.
std::set<std::string> flags_of_cpu() {
  std::set<std::string> flags;
#undef X86
#undef ARM
#define X86(flag, name)
#define ARM(flag, name, word, bit) \
  if (getauxval(word) & bit) flags.insert(flag);
#include "features.inc"
  return flags;
}
#else
std::set<std::string> flags_of_cpu() {
  std::ifstream file("/proc/cpuinfo");
  const std::string wanted = "flags";
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(':');
    if (line.compare(0, wanted.size(), wanted) || colon == std::string::npos) continue;
    if (line.find_first_not_of(" \t", wanted.size()) != colon) continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}
#endif

/// Ask for AMX's tile state: all threads of the process have it from then on.
bool kernel_grants_amx(const std::string& arch) {
#ifdef SYS_arch_prctl
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return arch == "x86_64" && !syscall(SYS_arch_prctl, kRequestPermission, kTileData);
#else
  (void)arch;
  return false;
#endif
}

std::vector<int> allowed_cpus() {
  std::vector<int> found;
  for (int size = 1024; size <= 1 << 16; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    size_t bytes = CPU_ALLOC_SIZE(size);
    bool known = !sched_getaffinity(0, bytes, set);
    for (int cpu = 0; known && cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) found.push_back(cpu);
    CPU_FREE(set);
    if (known) break;
  }
  return found.empty() ? std::vector<int>{0} : found;
}

struct Core {
  long capacity, l1;
};

long number_in(const std::string& text) {
  char* end = nullptr;
  long found = std::strtol(text.c_str(), &end, 10);
  return end == text.c_str() ? 0 : found;
}

long l1_data(const std::string& folder) {
  for (int index = 0; index < 8; ++index) {
    std::string own = folder + "/cache/index" + std::to_string(index);
    if (line_of(own + "/level") == "1" && line_of(own + "/type") != "Instruction") return number_in(line_of(own + "/size"));
  }
  return 0;
}

/// The allowed cores, each once.
std::vector<Core> cores() {
  std::map<std::string, Core> found;
  for (int cpu : allowed_cpus()) {
    std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    std::string threads = line_of(folder + "/topology/core_cpus_list");
    if (threads.empty()) threads = line_of(folder + "/topology/thread_siblings_list");
    if (threads.empty()) threads = std::to_string(cpu);
    if (!found.count(threads)) found[threads] = {number_in(line_of(folder + "/cpu_capacity")), l1_data(folder)};
  }
  long largest = 0;
  for (const auto& [ignored, core] : found) largest = std::max(largest, core.l1);
  std::vector<Core> all;
  // x86 states no capacity before Linux 6.12. The small cores of a hybrid have the smaller L1, and half the FMA units.
  for (auto [ignored, core] : found) all.push_back({core.capacity ? core.capacity : core.l1 == largest ? 1024 : 512, core.l1});
  std::sort(all.begin(), all.end(), [](const Core& one, const Core& other) { return one.capacity > other.capacity; });
  return all;
}

/// Where this process's group of version 2 is, and the top that can be seen.
std::optional<std::pair<std::string, std::string>> group() {
  std::ifstream own_file("/proc/self/cgroup"), mounts("/proc/self/mountinfo");
  std::string own = "/", line;
  while (std::getline(own_file, line))
    if (line.compare(0, 3, "0::") == 0) own = line.substr(3);
  while (std::getline(mounts, line)) {
    size_t dash = line.find(" - cgroup2 ");
    if (dash == std::string::npos) continue;
    std::istringstream words(line);
    std::string number, parent, device, root, top;
    words >> number >> parent >> device >> root >> top;
    bool below = own.compare(0, root.size(), root) == 0;
    std::string rest = below ? own.substr(root == "/" ? 0 : root.size()) : "";
    return std::pair(top + (rest == "/" ? "" : rest), top);
  }
  return {};
}

/// How many processors the groups give time for, rounded up; 0 where they give for all.
int quota() {
  auto place = group();
  double least = 0;
  for (std::string folder = place ? place->first : ""; !folder.empty();) {
    std::istringstream words(line_of(folder + "/cpu.max"));
    double time = 0, period = 0;
    if (words >> time >> period && period > 0) least = least > 0 ? std::min(least, time / period) : time / period;
    if (folder == place->second || folder.size() < place->second.size()) break;
    folder = folder.substr(0, folder.rfind('/'));
  }
  return least > 0 ? std::max(1, static_cast<int>(std::ceil(least))) : 0;
}

}  // namespace

std::string cpu_arch() {
  utsname named{};
  uname(&named);
  return named.machine;
}

std::string feature_of(const std::string& arch, const std::string& flag) {
  for (const Feature& feature : kFeatures)
    if (arch == feature.arch && flag == feature.flag) return feature.name;
  return "";
}

const std::set<std::string>& cpu_features() {
  static const std::set<std::string> found = [] {
    std::string arch = cpu_arch();
    bool has_amx = kernel_grants_amx(arch);
    std::set<std::string> features;
    for (const std::string& flag : flags_of_cpu()) {
      std::string name = feature_of(arch, flag);
      if (!name.empty() && (has_amx || name.compare(0, 3, "amx"))) features.insert(name);
    }
    return features;
  }();
  return found;
}

int cpu_cores() {
  static const int found = [] {
    std::vector<Core> all = cores();
    size_t best = 1;  // all do work in equal parts soonest, or the fast ones alone
    for (size_t count = 1; count <= all.size(); ++count)
      if (static_cast<long>(count) * all[count - 1].capacity > static_cast<long>(best) * all[best - 1].capacity) best = count;
    int given = quota();
    return given ? std::min(static_cast<int>(best), given) : static_cast<int>(best);
  }();
  return found;
}

}  // namespace relaxc_runtime
