#include "manifest.h"

#include <algorithm>
#include <set>

#include "failure.h"
#include "json.h"

namespace relaxc_runtime {
namespace {

constexpr int64_t kFormat = 1;
constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
constexpr char kSection[] = ".relaxc.manifest";

Dim dim_of(const Json& value) {
  if (value.is_text()) return Dim(value.text());
  int64_t size = value.integer();
  if (size < 0) corrupt(value.where() + " is negative");
  return Dim(size);
}

TensorSpec spec_of(const Json& name, const Json& dtype, const Json& shape) {
  TensorSpec spec{name.text(), dtype.text(), {}};
  if (spec.name.empty()) corrupt(name.where() + " is empty");
  if (!item_size(spec.dtype)) corrupt(dtype.where() + " is " + in_quotes(spec.dtype) + ", which is no dtype");
  for (const Json& dim : shape.items()) spec.shape.push_back(dim_of(dim));
  return spec;
}

std::vector<TensorSpec> specs_of(const Json& rows) {
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (const Json& row : rows.items()) {
    specs.push_back(spec_of(row["name"], row["dtype"], row["shape"]));
    if (!names.insert(specs.back().name).second) corrupt(rows.where() + " has the name " + in_quotes(specs.back().name) + " twice");
  }
  return specs;
}

Signature signature_of(const Json& value) {
  Signature signature{specs_of(value["inputs"]), specs_of(value["outputs"]), {}, {}, {}, {}, {}};
  if (auto state = value.find("state")) {
    signature.state = specs_of(*state);
    signature.initial = value["initial"].texts();
    for (const TensorSpec& spec : signature.state)
      for (const Dim& dim : spec.shape)
        if (!dim.is_size()) corrupt("the state " + in_quotes(spec.name) + " has a symbolic dim");
    for (const std::string& name : signature.initial)
      if (std::none_of(signature.state.begin(), signature.state.end(), [&](const TensorSpec& spec) { return spec.name == name; }))
        corrupt("the first value of " + in_quotes(name) + " is that of no state");
  }
  for (const auto& [name, pair] : value["dims"].fields()) {
    std::vector<Json> ends = pair.items();
    if (ends.size() != 2) corrupt(pair.where() + " is not a pair of sizes");
    Bounds bounds{ends[0].integer(), {}};
    if (!ends[1].is_null()) bounds.maximum = ends[1].integer();
    if (bounds.minimum < 0 || (bounds.maximum && *bounds.maximum < bounds.minimum)) corrupt(pair.where() + " holds no size");
    signature.bounds[name] = bounds;
  }
  for (const auto& [name, ignored] : value["constants"].fields()) signature.constants.insert(name);
  auto conditions = value.find("conditions");
  for (const Json& pair : conditions ? conditions->items() : std::vector<Json>()) {
    std::vector<Json> told = pair.items();
    // What must hold of calls of some values only is left to the program, which checks it too.
    if (told.size() == 3) continue;
    if (told.size() != 2) corrupt(pair.where() + " is not a condition and who needs it");
    signature.conditions.emplace_back(told[0].text(), told[1].text());
  }
  return signature;
}

Target target_of(const Json& value) {
  Target target{value["name"].text(), value["kind"].text(), value["arch"].text(), {}, {}};
  Json host = value["host"];
  const Json& cpu = host.is_null() ? value : host;
  std::string triple = cpu["triple"].text();
  target.cpu_arch = triple.substr(0, triple.find('-'));
  target.features = cpu["features"].texts();
  return target;
}

WeightsTable weights_of(const Json& value) {
  WeightsTable table;
  std::set<std::string> names;
  for (const Json& row : value["tensors"].items()) {
    std::vector<Json> fields = row.items();
    if (fields.size() != 3) corrupt(row.where() + " is not a name, a dtype and a shape");
    table.tensors.push_back(spec_of(fields[0], fields[1], fields[2]));
    for (const Dim& dim : table.tensors.back().shape)
      if (!dim.is_size()) corrupt(row.where() + " has a symbolic dim");
    if (!names.insert(table.tensors.back().name).second) corrupt("the weights' names are repeated");
  }
  if (Json file = value["file"]; !file.is_null()) {
    table.file = file.text();
    const std::string suffix = ".safetensors";
    bool fits = table.file->size() > suffix.size() && table.file->compare(table.file->size() - suffix.size(), suffix.size(), suffix) == 0;
    if (!fits || table.file->find('/') != std::string::npos || value["sha256"].is_null())
      corrupt("weights.file " + in_quotes(*table.file) + " is not a safetensors file beside the artifact, with its digest");
  }
  if (Json sha256 = value["sha256"]; !sha256.is_null()) table.sha256 = sha256.text();
  int64_t size = value["size_bytes"].integer();
  if (size < 0) corrupt("weights.size_bytes is negative");
  table.size = static_cast<uint64_t>(size);
  return table;
}

uint64_t planned_bytes(const Json& passes) {
  auto memory = passes.find("memory");
  auto planned = memory ? memory->find("planned_bytes") : std::nullopt;
  return planned && planned->is_integer() && planned->integer() > 0 ? static_cast<uint64_t>(planned->integer()) : 0;
}

std::optional<std::string> digest_of(const Json& whole, const std::string& name) {
  auto found = whole["digests"].find(name);
  return found ? std::optional<std::string>(found->text()) : std::nullopt;
}

std::vector<Part> parts_of(const Json& whole, size_t weights) {
  Part first{target_of(whole["target"]), {}, digest_of(whole, "code"), {}, planned_bytes(whole["passes"])};
  auto others = whole.find("others");
  int64_t own = others ? whole["own_weights"].integer() : static_cast<int64_t>(weights);
  if (own < 0 || static_cast<size_t>(own) > weights) corrupt("the manifest does not say which weights are the first part's");
  for (int64_t place = 0; place < own; ++place) first.weights.push_back(static_cast<size_t>(place));
  std::vector<Part> parts{first};
  for (const Json& other : others ? others->items() : std::vector<Json>()) {
    Part part{target_of(other["target"]), other["section"].text(), digest_of(whole, "code." + std::to_string(parts.size())), {},
              planned_bytes(other["passes"])};
    for (const Json& place : other["weights"].items()) {
      if (place.integer() < 0 || static_cast<size_t>(place.integer()) >= weights) corrupt(place.where() + " names weights that are not there");
      part.weights.push_back(static_cast<size_t>(place.integer()));
    }
    parts.push_back(part);
  }
  return parts;
}

}  // namespace

size_t item_size(const std::string& dtype) {
  static const std::map<std::string, size_t> sizes{
      {"bool", 1},   {"int8", 1},   {"uint8", 1},   {"int16", 2},    {"uint16", 2},  {"int32", 4},  {"uint32", 4},
      {"int64", 8},  {"uint64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8},
  };
  auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

std::string Manifest::target_names() const {
  std::string names;
  for (const Part& part : parts) names += (names.empty() ? "" : ", ") + part.target.name;
  return names;
}

Manifest read_manifest(const File& file, const std::map<std::string, Section>& sections) {
  auto section = sections.find(kSection);
  if (section == sections.end()) corrupt(file.path() + " was not compiled by relaxc: it has no " + kSection);
  if (section->second.size > kMaxBytes) corrupt("the manifest of " + file.path() + " is larger than 64 MiB");
  Manifest manifest;
  manifest.text = file.text(section->second.offset, static_cast<size_t>(section->second.size));
  try {
    Json whole = Json::parse(manifest.text, "the manifest");
    if (int64_t format = whole["format"].integer(); format != kFormat)
      corrupt("the manifest has format " + std::to_string(format) + "; this runtime reads format 1");
    manifest.signature = signature_of(whole["signature"]);
    manifest.weights = weights_of(whole["weights"]);
    manifest.parts = parts_of(whole, manifest.weights.tensors.size());
    manifest.required_features = whole["requires"]["features"].texts();
    manifest.has_blocks = digest_of(whole, "weights").has_value();
    manifest.required_arch = whole["requires"]["arch"].text();
    manifest.runtime_version = whole["requires"]["runtime"].text();
  } catch (const Failure& failure) {
    throw Failure(failure.status, file.path() + ": " + failure.what());
  }
  return manifest;
}

}  // namespace relaxc_runtime
