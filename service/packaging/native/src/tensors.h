// Memory as TVM's tensors.
#pragma once
#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace relaxc_runtime {

/// Bytes: TVM's kernels may use loads that need it (kAllocAlignment).
constexpr uintptr_t kAlign = 64;

/// A row-major tensor over memory of the host, which `owner` keeps alive.
tvm::ffi::Tensor wrap(void* data, const std::string& dtype, const std::vector<int64_t>& shape, std::shared_ptr<const void> owner);

/// An empty tensor of TVM's on a device.
tvm::ffi::Tensor empty(const std::string& dtype, const std::vector<int64_t>& shape, DLDevice device);

/// Copy all of a tensor, from or to a device. Returns when it is done.
void copy(const tvm::ffi::Tensor& from, const tvm::ffi::Tensor& to);

/// Memory aligned to 64 bytes.
std::shared_ptr<void> allocate(size_t size);

/// The bytes of a tensor of these sizes; throws input-shape, naming it, for a negative size and what is no size_t.
size_t size_bytes(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);

/// The dtype's name in a signature.
std::string dtype_name(DLDataType dtype);

}  // namespace relaxc_runtime
