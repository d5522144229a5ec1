// The functions of the C header: each ends in a status, and nothing is thrown out of them.
#include <relaxc/runtime.h>
#include <tvm/ffi/error.h>

#include <cstring>
#include <exception>
#include <new>

#include "failure.h"
#include "session.h"
#include "version.h"

using relaxc_runtime::Failure;
using relaxc_runtime::Output;
using relaxc_runtime::Session;
using relaxc_runtime::TensorSpec;

namespace {

/// A spec with C's pointers to its texts.
struct Named {
  explicit Named(const TensorSpec& spec) : spec(&spec) {
    for (const auto& dim : spec.shape) dims.push_back(dim.text().c_str());
  }
  const TensorSpec* spec;
  std::vector<const char*> dims;
};

std::vector<Named> named(const std::vector<TensorSpec>& specs) { return {specs.begin(), specs.end()}; }

}  // namespace

struct relaxc_session {
  relaxc_session(const std::string& path, const relaxc_options& options)
      : session(path, options), inputs(named(session.manifest().signature.inputs)), outputs(named(session.manifest().signature.outputs)) {}
  Session session;
  std::vector<Named> inputs, outputs;
};

struct relaxc_result {
  std::vector<Output> outputs;
};

namespace {

thread_local char message[2048];

relaxc_status failed(relaxc_status status, const char* text) noexcept {
  std::strncpy(message, text, sizeof message - 1);
  return status;
}

template <typename Call>
relaxc_status guarded(Call call) noexcept {
  try {
    call();
    return RELAXC_OK;
  } catch (const Failure& failure) {
    return failed(failure.status, failure.what());
  } catch (const std::bad_alloc&) {
    return failed(RELAXC_OUT_OF_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return failed(RELAXC_INTERNAL_ERROR, error.what());
  } catch (...) {
    return failed(RELAXC_INTERNAL_ERROR, "something was thrown that is no exception");
  }
}

void require(bool holds, const char* text) {
  if (!holds) throw Failure(RELAXC_INVALID_OPTION, text);
}

void fill(const std::vector<Named>& specs, size_t index, relaxc_spec* spec) {
  require(spec, "spec is NULL");
  require(index < specs.size(), "there is no tensor with that index");
  const Named& found = specs[index];
  *spec = {found.spec->name.c_str(), found.spec->dtype.c_str(), found.dims.size(), found.dims.data()};
}

}  // namespace

extern "C" {

int32_t relaxc_abi(void) { return RELAXC_ABI; }

const char* relaxc_tvm_version(void) { return RELAXC_TVM_VERSION; }

const char* relaxc_status_name(relaxc_status status) {
  switch (status) {
    case RELAXC_OK: return "ok";
    case RELAXC_ARTIFACT_NOT_FOUND: return "artifact-not-found";
    case RELAXC_ARTIFACT_CORRUPT: return "artifact-corrupt";
    case RELAXC_MACHINE_MISMATCH: return "machine-mismatch";
    case RELAXC_ARTIFACT_ERROR: return "artifact-error";
    case RELAXC_INPUT_NAME: return "input-name";
    case RELAXC_INPUT_TYPE: return "input-type";
    case RELAXC_INPUT_SHAPE: return "input-shape";
    case RELAXC_INVALID_OPTION: return "invalid-option";
    case RELAXC_OUT_OF_MEMORY: return "out-of-memory";
    case RELAXC_INTERNAL_ERROR: return "relaxc-error";
    case RELAXC_STATE_OVERFLOW: return "state-overflow";
  }
  return "unknown";
}

const char* relaxc_error_message(void) { return message; }

relaxc_status relaxc_open(const char* path, const relaxc_options* options, relaxc_session** session) {
  return guarded([&] {
    require(session, "session is NULL");
    *session = nullptr;
    require(path, "path is NULL");
    relaxc_options given{};
    if (options) {
      require(options->size >= offsetof(relaxc_options, threads) + sizeof given.threads, "options.size is not set");
      std::memcpy(&given, options, std::min(options->size, sizeof given));
    }
    *session = new relaxc_session(path, given);
  });
}

void relaxc_close(relaxc_session* session) { delete session; }

size_t relaxc_input_count(const relaxc_session* session) { return session ? session->inputs.size() : 0; }

size_t relaxc_output_count(const relaxc_session* session) { return session ? session->outputs.size() : 0; }

relaxc_status relaxc_input(const relaxc_session* session, size_t index, relaxc_spec* spec) {
  return guarded([&] {
    require(session, "session is NULL");
    fill(session->inputs, index, spec);
  });
}

relaxc_status relaxc_output(const relaxc_session* session, size_t index, relaxc_spec* spec) {
  return guarded([&] {
    require(session, "session is NULL");
    fill(session->outputs, index, spec);
  });
}

relaxc_status relaxc_dim_bounds(const relaxc_session* session, const char* dim, int64_t* minimum, int64_t* maximum) {
  return guarded([&] {
    require(session && dim && minimum && maximum, "an argument is NULL");
    const auto& bounds = session->session.manifest().signature.bounds;
    auto found = bounds.find(dim);
    if (found == bounds.end()) throw Failure(RELAXC_INPUT_NAME, "there is no symbolic dim " + relaxc_runtime::in_quotes(dim));
    *minimum = found->second.minimum;
    *maximum = found->second.maximum.value_or(-1);
  });
}

relaxc_status relaxc_input_shape(const relaxc_session* session, size_t index, const char* const* dims, const int64_t* sizes, size_t count,
                                 int64_t* shape) {
  return guarded([&] {
    require(session && (!count || (dims && sizes)), "an argument is NULL");
    require(index < session->inputs.size(), "there is no tensor with that index");
    const TensorSpec& spec = *session->inputs[index].spec;
    require(shape || spec.shape.empty(), "shape is NULL");
    relaxc_runtime::Sizes given;
    for (size_t place = 0; place < count; ++place) {
      require(dims[place], "a dim's name is NULL");
      given[dims[place]] = sizes[place];
    }
    for (size_t axis = 0; axis < spec.shape.size(); ++axis) {
      auto size = spec.shape[axis].evaluate(given);
      if (!size || *size < 0) throw Failure(RELAXC_INPUT_SHAPE, "the shape of " + spec.text() + " cannot be computed from the sizes given");
      shape[axis] = *size;
    }
  });
}

const char* relaxc_target(const relaxc_session* session) { return session ? session->session.target().name.c_str() : ""; }

int32_t relaxc_threads(const relaxc_session* session) { return session ? session->session.threads() : 0; }

const char* relaxc_manifest(const relaxc_session* session) { return session ? session->session.manifest().text.c_str() : ""; }

relaxc_status relaxc_run(relaxc_session* session, const relaxc_tensor* inputs, size_t count, relaxc_result** result) {
  return guarded([&] {
    require(result, "result is NULL");
    *result = nullptr;
    require(session, "session is NULL");
    *result = new relaxc_result{session->session.run(inputs, count)};
  });
}

size_t relaxc_result_count(const relaxc_result* result) { return result ? result->outputs.size() : 0; }

relaxc_status relaxc_result_tensor(const relaxc_result* result, size_t index, relaxc_tensor* tensor) {
  return guarded([&] {
    require(result && tensor, "an argument is NULL");
    require(index < result->outputs.size(), "there is no output with that index");
    const Output& output = result->outputs[index];
    *tensor = {output.name.c_str(), output.dtype.c_str(), output.shape.size(), output.shape.data(), output.data};
  });
}

void relaxc_result_free(relaxc_result* result) { delete result; }

relaxc_status relaxc_reset(relaxc_session* session) {
  return guarded([&] {
    require(session, "session is NULL");
    session->session.reset();
  });
}

}  // extern "C"
