// Arrays that a kernel is given and makes.

#pragma once

#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::S32>;
using Made = ffi::Result<Floats>;

// The numbers of `made`, which begins as `given`: they are the same memory where the argument was donated.
static float* taken(const Floats& given, Made& made) {
  if (made->typed_data() != given.typed_data()) std::memcpy(made->typed_data(), given.typed_data(), given.size_bytes());
  return made->typed_data();
}
