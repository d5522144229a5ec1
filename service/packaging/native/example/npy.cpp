#include "npy.hpp"

#include <cctype>
#include <cstring>
#include <fstream>
#include <limits>

#include <relaxc/runtime.hpp>

namespace {

struct Kind {
  const char *dtype, *descr;
  size_t size;
};

constexpr Kind kKinds[] = {
    {"bool", "|b1", 1},   {"int8", "|i1", 1},   {"uint8", "|u1", 1},   {"int16", "<i2", 2},   {"uint16", "<u2", 2},
    {"int32", "<i4", 4},  {"uint32", "<u4", 4}, {"int64", "<i8", 8},   {"uint64", "<u8", 8},  {"float16", "<f2", 2},
    {"float32", "<f4", 4}, {"float64", "<f8", 8}, {"bfloat16", "|V2", 2}, {"bfloat16", "<V2", 2},
};

constexpr char kMagic[] = "\x93NUMPY";
constexpr uint32_t kMaxHeader = 1 << 16;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw relaxc::Error(RELAXC_INPUT_TYPE, path + " is no .npy file that can be read: " + why);
}

/// The text behind `'key':` in the header, which is a Python dict.
std::string value_of(const std::string& header, const std::string& key, const std::string& path) {
  size_t start = header.find("'" + key + "':");
  if (start == std::string::npos) refuse(path, "it has no " + key);
  start = header.find_first_not_of(' ', start + key.size() + 3);
  if (start == std::string::npos) refuse(path, "its header is damaged");
  char opened = header[start], closing = opened == '(' ? ')' : opened == '\'' ? '\'' : ',';
  size_t end = header.find(closing, start + 1);
  if (end == std::string::npos) refuse(path, "its header is damaged");
  return closing == ',' ? header.substr(start, end - start) : header.substr(start + 1, end - start - 1);
}

std::vector<int64_t> shape_of(const std::string& text, const std::string& path) {
  std::vector<int64_t> shape;
  for (size_t place = 0; place < text.size();) {
    if (text[place] == ' ' || text[place] == ',') {
      ++place;
      continue;
    }
    int64_t size = 0;
    if (!std::isdigit(static_cast<unsigned char>(text[place]))) refuse(path, "its shape is damaged");
    for (; place < text.size() && std::isdigit(static_cast<unsigned char>(text[place])); ++place)
      if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, text[place] - '0', &size)) refuse(path, "it is too large");
    shape.push_back(size);
  }
  return shape;
}

}  // namespace

void Array::resize(size_t size) {
  memory.assign(size + 64, 0);
  data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
}

size_t item_size(const std::string& dtype) {
  for (const Kind& kind : kKinds)
    if (dtype == kind.dtype) return kind.size;
  return 0;
}

Array read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw relaxc::Error(RELAXC_INPUT_TYPE, "cannot read " + path);
  uint64_t total = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  char begin[8];
  if (!file.read(begin, 8) || std::memcmp(begin, kMagic, 6)) refuse(path, "it does not begin as one");
  uint8_t length[4] = {};
  int width = begin[6] == 1 ? 2 : 4;
  if (begin[6] < 1 || begin[6] > 3 || !file.read(reinterpret_cast<char*>(length), width)) refuse(path, "its version is unknown");
  uint32_t size = length[0] | uint32_t{length[1]} << 8 | uint32_t{length[2]} << 16 | uint32_t{length[3]} << 24;
  if (size > kMaxHeader || size > total) refuse(path, "its header is too long");
  std::string header(size, '\0');
  if (!file.read(header.data(), size)) refuse(path, "it is truncated");
  std::string descr = value_of(header, "descr", path);
  Array array;
  for (const Kind& kind : kKinds)
    if (descr == kind.descr) array.dtype = kind.dtype;
  if (array.dtype.empty()) refuse(path, "its dtype is " + descr);
  if (value_of(header, "fortran_order", path) != "False") refuse(path, "it is not row-major");
  array.shape = shape_of(value_of(header, "shape", path), path);
  size_t bytes = item_size(array.dtype);
  for (int64_t dim : array.shape)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(dim), &bytes)) refuse(path, "it is too large");
  if (bytes > total - static_cast<uint64_t>(file.tellg())) refuse(path, "it is truncated");
  array.resize(bytes);
  if (bytes && !file.read(array.data, static_cast<std::streamsize>(bytes))) refuse(path, "it is truncated");
  return array;
}

void write_npy(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape, const void* data) {
  std::string descr;
  for (const Kind& kind : kKinds)
    if (descr.empty() && dtype == kind.dtype) descr = kind.descr;
  std::string sizes;
  size_t bytes = item_size(dtype);
  for (int64_t dim : shape) sizes += std::to_string(dim) + ", ", bytes *= static_cast<size_t>(dim);
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  header += std::string(63 - (10 + header.size()) % 64, ' ') + "\n";
  std::ofstream file(path, std::ios::binary);
  file.write(kMagic, 6).write("\x01\x00", 2);
  file.put(static_cast<char>(header.size() & 255)).put(static_cast<char>(header.size() >> 8));
  file.write(header.data(), static_cast<std::streamsize>(header.size())).write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw relaxc::Error(RELAXC_INVALID_OPTION, "cannot write " + path);
}
