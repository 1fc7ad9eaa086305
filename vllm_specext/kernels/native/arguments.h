// What a body is called with: one array of 64-bit words, which operators.py fills in the order of the operator's schema
// and ends with the number of threads. A tensor is its address, data type, number of axes, sizes and strides (in
// elements); a float is the bits of a double.
#pragma once
#include <cstdint>
#include <cstring>

enum DataType : int64_t { FLOAT32, BFLOAT16, FLOAT16, INT32, INT64, BYTES };

struct Tensor {
  char* data;
  DataType type;
  int64_t axes;
  const int64_t* sizes;
  const int64_t* strides;

  template <class T> T* at(int64_t i = 0, int64_t j = 0, int64_t k = 0) const {
    int64_t offset = axes > 0 ? i * strides[0] : 0;
    if (axes > 1) offset += j * strides[1];
    if (axes > 2) offset += k * strides[2];
    return reinterpret_cast<T*>(data) + offset;
  }
  int64_t integer(int64_t i, int64_t j = 0, int64_t k = 0) const {
    return type == INT64 ? *at<int64_t>(i, j, k) : *at<int32_t>(i, j, k);
  }
  void store(int64_t value, int64_t i, int64_t j = 0, int64_t k = 0) const {
    if (type == INT64) *at<int64_t>(i, j, k) = value;
    else *at<int32_t>(i, j, k) = static_cast<int32_t>(value);
  }
};

class Arguments {
 public:
  explicit Arguments(const int64_t* words) : word(words) {}

  Tensor tensor() {
    Tensor made{reinterpret_cast<char*>(word[0]), static_cast<DataType>(word[1]), word[2], word + 3, word + 3 + word[2]};
    word += 3 + 2 * made.axes;
    return made;
  }
  int64_t integer() { return *word++; }
  float number() {
    double value;
    memcpy(&value, word++, sizeof value);
    return static_cast<float>(value);
  }

 private:
  const int64_t* word;
};

// What a body returns; operators.py raises for anything but DONE.
enum Status : int64_t { DONE, OUTSIDE };
