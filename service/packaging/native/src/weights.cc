#include "weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "failure.h"
#include "json.h"

namespace relaxc_runtime {
namespace {

namespace ffi = tvm::ffi;

constexpr char kSection[] = ".relaxc.weights";
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // the safetensors library's own limit

const char* tag_of(const std::string& dtype) {
  static const std::map<std::string, const char*> tags{
      {"bool", "BOOL"}, {"int8", "I8"},     {"uint8", "U8"},    {"int16", "I16"},   {"uint16", "U16"},   {"int32", "I32"},   {"uint32", "U32"},
      {"int64", "I64"}, {"uint64", "U64"}, {"float16", "F16"}, {"bfloat16", "BF16"}, {"float32", "F32"}, {"float64", "F64"},
      {"float8_e4m3fn", "F8_E4M3"},
  };
  return tags.at(dtype);
}

std::vector<int64_t> shape_of(const TensorSpec& spec) {
  std::vector<int64_t> shape;
  for (const Dim& dim : spec.shape) shape.push_back(dim.size());
  return shape;
}

bool is_file(const std::string& path) {
  struct stat seen {};
  return !stat(path.c_str(), &seen) && S_ISREG(seen.st_mode);
}

/// The path with another file name, or with another suffix.
std::vector<std::string> beside(const std::string& path, const std::string& file) {
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  std::string own = path.substr(folder.size());
  size_t dot = own.rfind('.');
  return {folder + (dot == std::string::npos || !dot ? own : own.substr(0, dot)) + ".safetensors", folder + file};
}

ffi::Tensor tensor_of(const File& file, const std::shared_ptr<Mapping>& mapping, uint64_t begin, const TensorSpec& spec, const Json& rows) {
  std::vector<int64_t> shape = shape_of(spec);
  auto row = rows.find(spec.name);
  auto differ = [&]() { corrupt("the weights in " + file.path() + " do not have " + spec.text()); };
  if (!row) differ();
  std::vector<Json> dims = (*row)["shape"].items(), ends = (*row)["data_offsets"].items();
  bool same = (*row)["dtype"].text() == tag_of(spec.dtype) && dims.size() == shape.size() && ends.size() == 2;
  for (size_t axis = 0; same && axis < shape.size(); ++axis) same = dims[axis].integer() == shape[axis];
  if (!same) differ();
  int64_t start = ends[0].integer(), end = ends[1].integer();
  size_t size = size_bytes(spec.name, spec.dtype, shape);
  if (start < 0 || end < start || static_cast<uint64_t>(end) > mapping->size() - begin || static_cast<uint64_t>(end - start) != size) differ();
  const uint8_t* data = mapping->data() + begin + start;
  if (size && reinterpret_cast<uintptr_t>(data) % kAlign == 0)
    return wrap(const_cast<uint8_t*>(data), spec.dtype, shape, mapping);
  std::shared_ptr<void> owned = allocate(size);
  if (size) std::memcpy(owned.get(), data, size);
  return wrap(owned.get(), spec.dtype, shape, owned);
}

}  // namespace

std::pair<std::shared_ptr<File>, Section> find_weights(const std::shared_ptr<File>& file, const std::map<std::string, Section>& sections,
                                                       const WeightsTable& table) {
  if (!table.file) {
    auto section = sections.find(kSection);
    if (section == sections.end()) corrupt(file->path() + " has no " + kSection);
    return {file, section->second};
  }
  for (const std::string& path : beside(file->path(), *table.file)) {
    if (!is_file(path)) continue;
    auto found = std::make_shared<File>(path);
    if (found->size() != table.size)
      corrupt(path + " has " + std::to_string(found->size()) + " bytes, not " + std::to_string(table.size));
    return {found, Section{0, table.size}};
  }
  throw Failure(RELAXC_ARTIFACT_NOT_FOUND, "the weights of " + file->path() + " are in " + *table.file + ", which is not beside it");
}

std::vector<ffi::Tensor> map_weights(const File& file, Section image, const std::vector<TensorSpec>& table) {
  if (table.empty()) return {};
  auto mapping = std::make_shared<Mapping>(file, image.offset, image.size);
  uint64_t length = 0;
  if (image.size >= sizeof length) std::memcpy(&length, mapping->data(), sizeof length);
  if (image.size < sizeof length || length > std::min(kMaxHeaderBytes, image.size - sizeof length))
    corrupt("the weights in " + file.path() + " are truncated");
  std::string text(reinterpret_cast<const char*>(mapping->data()) + sizeof length, static_cast<size_t>(length));
  Json rows = Json::parse(text, "the header of the weights in " + file.path());
  std::vector<ffi::Tensor> tensors;
  try {
    for (const TensorSpec& spec : table) tensors.push_back(tensor_of(file, mapping, sizeof length + length, spec, rows));
  } catch (const Failure& failure) {  // a size that no memory has is no fault of an input here
    corrupt(failure.what());
  }
  return tensors;
}

}  // namespace relaxc_runtime
