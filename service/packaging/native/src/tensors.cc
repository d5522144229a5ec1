#include "tensors.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <new>

#include "dims.h"
#include "failure.h"
#include "manifest.h"

namespace relaxc_runtime {
namespace {

namespace ffi = tvm::ffi;

/// A DLPack tensor that keeps its owner and its shape.
struct Managed {
  DLManagedTensor tensor{};
  std::vector<int64_t> shape;
  std::shared_ptr<const void> owner;
};

ffi::Shape shape_of(const std::vector<int64_t>& shape) { return ffi::Shape(shape.begin(), shape.end()); }

}  // namespace

ffi::Tensor wrap(void* data, const std::string& dtype, const std::vector<int64_t>& shape, std::shared_ptr<const void> owner) {
  auto managed = std::make_unique<Managed>();
  managed->shape = shape;
  managed->owner = std::move(owner);
  managed->tensor.dl_tensor = {data, {kDLCPU, 0}, static_cast<int32_t>(shape.size()), ffi::StringToDLDataType(ffi::String(dtype)),
                               managed->shape.data(), nullptr, 0};
  managed->tensor.manager_ctx = managed.get();
  managed->tensor.deleter = [](DLManagedTensor* self) { delete static_cast<Managed*>(self->manager_ctx); };
  ffi::Tensor tensor = ffi::Tensor::FromDLPack(&managed->tensor);
  managed.release();
  return tensor;
}

ffi::Tensor empty(const std::string& dtype, const std::vector<int64_t>& shape, DLDevice device) {
  static const ffi::Function allocator = ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  return allocator(shape_of(shape), ffi::StringToDLDataType(ffi::String(dtype)), device, nullptr).cast<ffi::Tensor>();
}

void copy(const ffi::Tensor& from, const ffi::Tensor& to) {
  static const ffi::Function copier = ffi::Function::GetGlobalRequired("runtime.TVMTensorCopyFromTo");
  copier(from, to);
}

std::shared_ptr<void> allocate(size_t size) {
  void* memory = std::aligned_alloc(kAlign, (size / kAlign + 1) * kAlign);
  if (!memory) throw std::bad_alloc();
  return std::shared_ptr<void>(memory, std::free);
}

size_t size_bytes(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
  size_t size = item_size(dtype);
  bool is_empty = false, is_too_large = false;
  for (int64_t dim : shape) {
    if (dim < 0) throw Failure(RELAXC_INPUT_SHAPE, in_quotes(name) + " has a negative size: " + shape_text(shape));
    is_empty |= !dim;
    is_too_large |= __builtin_mul_overflow(size, dim ? static_cast<size_t>(dim) : 1, &size);
  }
  if (is_empty) return 0;
  if (is_too_large || size > static_cast<size_t>(PTRDIFF_MAX) - kAlign)
    throw Failure(RELAXC_INPUT_SHAPE, in_quotes(name) + " of " + shape_text(shape) + " is larger than any memory");
  return size;
}

std::string dtype_name(DLDataType dtype) {
  ffi::String text = ffi::DLDataTypeToString(dtype);
  return std::string(text.data(), text.size());
}

}  // namespace relaxc_runtime
