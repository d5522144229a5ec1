#include "checks.h"

#include <cstdlib>
#include <set>

#include "cuda.h"
#include "failure.h"
#include "machine.h"
#include "version.h"

namespace relaxc_runtime {
namespace {

std::string capability_text(const std::string& arch) {
  auto [major, minor] = capability_of(arch);
  return std::to_string(major) + "." + std::to_string(minor);
}

void missing_on_gpu(const std::string& arch, std::vector<std::string>* missing) {
  std::string why, wanted = "a CUDA device of compute capability " + capability_text(arch);
  auto here = gpu_capability(0, &why);
  if (!here) missing->push_back(wanted + " (" + why + ")");
  else if (!best_arch({arch}, *here))
    missing->push_back(wanted + " (this one has " + std::to_string(here->first) + "." + std::to_string(here->second) + ")");
}

bool runs_on_cpu(const Target& target) {
  if (target.cpu_arch != cpu_arch()) return false;
  for (const std::string& feature : target.features)
    if (!cpu_features().count(feature)) return false;
  return true;
}

}  // namespace

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

size_t chosen(const Manifest& manifest) {
  if (manifest.parts.size() == 1) return 0;
  std::vector<std::string> archs;
  const char* asked = std::getenv("RELAXC_PART");
  size_t best = 0;
  for (size_t place = 0; place < manifest.parts.size(); ++place) {
    const Target& target = manifest.parts[place].target;
    archs.push_back(target.arch);
    if (asked && target.name == asked) return place;
    if (target.kind != "cuda" && runs_on_cpu(target)) best = place;  // they come the least demanding first
  }
  if (asked && *asked)
    throw Failure(RELAXC_INVALID_OPTION, "the artifact has no part " + in_quotes(asked) + "; there are " + manifest.target_names());
  if (manifest.parts[0].target.kind != "cuda") return best;
  std::string why;
  auto here = gpu_capability(0, &why);
  return here ? best_arch(archs, *here).value_or(0) : 0;
}

void check_machine(const Manifest& manifest, size_t place) {
  const Target& target = manifest.parts[place].target;
  std::vector<std::string> missing;
  if (target.cpu_arch != cpu_arch()) {
    missing.push_back("a CPU of architecture " + target.cpu_arch + " (this one is " + cpu_arch() + ")");
  } else {
    std::set<std::string> needed(target.features.begin(), target.features.end());
    if (place == 0) needed.insert(manifest.required_features.begin(), manifest.required_features.end());
    for (const std::string& feature : needed)
      if (!cpu_features().count(feature)) missing.push_back("CPU feature " + feature);
  }
  if (place == 0 && manifest.required_arch != target.cpu_arch) missing.push_back("a CPU of architecture " + manifest.required_arch);
  if (target.kind == "cuda") missing_on_gpu(target.arch, &missing);
  if (manifest.runtime_version != RELAXC_TVM_VERSION)
    missing.push_back("TVM runtime " + manifest.runtime_version + " (this is " RELAXC_TVM_VERSION ")");
  if (!missing.empty())
    throw Failure(RELAXC_MACHINE_MISMATCH,
                  "this artifact was compiled for " + manifest.target_names() + "; this machine lacks " + joined(missing));
}

void check_digest(const File& file, const std::string& wanted) {
  std::string found = file.digest(0, file.size());
  if (found != wanted) corrupt(file.path() + " has the digest " + found + ", not " + wanted);
}

Section section_of(const Part& part, const std::map<std::string, Section>& sections, const File& file) {
  auto found = sections.find(*part.section);
  if (found == sections.end()) corrupt(file.path() + " has no " + *part.section);
  return found->second;
}

void check_code(const Part& part, const std::map<std::string, Section>& sections, const File& file) {
  if (!part.code_digest) return;
  std::string found;
  if (part.section) {
    Section code = section_of(part, sections, file);
    found = file.digest(code.offset, code.size);
  } else {
    found = loaded_digest(file);
  }
  if (found != *part.code_digest) corrupt(file.path() + " is damaged: its code has another digest than its manifest says");
}

}  // namespace relaxc_runtime
