// Numbers of an array in bfloat16 or float32, as vectors of float32.

#pragma once

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

typedef uint16_t Brain;  // the upper half of a float
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE Vec read(const float* p) { return load(p); }
INLINE void write(float* p, Vec v) { store(p, v); }
INLINE Vec read(const Brain* p) {
  return (Vec)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Bits) << 16);
}

// Rounds to the nearest number, halves to the even one; a NaN stays one.
INLINE void write(Brain* p, Vec v) {
  Bits bits = (Bits)v, rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  Ints real = v == v;
  rounded = (rounded & (Bits)real) | (0x7FC0 & ~(Bits)real);
  *reinterpret_cast<Halves*>(p) = __builtin_convertvector(rounded, Halves);
}

// Calls body(offset) for each vector of `width` numbers. The last one may be incomplete: tail(offset, numbers) copies its numbers.
template <typename Body, typename Tail>
INLINE void across(int64_t width, const Body& body, const Tail& tail) {
  int64_t d = 0;
  for (; d + LANES <= width; d += LANES) body(d);
  if (d < width) tail(d, width - d);
}

// The first `count` numbers at p, then zeros.
template <typename T>
INLINE Vec read_some(const T* p, int64_t count) {
  T some[LANES] = {};
  std::memcpy(some, p, count * sizeof(T));
  return read(some);
}
template <typename T>
INLINE void write_some(T* p, Vec v, int64_t count) {
  T some[LANES];
  write(some, v);
  std::memcpy(p, some, count * sizeof(T));
}

// Returns function(a value of the type of numbers), or an error for other types.
template <typename Function>
static xla::ffi::Error by_type(xla::ffi::DataType type, const Function& function) {
  if (type == xla::ffi::F32) return function(float{});
  if (type == xla::ffi::BF16) return function(Brain{});
  return xla::ffi::Error::InvalidArgument("the numbers must be bfloat16 or float32");
}
