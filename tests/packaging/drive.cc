// Opens each file that is named, asks it everything, and runs it on zeros: a line for each, with the status by name.
#include <cstdio>
#include <string>
#include <vector>

#include <relaxc/runtime.h>

namespace {

size_t item_size(const std::string& dtype) {
  return dtype.find("64") != std::string::npos ? 8 : dtype.find("32") != std::string::npos ? 4 : dtype.find("16") != std::string::npos ? 2 : 1;
}

relaxc_status ran(relaxc_session* session) {
  std::vector<relaxc_tensor> inputs;
  std::vector<std::vector<int64_t>> shapes(relaxc_input_count(session));
  std::vector<std::vector<char>> memory(shapes.size());
  const char* dims[] = {"batch"};
  const int64_t sizes[] = {2};
  for (size_t index = 0; index < shapes.size(); ++index) {
    relaxc_spec spec;
    if (relaxc_status status = relaxc_input(session, index, &spec)) return status;
    shapes[index].resize(spec.rank);
    if (relaxc_status status = relaxc_input_shape(session, index, dims, sizes, 1, shapes[index].data())) return status;
    size_t bytes = item_size(spec.dtype);
    for (int64_t size : shapes[index])
      if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes) || bytes > size_t{1} << 28) return RELAXC_INPUT_SHAPE;
    memory[index].resize(bytes);
    inputs.push_back({index % 2 ? spec.name : nullptr, spec.dtype, spec.rank, shapes[index].data(), memory[index].data()});
  }
  relaxc_result* result = nullptr;
  relaxc_status status = relaxc_run(session, inputs.data(), inputs.size(), &result);
  for (size_t index = 0; index <= relaxc_result_count(result); ++index) {
    relaxc_tensor tensor;
    if (relaxc_result_tensor(result, index, &tensor)) continue;
    size_t bytes = item_size(tensor.dtype);
    for (size_t axis = 0; axis < tensor.rank; ++axis) bytes *= static_cast<size_t>(tensor.shape[axis]);
    unsigned char sum = 0;
    for (size_t place = 0; place < bytes; ++place) sum = static_cast<unsigned char>(sum + static_cast<unsigned char*>(tensor.data)[place]);
    volatile unsigned char kept = sum;
    (void)kept;
  }
  relaxc_result_free(result);
  return status;
}

}  // namespace

int main(int count, char** paths) {
  for (int index = 1; index < count; ++index) {
    std::printf("%s ", paths[index]);
    std::fflush(stdout);
    relaxc_options options{};
    options.size = sizeof options;
    options.threads = 1;
    relaxc_session* session = nullptr;
    relaxc_status status = relaxc_open(paths[index], &options, &session);
    if (!status) status = ran(session);
    relaxc_close(session);
    std::printf("%s\n", relaxc_status_name(status));
    std::fflush(stdout);
  }
  return 0;
}
