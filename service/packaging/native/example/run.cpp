// relaxc-run: loads an artifact, runs it on .npy files or random numbers, prints its outputs, and times it.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <relaxc/runtime.hpp>

#include "npy.hpp"
#include "report.hpp"

namespace {

constexpr char kUsage[] = R"(usage: relaxc-run [OPTIONS] [ARTIFACT.so]

Loads an artifact that relaxc compiled (default: model.so beside this program's folder), runs it, and prints its outputs.
Inputs that no file is given for are random: floats normal, integers 0 or 1.

  -i, --input NAME=FILE.npy  An input. Repeatable.
  -o, --outputs FOLDER       Write each output there, as its number and .npy (0.npy is the first).
  --dim NAME=SIZE            Size of a symbolic dim of random inputs. Repeatable. Default: the least it may have.
  --seed N                   Of random inputs. Default: 0.
  --runs N                   Time so many runs after the first. Default: 0.
  --threads N                Threads of CPU kernels. Default: RELAXC_THREADS, or this process's cores.
  --device NAME              cpu, cuda or cuda:N. Default: what the artifact was compiled for.
  --sha256 DIGEST            Refuse the artifact if its digest is another.
  --json                     Print JSON: load_s, first_s, run_s of each run, outputs.
  -h, --help                 Print this.

Exit status: 0; 2 for an option; 6 for an artifact or a machine that does not fit; 7 for inputs that do not.
)";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Arguments {
  std::string artifact, outputs;
  std::map<std::string, std::string> inputs;
  std::map<std::string, int64_t> dims;
  relaxc::Options options;
  uint64_t seed = 0;
  long runs = 0;
  bool json = false;
};

[[noreturn]] void wrong_option(const std::string& message) { throw relaxc::Error(RELAXC_INVALID_OPTION, message + "; see --help"); }

int64_t number_of(const std::string& text, const std::string& option) {
  char* end = nullptr;
  errno = 0;
  long long found = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || errno || found < 0) wrong_option(option + " takes a number, got '" + text + "'");
  return found;
}

std::pair<std::string, std::string> split(const std::string& text, const std::string& option) {
  size_t equals = text.rfind('=');
  if (equals == std::string::npos || !equals) wrong_option(option + " takes NAME=VALUE, got '" + text + "'");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Arguments parsed(int count, char** words) {
  Arguments found;
  std::string program = words[0];
  size_t slash = program.rfind('/');
  found.artifact = (slash == std::string::npos ? std::string(".") : program.substr(0, slash)) + "/../model.so";
  for (int index = 1; index < count; ++index) {
    std::string word = words[index];
    auto value = [&]() -> std::string {
      if (index + 1 >= count) wrong_option(word + " takes a value");
      return words[++index];
    };
    if (word == "-h" || word == "--help") std::fputs(kUsage, stdout), std::exit(0);
    else if (word == "-i" || word == "--input") found.inputs.insert(split(value(), word));
    else if (word == "-o" || word == "--outputs") found.outputs = value();
    else if (word == "--dim") {
      auto [name, size] = split(value(), word);
      found.dims[name] = number_of(size, word);
    } else if (word == "--seed") found.seed = static_cast<uint64_t>(number_of(value(), word));
    else if (word == "--runs") found.runs = static_cast<long>(std::min<int64_t>(number_of(value(), word), 1000000));
    else if (word == "--threads") found.options.threads = static_cast<int32_t>(std::min<int64_t>(number_of(value(), word), 1 << 20));
    else if (word == "--device") found.options.device = value();
    else if (word == "--sha256") found.options.sha256 = value();
    else if (word == "--json") found.json = true;
    else if (!word.empty() && word[0] == '-') wrong_option("there is no option " + word);
    else found.artifact = word;
  }
  return found;
}

uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Of normal numbers, which need neither subnormals nor infinities: what is too small is zero.
uint16_t float16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  int exponent = static_cast<int>(bits >> 23 & 255) - 112;
  uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (exponent <= 0) return sign;
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff)) + (bits >> 12 & 1)));
}

