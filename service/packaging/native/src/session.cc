#include "session.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "blocks.h"
#include "checks.h"
#include "cuda.h"
#include "failure.h"
#include "machine.h"
#include "pool.h"
#include "threads.h"
#include "weights.h"

namespace relaxc_runtime {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kSmallElements = 16 << 10;
constexpr int kMaxThreads = 1024;

std::string first_line(const ffi::Error& error) {
  std::string text = error.message();
  size_t start = text.find_first_not_of(" \n\t");
  if (start == std::string::npos) return error.kind();
  return text.substr(start, std::min<size_t>(text.find('\n', start) - start, 500));
}

/// The folder of this library, where TVM's are.
std::string own_folder() {
  Dl_info info{};
  static const char here = 0;
  std::string path = dladdr(&here, &info) && info.dli_fname ? info.dli_fname : "";
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

/// Register what few programs call (sorting), where it was packed.
void load_extra() {
  static void* const loaded = dlopen((own_folder() + "/libtvm_runtime_extra.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  (void)loaded;
}

/// A file in memory with these bytes of another.
int copied(const File& file, Section code) {
  int descriptor = memfd_create("relaxc", MFD_CLOEXEC);
  if (descriptor < 0) throw std::bad_alloc();
  try {
    std::vector<char> block(1 << 20);
    for (uint64_t done = 0; done < code.size;) {
      size_t part = static_cast<size_t>(std::min<uint64_t>(block.size(), code.size - done));
      file.read(code.offset + done, block.data(), part);
      if (write(descriptor, block.data(), part) != static_cast<ssize_t>(part)) throw std::bad_alloc();
      done += part;
    }
  } catch (...) {
    close(descriptor);
    throw;
  }
  return descriptor;
}

/// What to call a library within a file: the loader takes whole files only, so it is given a copy in memory. There is one for all
/// sessions of this process, open until it ends.
std::string name_inside(const File& file, Section code) {
  using Key = std::tuple<dev_t, ino_t, int64_t, int64_t, uint64_t, uint64_t>;
  static std::mutex copying;
  static std::map<Key, int> copies;
  struct stat seen {};
  if (fstat(file.descriptor(), &seen)) corrupt("cannot read " + file.path() + ": " + std::strerror(errno));
  Key key{seen.st_dev, seen.st_ino, seen.st_mtim.tv_sec, seen.st_mtim.tv_nsec, file.size(), code.offset};
  std::lock_guard<std::mutex> lock(copying);
  auto known = copies.find(key);
  if (known == copies.end()) known = copies.emplace(key, copied(file, code)).first;
  return "/proc/self/fd/" + std::to_string(known->second);
}

std::string resolved(const std::string& path) {
  std::unique_ptr<char, decltype(&std::free)> found(realpath(path.c_str(), nullptr), std::free);
  if (!found) throw Failure(RELAXC_ARTIFACT_NOT_FOUND, "there is no file " + path);
  return found.get();
}

/// What to call the file before the dynamic loader, which knows libraries by name: of a file that was put in the place of one that
/// is loaded it would give that one's code. Such a file gets the name of a descriptor, open until the process ends.
std::string name_of(const std::string& path, const File& file) {
  using Id = std::pair<dev_t, ino_t>;
  static std::mutex naming;
  static std::map<std::string, Id> named;
  static std::map<Id, int> opened;
  std::string whole = resolved(path);
  struct stat own {}, there {};
  if (fstat(file.descriptor(), &own) || stat(whole.c_str(), &there)) corrupt("cannot read " + path + ": " + std::strerror(errno));
  Id id{own.st_dev, own.st_ino};
  std::lock_guard<std::mutex> lock(naming);
  if (id == Id(there.st_dev, there.st_ino) && named.try_emplace(whole, id).first->second == id) return whole;
  auto [known, is_new] = opened.try_emplace(id, -1);
  if (is_new) known->second = fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (known->second < 0) {
    opened.erase(known);
    throw std::bad_alloc();
  }
  return "/proc/self/fd/" + std::to_string(known->second);
}

}  // namespace

Session::Session(const std::string& path, const relaxc_options& options) {
  auto file = std::make_shared<File>(path);
  std::map<std::string, Section> sections = read_sections(*file);
  manifest_ = read_manifest(*file, sections);
  place_ = chosen(manifest_);
  check_machine(manifest_, place_);
  const Part& part = manifest_.parts[place_];
  threads_ = options.threads ? options.threads : default_threads();
  if (threads_ < 1 || threads_ > kMaxThreads)
    throw Failure(RELAXC_INVALID_OPTION, "threads must be 1 to 1024, not " + std::to_string(threads_));
  choose_device(options.device);
  auto [weights_file, image] = find_weights(file, sections, manifest_.weights);
  check_file(*file, sections, manifest_, *weights_file, image);
  if (options.sha256) {
    check_digest(*file, options.sha256);
    if (manifest_.weights.file) check_digest(*weights_file, *manifest_.weights.sha256);
  }
  std::vector<TensorSpec> table;
  for (size_t index : part.weights) table.push_back(manifest_.weights.tensors[index]);
  weights_ = map_weights(*weights_file, image, table);
  if (!on_host()) {
    uint64_t bytes = 0;
    for (const ffi::Tensor& weight : weights_) bytes += ffi::GetDataSize(weight);
    require_memory(bytes, part.planned_bytes, device_.device_id);
    for (size_t index = 0; index < weights_.size(); ++index) {
      std::vector<int64_t> shape(weights_[index].shape().begin(), weights_[index].shape().end());
      ffi::Tensor there = empty(table[index].dtype, shape, device_);
      copy(weights_[index], there);
      weights_[index] = there;
    }
  }
  const Signature& signature = manifest_.signature;
  if (signature.initial.size() > weights_.size()) corrupt("the artifact lacks first values of its state");
  auto initial = weights_.end() - static_cast<std::ptrdiff_t>(signature.initial.size());
  first_.assign(initial, weights_.end());
  weights_.erase(initial, weights_.end());
  reset();
  load_program(path, sections, *file);
}

void Session::reset() {
  const Signature& signature = manifest_.signature;
  std::vector<ffi::Tensor> made;
  for (const TensorSpec& spec : signature.state) {
    std::vector<int64_t> shape;
    for (const Dim& dim : spec.shape) shape.push_back(*dim.evaluate({}));
    ffi::Tensor tensor = empty(spec.dtype, shape, device_);
    auto known = std::find(signature.initial.begin(), signature.initial.end(), spec.name);
    if (known != signature.initial.end()) {
      const ffi::Tensor& first = first_[static_cast<size_t>(known - signature.initial.begin())];
      if (first.shape().size() != shape.size() || ffi::GetDataSize(first) != ffi::GetDataSize(tensor)) corrupt("the first value of " + in_quotes(spec.name) + " does not fit it");
      copy(first, tensor);
    } else {
      size_t size = ffi::GetDataSize(tensor);
      std::shared_ptr<void> zeros = allocate(size);
      if (size) std::memset(zeros.get(), 0, size);
      copy(wrap(zeros.get(), spec.dtype, shape, zeros), tensor);
    }
    made.push_back(tensor);
  }
  std::lock_guard<std::mutex> lock(stepping_);
  state_ = std::move(made);
}

/// Keep the next values of the state, which are last: as they are where they were written in place, taken over where a kernel made
/// them, copied where they lie in what is not ours. Throws state-overflow, before it changes anything, where a place was outside.
void Session::adopt(const ffi::Array<ffi::Any>& results, std::vector<Extent> taken) {
  size_t outputs = manifest_.signature.outputs.size(), at = outputs;
  if (results.size() > outputs + state_.size()) {
    ffi::Tensor told = results[static_cast<int64_t>(at++)].cast<ffi::Tensor>();
    ffi::Tensor here = empty("int64", {}, {kDLCPU, 0});
    copy(told, here);
    if (int64_t excess = *static_cast<int64_t*>(here.data_ptr()); excess > 0)
      throw Failure(RELAXC_STATE_OVERFLOW, "the call writes " + std::to_string(excess) + " places outside of the state, which is as it was");
  }
  auto extent = [](const ffi::Tensor& tensor) {
    uintptr_t start = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.byte_offset();
    return Extent{start, start + ffi::GetDataSize(tensor)};
  };
  for (size_t index = 0; index < outputs; ++index) taken.push_back(extent(results[static_cast<int64_t>(index)].cast<ffi::Tensor>()));
  for (const ffi::Tensor& held : state_) taken.push_back(extent(held));
  std::vector<ffi::Tensor> made;
  for (const ffi::Tensor& held : state_) {
    ffi::Tensor next = results[static_cast<int64_t>(at++)].cast<ffi::Tensor>();
    Extent own = extent(next);
    if (own.first == extent(held).first) {
      made.push_back(held);
      continue;
    }
    bool overlaps = std::any_of(taken.begin(), taken.end(), [&](const Extent& other) { return own.first < other.second && other.first < own.second; });
    taken.push_back(own);
    if (overlaps || next.numel() <= kSmallElements) {
      std::vector<int64_t> shape(next.shape().begin(), next.shape().end());
      ffi::Tensor copied = empty(dtype_name(next.dtype()), shape, device_);
      copy(next, copied);
      next = copied;
    }
    made.push_back(next);
  }
  state_ = std::move(made);
}

void Session::choose_device(const char* asked) {
  std::string natural = target().kind == "cuda" ? "cuda" : "cpu", text = asked ? asked : natural;
  size_t colon = text.find(':');
  std::string kind = text.substr(0, colon), index = colon == std::string::npos ? "0" : text.substr(colon + 1);
  bool fits = (kind == "cpu" || kind == "cuda") && !index.empty() && index.size() < 4 && index.find_first_not_of("0123456789") == std::string::npos;
  if (!fits) throw Failure(RELAXC_INVALID_OPTION, "device " + in_quotes(text) + " is not cpu, cuda or cuda:N");
  if (kind != natural) throw Failure(RELAXC_MACHINE_MISMATCH, "this artifact was compiled for " + natural + ", it does not run on " + text);
  device_ = {kind == "cuda" ? kDLCUDA : kDLCPU, std::stoi(index)};
  if (!on_host()) load_cuda_runtime(own_folder());
}

void Session::load_program(const std::string& path, const std::map<std::string, Section>& sections, const File& file) {
  load_extra();
  relaxc_pool_start(cpu_cores());  // what is loaded from now on runs on it
  const Part& part = manifest_.parts[place_];
  std::string library = part.section ? name_inside(file, section_of(part, sections, file)) : name_of(path, file);
  try {
    library_ = ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so")(ffi::String(library), ffi::String("so"));
  } catch (const ffi::Error& error) {
    corrupt(path + " cannot be loaded: " + first_line(error));
  }
  size_t inputs = manifest_.signature.inputs.size() + state_.size();
  int64_t arity = 0;
  try {
    programs_ = std::make_unique<Programs>(library_, device_, on_host() && state_.empty() ? cpu_cores() : 1);
    std::unique_ptr<Program> first = programs_->take();
    arity = function_of(first->machine, "get_function_arity", false)(ffi::String("main")).cast<int64_t>();
    programs_->give(std::move(first));
  } catch (const ffi::Error& error) {
    corrupt("the library holds no program of ours: " + first_line(error));
  }
  bool fits = arity == static_cast<int64_t>(inputs + 1) || (arity == static_cast<int64_t>(inputs) && weights_.empty());
  if (!fits)
    corrupt("its main takes " + std::to_string(arity) + " arguments; the manifest names " + std::to_string(inputs) + " inputs and weights");
  has_tail_ = arity > static_cast<int64_t>(inputs);
  if (has_tail_) tail_ = ffi::Array<ffi::Tensor>(weights_.begin(), weights_.end());
}

std::vector<const relaxc_tensor*> Session::by_spec(const relaxc_tensor* inputs, size_t count) const {
  const std::vector<TensorSpec>& specs = manifest_.signature.inputs;
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs) names.push_back(spec.name);
  if (count && !inputs) throw Failure(RELAXC_INVALID_OPTION, "inputs is NULL");
  std::vector<const relaxc_tensor*> found(specs.size());
  for (size_t place = 0; place < count; ++place) {
    size_t index = place;
    if (inputs[place].name) {
      std::string name = inputs[place].name;
      if (manifest_.signature.constants.count(name))
        throw Failure(RELAXC_INPUT_NAME, "input " + in_quotes(name) + " was fixed when the model was exported, leave it out");
      index = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      if (index == names.size()) throw Failure(RELAXC_INPUT_NAME, "there is no input " + in_quotes(name) + "; there are " + joined(names));
    }
    if (index >= names.size())
      throw Failure(RELAXC_INPUT_NAME, std::to_string(count) + " inputs were given; it takes " + std::to_string(names.size()) + ": " + joined(names));
    if (found[index]) throw Failure(RELAXC_INPUT_NAME, "input " + in_quotes(names[index]) + " was given twice");
    found[index] = &inputs[place];
  }
  std::vector<std::string> missing;
  for (size_t index = 0; index < names.size(); ++index)
    if (!found[index]) missing.push_back(names[index]);
  if (!missing.empty()) throw Failure(RELAXC_INPUT_NAME, "inputs are missing: " + joined(missing));
  return found;
}

ffi::Tensor Session::tensor_of(Program& program, const relaxc_tensor& input, const TensorSpec& spec) const {
  std::vector<int64_t> shape(input.shape, input.shape + input.rank);
  size_t size = size_bytes("input " + in_quotes(spec.name), spec.dtype, shape);
  if (size && !input.data) throw Failure(RELAXC_INPUT_TYPE, "input " + in_quotes(spec.name) + " has no data");
  ffi::Tensor tensor{nullptr};
  if (size && reinterpret_cast<uintptr_t>(input.data) % kAlign == 0) {
    tensor = wrap(input.data, spec.dtype, shape, nullptr);
  } else {
    auto& [held, memory] = program.copies[spec.name];
    if (!memory || held < size) memory = allocate(size), held = size;
    if (size) std::memcpy(memory.get(), input.data, size);
    tensor = wrap(memory.get(), spec.dtype, shape, memory);
  }
  if (on_host()) return tensor;
  ffi::Tensor there = empty(spec.dtype, shape, device_);
  copy(tensor, there);
  return there;
}

Output Session::output_of(const TensorSpec& spec, const ffi::Tensor& tensor, std::vector<Extent>* taken) const {
  Output output{spec.name, dtype_name(tensor.dtype()), {tensor.shape().begin(), tensor.shape().end()}, nullptr, nullptr};
  if (!tensor.IsContiguous() || !item_size(output.dtype)) corrupt("output " + in_quotes(spec.name) + " is " + output.dtype + ", or not row-major");
  size_t size = ffi::GetDataSize(tensor);
  if (tensor.device().device_type != kDLCPU) {
    auto memory = allocate(size);
    if (size) ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyToBytes")(tensor, memory.get(), size);
    output.data = memory.get(), output.owner = memory;
    return output;
  }
  char* data = static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
  Extent own{reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(data) + size};
  bool overlaps = std::any_of(taken->begin(), taken->end(), [&](const Extent& other) { return own.first < other.second && other.first < own.second; });
  // Small ones may be constants inside the library.
  if (tensor.numel() <= kSmallElements || overlaps) {
    auto memory = allocate(size);
    if (size) std::memcpy(memory.get(), data, size);
    output.data = memory.get(), output.owner = memory;
  } else {
    taken->push_back(own);
    output.data = data, output.owner = std::make_shared<ffi::Tensor>(tensor);
  }
  return output;
}

std::vector<Output> Session::run(const relaxc_tensor* inputs, size_t count) {
  try {
    auto give = [this](Program* program) { programs_->give(std::unique_ptr<Program>(program)); };
    std::unique_ptr<Program, decltype(give)> program(programs_->take().release(), give);
    return run(*program, inputs, count);
  } catch (const ffi::Error& error) {
    throw Failure(RELAXC_ARTIFACT_ERROR, "the program failed: " + first_line(error));
  }
}

std::vector<Output> Session::run(Program& program, const relaxc_tensor* inputs, size_t count) {
  const std::vector<TensorSpec>& specs = manifest_.signature.inputs;
  std::vector<const relaxc_tensor*> given = by_spec(inputs, count);
  std::vector<std::vector<int64_t>> shapes;
  for (size_t index = 0; index < specs.size(); ++index) {
    std::string name = "input " + in_quotes(specs[index].name), dtype = given[index]->dtype ? given[index]->dtype : "without a dtype";
    if (dtype != specs[index].dtype) throw Failure(RELAXC_INPUT_TYPE, name + " is " + dtype + ", it takes " + specs[index].dtype);
    if (given[index]->rank > 64 || (given[index]->rank && !given[index]->shape)) throw Failure(RELAXC_INPUT_SHAPE, name + " has no shape");
    shapes.emplace_back(given[index]->shape, given[index]->shape + given[index]->rank);
  }
  bind_dims(manifest_.signature, shapes);
  std::vector<ffi::Any> arguments;
  std::vector<Extent> taken;
  auto note = [&](const ffi::Tensor& tensor) {
    uintptr_t start = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    taken.emplace_back(start, start + ffi::GetDataSize(tensor));
  };
  for (size_t index = 0; index < specs.size(); ++index) {
    ffi::Tensor tensor = tensor_of(program, *given[index], specs[index]);
    note(tensor);
    arguments.push_back(tensor);
  }
  std::unique_lock<std::mutex> stepping(stepping_, std::defer_lock);
  if (!state_.empty()) stepping.lock();
  for (const ffi::Tensor& held : state_) arguments.push_back(held);
  if (has_tail_) arguments.push_back(tail_);
  for (const ffi::Tensor& weight : weights_) note(weight);
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  if (on_host()) relaxc_pool_use(threads_);
  program.main.CallPacked(ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())), &result);
  auto tensors = result.as<ffi::Array<ffi::Any>>();
  const std::vector<TensorSpec>& outputs = manifest_.signature.outputs;
  size_t wanted = outputs.size() + state_.size();
  if (!tensors || (tensors->size() != wanted && (state_.empty() || tensors->size() != wanted + 1)))
    corrupt("it gave " + std::to_string(tensors ? tensors->size() : 0) + " outputs; its manifest has " + std::to_string(wanted));
  if (!state_.empty()) {
    adopt(*tensors, taken);
    for (const ffi::Tensor& held : state_) note(held);
  }
  std::vector<Output> found;
  for (size_t index = 0; index < outputs.size(); ++index)
    found.push_back(output_of(outputs[index], (*tensors)[static_cast<int64_t>(index)].cast<ffi::Tensor>(), &taken));
  return found;
}

}  // namespace relaxc_runtime
