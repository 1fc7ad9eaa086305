// Vectors of float32 as the compiler's own type, and conversions of the 16-bit types. Nothing here may be compiled with
// -ffast-math: masked scores are -inf, and a NaN that a row sees has to stay one.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "arguments.h"

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

static inline Vector load(const float* from) {
  Vector loaded;
  memcpy(&loaded, from, sizeof loaded);
  return loaded;
}
static inline void store(float* to, Vector values) { memcpy(to, &values, sizeof values); }
static inline Vector spread(float value) { return value - Vector{}; }  // x - 0 is x, which compilers know; -0 + 0 is not -0
static inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }  // b where a is NaN

static inline float sum_of(Vector values) {
  float total = 0;
  for (int lane = 0; lane < LANES; lane++) total += values[lane];
  return total;
}
static inline float largest_of(Vector values) {
  float most = values[0];
  for (int lane = 1; lane < LANES; lane++) most = values[lane] > most ? values[lane] : most;
  return most;
}
static inline bool any(Integers flags) {
  int32_t found = 0;
  for (int lane = 0; lane < LANES; lane++) found |= flags[lane];
  return found != 0;
}

// e^x within 2 units in the last place for x up to 88; 0 below -87.3, where float32 has no more than subnormal numbers.
// 2^n e^r with |r| at most half of ln 2, which is taken off in two parts; Taylor's polynomial for e^r.
static inline Vector exponential(Vector x) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, found in the low bits
  Vector within = x > spread(88.0f) ? spread(88.0f) : x;
  Vector shifted = within * spread(1.44269504f) + spread(shift);
  Vector n = shifted - spread(shift);
  Vector r = (within - n * spread(0.693359375f)) - n * spread(-2.12194440e-4f);
  Vector e = spread(1.0f / 5040);
  e = e * r + spread(1.0f / 720);
  e = e * r + spread(1.0f / 120);
  e = e * r + spread(1.0f / 24);
  e = e * r + spread(1.0f / 6);
  e = e * r + spread(0.5f);
  e = e * r + spread(1.0f);
  e = e * r + spread(1.0f);
  Integers bits, offset;
  Vector base = spread(shift);
  memcpy(&bits, &shifted, sizeof bits);
  memcpy(&offset, &base, sizeof offset);
  bits = (bits - offset + 127) << 23;
  Vector power;
  memcpy(&power, &bits, sizeof power);
  Vector result = e * power;
  return x < spread(-87.3f) ? Vector{} : result;
}

static inline float from_bfloat16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
static inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}
static inline float from_float16(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = bits & 0x7fff, wide;
  float value;
  if (rest < 0x400) {  // zero and subnormal numbers, in steps of 2^-24
    value = static_cast<float>(rest) * 5.9604644775390625e-8f;
    memcpy(&wide, &value, sizeof wide);
  } else {
    wide = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
  }
  wide |= sign;
  memcpy(&value, &wide, sizeof value);
  return value;
}
static inline uint16_t to_float16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;  // rounds to more than the largest
  if (size < 0x38800000) {                       // subnormal: whole steps of 2^-24, rounded by the addition
    float small;
    memcpy(&small, &size, sizeof small);
    return sign | static_cast<uint16_t>(std::lrintf(small * 16777216.0f));
  }
  return sign | static_cast<uint16_t>((size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13);
}

// `count` numbers in steps of `step` elements, as float32.
static inline void widen(const char* from, DataType type, int64_t step, int64_t count, float* to, int64_t to_step = 1) {
  if (type == FLOAT32) {
    const float* own = reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < count; i++) to[i * to_step] = own[i * step];
    return;
  }
  const uint16_t* own = reinterpret_cast<const uint16_t*>(from);
  if (type == BFLOAT16)
    for (int64_t i = 0; i < count; i++) to[i * to_step] = from_bfloat16(own[i * step]);
  else
    for (int64_t i = 0; i < count; i++) to[i * to_step] = from_float16(own[i * step]);
}
static inline void narrow(const float* from, DataType type, int64_t count, char* to) {
  if (type == FLOAT32) {
    memcpy(to, from, count * 4);
    return;
  }
  uint16_t* own = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; i++) own[i] = type == BFLOAT16 ? to_bfloat16(from[i]) : to_float16(from[i]);
}
static inline int64_t bytes_of(DataType type) { return type == FLOAT32 || type == INT32 ? 4 : type == INT64 ? 8 : 2; }
