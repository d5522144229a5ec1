#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

namespace {

float float_of(uint16_t bits, bool is_bfloat16) {
  if (is_bfloat16) {
    uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  float value = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? std::ldexp(1024.f + fraction, exponent - 25) : std::ldexp(float(fraction), -24);
  return bits & 0x8000 ? -value : value;
}

template <typename T>
double as(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(value);
}

double element(const relaxc::Output& output, int64_t index) {
  static const std::map<std::string, double (*)(const void*, int64_t)> readers{
      {"bool", as<uint8_t>},    {"int8", as<int8_t>},     {"uint8", as<uint8_t>},   {"int16", as<int16_t>}, {"uint16", as<uint16_t>},
      {"int32", as<int32_t>},   {"uint32", as<uint32_t>}, {"int64", as<int64_t>},   {"uint64", as<uint64_t>}, {"float32", as<float>},
      {"float64", as<double>},
  };
  auto reader = readers.find(output.dtype());
  if (reader != readers.end()) return reader->second(output.raw(), index);
  return float_of(static_cast<uint16_t>(as<uint16_t>(output.raw(), index)), output.dtype() == "bfloat16");
}

struct Facts {
  double low = INFINITY, high = -INFINITY, sum = 0;
  int64_t finite = 0, other = 0;
};

Facts facts_of(const relaxc::Output& output) {
  Facts facts;
  for (int64_t index = 0; index < output.size(); ++index) {
    double value = element(output, index);
    if (!std::isfinite(value)) {
      ++facts.other;
      continue;
    }
    facts.low = std::min(facts.low, value), facts.high = std::max(facts.high, value), facts.sum += value;
    ++facts.finite;
  }
  return facts;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string escaped(const std::string& text) {
  std::string found;
  for (char each : text) {
    char code[8];
    if (each == '"' || each == '\\') found += '\\';
    if (static_cast<unsigned char>(each) < ' ') std::snprintf(code, sizeof code, "\\u%04x", each), found += code;
    else found += each;
  }
  return found;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return std::isfinite(value) ? text : "null";
}

}  // namespace

void print_json(const relaxc::Session& session, const Times& times, const relaxc::Result& result) {
  std::printf("{\"target\":\"%s\",\"threads\":%d,\"load_s\":%.6f,\"first_s\":%.6f,\"run_s\":[", escaped(session.target()).c_str(),
              session.threads(), times.load_s, times.first_s);
  for (size_t index = 0; index < times.run_s.size(); ++index) std::printf("%s%.6f", index ? "," : "", times.run_s[index]);
  std::printf("],\"outputs\":[");
  for (size_t index = 0; index < result.size(); ++index) {
    relaxc::Output output = result[index];
    Facts facts = facts_of(output);
    double mean = facts.finite ? facts.sum / static_cast<double>(facts.finite) : NAN;
    std::printf("%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":%s,\"min\":%s,\"mean\":%s,\"max\":%s,\"nonfinite\":%lld}", index ? "," : "",
                escaped(output.name()).c_str(), output.dtype().c_str(), shape_text(output.shape()).c_str(), number_text(facts.low).c_str(),
                number_text(mean).c_str(), number_text(facts.high).c_str(), static_cast<long long>(facts.other));
  }
  std::printf("]}\n");
}

void print_text(const relaxc::Session& session, const Times& times, const relaxc::Result& result) {
  for (size_t index = 0; index < result.size(); ++index) {
    relaxc::Output output = result[index];
    Facts facts = facts_of(output);
    std::printf("%s: %s%s", output.name().c_str(), output.dtype().c_str(), shape_text(output.shape()).c_str());
    if (facts.finite) std::printf("  min %.6g  mean %.6g  max %.6g", facts.low, facts.sum / static_cast<double>(facts.finite), facts.high);
    if (facts.other) std::printf("  NaN or Inf %lld", static_cast<long long>(facts.other));
    std::printf("\n  ");
    for (int64_t place = 0; place < std::min<int64_t>(output.size(), 6); ++place) std::printf("%s%.6g", place ? ", " : "", element(output, place));
    std::printf("%s\n", output.size() > 6 ? ", …" : "");
  }
  std::printf("%s, %d threads: loaded in %.1f ms, first run %.1f ms", session.target().c_str(), session.threads(), times.load_s * 1e3, times.first_s * 1e3);
  std::vector<double> run_s = times.run_s;
  std::sort(run_s.begin(), run_s.end());
  if (!run_s.empty()) std::printf(", median of %zu runs %.3f ms, least %.3f ms", run_s.size(), run_s[run_s.size() / 2] * 1e3, run_s[0] * 1e3);
  std::printf("\n");
}
