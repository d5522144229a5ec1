/* relaxc's runtime in C: loads an artifact that relaxc compiled and runs it, with neither Python nor a compiler.
 *
 * This header is the ABI of librelaxc_runtime.so, and all that it exports. What it has stays as it is as long as
 * RELAXC_ABI does: a struct that may grow begins with its size, and new functions are added at the end.
 *
 * Every function is safe to call from any thread. Calls of one session run at the same time, as many as there are cores,
 * each on memory of its own; those of an artifact for a GPU run one after the other. A process that was forked while no
 * thread of it was in a call may go on with sessions for CPUs, and ends by _exit. Loading runs code of the file: open
 * only artifacts that you trust.
 */
#ifndef RELAXC_RUNTIME_H_
#define RELAXC_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(RELAXC_BUILDING)
#define RELAXC_API __attribute__((visibility("default")))
#else
#define RELAXC_API
#endif

/* Raised when a program that was built with an older header would not run any more. */
#define RELAXC_ABI 1

/* How a call ended. The names (relaxc_status_name) are the codes that `relaxc --json` and the service use. */
typedef enum relaxc_status {
  RELAXC_OK = 0,
  RELAXC_ARTIFACT_NOT_FOUND = 1, /* no file at that path, or not the weights beside it */
  RELAXC_ARTIFACT_CORRUPT = 2,   /* not one of relaxc's, truncated, damaged, or its digest is another */
  RELAXC_MACHINE_MISMATCH = 3,   /* compiled for a machine that this one is not */
  RELAXC_ARTIFACT_ERROR = 4,     /* the program itself failed */
  RELAXC_INPUT_NAME = 5,         /* an input is missing, unknown or repeated */
  RELAXC_INPUT_TYPE = 6,         /* an input of a wrong dtype, or without data */
  RELAXC_INPUT_SHAPE = 7,        /* a wrong rank or size, or a symbolic dim outside its bounds */
  RELAXC_INVALID_OPTION = 8,     /* an option, or an argument of a call, outside its domain */
  RELAXC_OUT_OF_MEMORY = 9,
  RELAXC_INTERNAL_ERROR = 10,    /* a bug of ours */
  RELAXC_STATE_OVERFLOW = 11     /* the run would write outside of what the session keeps, which is as it was */
} relaxc_status;

typedef struct relaxc_session relaxc_session;
typedef struct relaxc_result relaxc_result;

/* Zero everything, set `size` to sizeof(relaxc_options), then what is wanted. */
typedef struct relaxc_options {
  size_t size;
  const char* device;  /* "cpu", "cuda" or "cuda:1"; NULL: what the artifact was compiled for */
  const char* sha256;  /* the file's SHA-256 in lower-case hex, which is then checked, weights and all; NULL: the code's alone */
  int32_t threads;     /* of CPU kernels; 0: RELAXC_THREADS of the environment, else this process's cores */
} relaxc_options;

/* A tensor of the signature. Pointers live as long as the session. */
typedef struct relaxc_spec {
  const char* name;
  const char* dtype;        /* bool, int8 … uint64, float16, bfloat16, float32, float64; floats of 8 and 4 bits and integers of 4
                               and 2 are uint8, a code a byte in its low bits, and the manifest's signature names them: `codes` */
  size_t rank;
  const char* const* shape; /* each a size ("224"), a name ("batch") or an expression over names ("2*seq + 1") */
} relaxc_spec;

/* A tensor in the host's memory, row-major. */
typedef struct relaxc_tensor {
  const char* name;     /* of an input: NULL means by its place */
  const char* dtype;
  size_t rank;
  const int64_t* shape; /* may be NULL where rank is 0 */
  void* data;           /* an input that is not aligned to 64 bytes is copied first; inputs are only read */
} relaxc_tensor;

/* RELAXC_ABI of the library; and the version of TVM whose runtime it belongs to. */
RELAXC_API int32_t relaxc_abi(void);
RELAXC_API const char* relaxc_tvm_version(void);

/* "artifact-corrupt" for RELAXC_ARTIFACT_CORRUPT. */
RELAXC_API const char* relaxc_status_name(relaxc_status status);

/* What the last call of this thread that failed has to say, one sentence. It lives until this thread's next call. */
RELAXC_API const char* relaxc_error_message(void);

/* Open the artifact at `path`; `options` may be NULL. Whatever is wrong with it is found before its code is loaded. */
RELAXC_API relaxc_status relaxc_open(const char* path, const relaxc_options* options, relaxc_session** session);

/* Close it; its results stay. NULL is nothing to close. */
RELAXC_API void relaxc_close(relaxc_session* session);

/* How many inputs and outputs there are, and what each is, in the model's order. */
RELAXC_API size_t relaxc_input_count(const relaxc_session* session);
RELAXC_API size_t relaxc_output_count(const relaxc_session* session);
RELAXC_API relaxc_status relaxc_input(const relaxc_session* session, size_t index, relaxc_spec* spec);
RELAXC_API relaxc_status relaxc_output(const relaxc_session* session, size_t index, relaxc_spec* spec);

/* The bounds of a symbolic dim, both ends included; `maximum` is -1 where there is none. */
RELAXC_API relaxc_status relaxc_dim_bounds(const relaxc_session* session, const char* dim, int64_t* minimum, int64_t* maximum);

/* The size of each dim of input `index` where symbolic dims have these sizes; `shape` has room for its rank. */
RELAXC_API relaxc_status relaxc_input_shape(const relaxc_session* session, size_t index, const char* const* dims,
                                            const int64_t* sizes, size_t count, int64_t* shape);

/* What it is compiled for (`x86-64-v4`), and how many threads its kernels use. */
RELAXC_API const char* relaxc_target(const relaxc_session* session);
RELAXC_API int32_t relaxc_threads(const relaxc_session* session);

/* The manifest, which says all that is known of the artifact, as JSON. */
RELAXC_API const char* relaxc_manifest(const relaxc_session* session);

/* Run it. Every input has to be there, by name or by place. The result holds all outputs. */
RELAXC_API relaxc_status relaxc_run(relaxc_session* session, const relaxc_tensor* inputs, size_t count, relaxc_result** result);

/* The outputs of a run, in the model's order. Their memory belongs to the result. */
RELAXC_API size_t relaxc_result_count(const relaxc_result* result);
RELAXC_API relaxc_status relaxc_result_tensor(const relaxc_result* result, size_t index, relaxc_tensor* tensor);
RELAXC_API void relaxc_result_free(relaxc_result* result);

/* Have the state of before the first run, where the model keeps any: each run goes on from what the last has left, so those of one
 * session run one after the other. */
RELAXC_API relaxc_status relaxc_reset(relaxc_session* session);

#ifdef __cplusplus
}
#endif
#endif /* RELAXC_RUNTIME_H_ */