/// Fill with numbers that any model takes: floats normal, integers 0 or 1.
void fill(Array* array, size_t count, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  for (size_t index = 0; index < count; ++index) {
    const std::string& dtype = array->dtype;
    char* place = array->data + index * item_size(dtype);
    if (dtype == "float32" || dtype == "float64" || dtype == "float16" || dtype == "bfloat16") {
      float value = normal(*random);
      double wide = value;
      uint16_t half = dtype == "float16" ? float16_of(value) : bfloat16_of(value);
      if (dtype == "float32") std::memcpy(place, &value, 4);
      else if (dtype == "float64") std::memcpy(place, &wide, 8);
      else std::memcpy(place, &half, 2);
    } else {
      *place = static_cast<char>((*random)() >> 63);  // little-endian: the lowest byte first
    }
  }
}

Array random_array(const relaxc::Session& session, size_t index, const relaxc::Spec& spec, const std::map<std::string, int64_t>& given,
                   std::mt19937_64* random) {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  for (const auto& [name, size] : given) names.push_back(name), sizes.push_back(size);
  for (const std::string& dim : spec.shape) {  // expressions are over names that a shape has as they are
    int64_t least = 0, most = 0;
    if (given.count(dim) || relaxc_dim_bounds(session.get(), dim.c_str(), &least, &most)) continue;
    names.push_back(dim), sizes.push_back(std::max<int64_t>(least, 1));
  }
  std::vector<const char*> texts;
  for (const std::string& name : names) texts.push_back(name.c_str());
  Array array;
  array.dtype = spec.dtype;
  array.shape.resize(spec.shape.size());
  relaxc::check(relaxc_input_shape(session.get(), index, texts.data(), sizes.data(), sizes.size(), array.shape.data()));
  size_t count = 1;
  for (int64_t size : array.shape)
    if (__builtin_mul_overflow(count, static_cast<size_t>(size), &count) || count > size_t{1} << 40)
      throw relaxc::Error(RELAXC_INPUT_SHAPE, "input '" + spec.name + "' would be too large");
  array.resize(count * item_size(spec.dtype));
  fill(&array, count, random);
  return array;
}

void run(const Arguments& arguments) {
  Clock::time_point start = Clock::now();
  relaxc::Session session(arguments.artifact, arguments.options);
  double load_s = seconds_since(start);
  for (const auto& [dim, size] : arguments.dims) {
    int64_t least, most;
    if (relaxc_status status = relaxc_dim_bounds(session.get(), dim.c_str(), &least, &most)) throw relaxc::Error(status, relaxc_error_message());
  }
  std::mt19937_64 random(arguments.seed);
  std::vector<Array> arrays;
  std::vector<relaxc::Spec> specs = session.inputs();
  auto left = arguments.inputs;
  for (size_t index = 0; index < specs.size(); ++index) {
    auto file = left.find(specs[index].name);
    if (file == left.end()) {
      arrays.push_back(random_array(session, index, specs[index], arguments.dims, &random));
    } else {
      arrays.push_back(read_npy(file->second));
      left.erase(file);
    }
  }
  if (!left.empty()) throw relaxc::Error(RELAXC_INPUT_NAME, "there is no input '" + left.begin()->first + "'");
  std::vector<relaxc::Input> inputs;
  for (size_t index = 0; index < specs.size(); ++index)
    inputs.push_back({specs[index].name, arrays[index].dtype, arrays[index].shape, arrays[index].data});
  start = Clock::now();
  relaxc::Result result = session.run(inputs);
  double first_s = seconds_since(start);
  std::vector<double> run_s;
  for (long each = 0; each < arguments.runs; ++each) {
    start = Clock::now();
    relaxc::Result again = session.run(inputs);
    run_s.push_back(seconds_since(start));
  }
  for (size_t index = 0; !arguments.outputs.empty() && index < result.size(); ++index)
    write_npy(arguments.outputs + "/" + std::to_string(index) + ".npy", result[index].dtype(), result[index].shape(), result[index].raw());
  (arguments.json ? print_json : print_text)(session, {load_s, first_s, run_s}, result);
}

int exit_status(relaxc_status status) {
  switch (status) {
    case RELAXC_INVALID_OPTION: return 2;
    case RELAXC_INPUT_NAME:
    case RELAXC_INPUT_TYPE:
    case RELAXC_INPUT_SHAPE: return 7;
    case RELAXC_OUT_OF_MEMORY:
    case RELAXC_INTERNAL_ERROR: return 1;
    default: return 6;
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    run(parsed(count, words));
    return 0;
  } catch (const relaxc::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.code(), error.what());
    return exit_status(error.status());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "relaxc-error: %s\n", error.what());
    return 1;
  }
}
