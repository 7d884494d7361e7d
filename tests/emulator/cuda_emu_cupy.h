// Types that CuPy's headers offer to the operation of an ElementwiseKernel: float16, bfloat16, CArray, CIndexer.
#pragma once

#include "cuda_emu.h"

namespace cupy_emu {

// CuPy's 16-bit types differ from the toolkit's: they convert to float, and arithmetic is float arithmetic.
template <class Storage>
class Float16 {
  Storage data_;

 public:
  Float16() = default;
  Float16(float value) : data_(value) {}
  explicit Float16(bool value) : data_(static_cast<float>(value)) {}
  explicit Float16(double value) : data_(static_cast<float>(value)) {}
  explicit Float16(int value) : data_(static_cast<float>(value)) {}
  explicit Float16(unsigned value) : data_(static_cast<float>(value)) {}
  explicit Float16(long long value) : data_(static_cast<float>(value)) {}
  explicit Float16(unsigned long long value) : data_(static_cast<float>(value)) {}
  explicit Float16(const Storage& value) : data_(value) {}
  template <class Other, class = std::enable_if_t<!std::is_same_v<Other, Storage>>>
  explicit Float16(const Float16<Other>& value) : data_(static_cast<float>(value)) {}

  operator float() const { return static_cast<float>(data_); }

  Float16& operator=(const Float16&) = default;
  template <class T>
  Float16& operator=(const T& value) {
    return *this = static_cast<Float16>(value);
  }
  template <class T>
  Float16& operator+=(const T& value) {
    return *this = *this + value;
  }
  template <class T>
  Float16& operator-=(const T& value) {
    return *this = *this - value;
  }
  template <class T>
  Float16& operator*=(const T& value) {
    return *this = *this * value;
  }
  template <class T>
  Float16& operator/=(const T& value) {
    return *this = *this / value;
  }

  unsigned short to_bits() const { return data_.bits; }
  static Float16 from_bits(unsigned short bits) { return Float16(emu::bit_cast<Storage>(bits)); }
};

}  // namespace cupy_emu

using float16 = cupy_emu::Float16<__half>;
using bfloat16 = cupy_emu::Float16<__nv_bfloat16>;

template <class T>
inline bool isnan(const cupy_emu::Float16<T>& x) {
  return std::isnan(static_cast<float>(x));
}
template <class T>
inline bool isinf(const cupy_emu::Float16<T>& x) {
  return std::isinf(static_cast<float>(x));
}
template <class T>
inline bool isfinite(const cupy_emu::Float16<T>& x) {
  return std::isfinite(static_cast<float>(x));
}
template <class T>
inline cupy_emu::Float16<T> min(cupy_emu::Float16<T> a, cupy_emu::Float16<T> b) {
  return float(b) < float(a) ? b : a;
}
template <class T>
inline cupy_emu::Float16<T> max(cupy_emu::Float16<T> a, cupy_emu::Float16<T> b) {
  return float(a) < float(b) ? b : a;
}

// The index of the element that a thread works on; shape in elements, row-major.
template <int rank>
class CIndexer {
  ptrdiff_t size_;
  ptrdiff_t shape_[rank ? rank : 1];
  ptrdiff_t index_[rank ? rank : 1];

 public:
  ptrdiff_t size() const { return size_; }
  const ptrdiff_t* shape() const { return shape_; }
  const ptrdiff_t* get() const { return index_; }
  void set(ptrdiff_t linear) {
    for (int axis = rank - 1; axis > 0; --axis) {
      index_[axis] = linear % shape_[axis];
      linear /= shape_[axis];
    }
    if (rank > 0) index_[0] = linear;
  }
};

// A strided array; strides in bytes. `array[i]` counts elements in row-major order.
template <class T, int rank>
class CArray {
  T* data_;
  ptrdiff_t size_;
  ptrdiff_t shape_[rank ? rank : 1];
  ptrdiff_t strides_[rank ? rank : 1];

 public:
  static const int ndim = rank;
  ptrdiff_t size() const { return size_; }
  const ptrdiff_t* shape() const { return shape_; }
  const ptrdiff_t* strides() const { return strides_; }

  // As in CuPy, an element of a const array is const: inputs cannot be written.
  T& operator[](const ptrdiff_t* index) { return *at(index); }
  const T& operator[](const ptrdiff_t* index) const { return *at(index); }
  template <class Int>
  T& operator[](const Int (&index)[rank ? rank : 1]) {
    return *at(index);
  }
  template <class Int>
  const T& operator[](const Int (&index)[rank ? rank : 1]) const {
    return *at(index);
  }
  T& operator[](ptrdiff_t linear) { return *at_linear(linear); }
  const T& operator[](ptrdiff_t linear) const { return *at_linear(linear); }

 private:
  T* advance(ptrdiff_t bytes) const { return reinterpret_cast<T*>(reinterpret_cast<char*>(data_) + bytes); }

  template <class Index>
  T* at(const Index& index) const {
    ptrdiff_t offset = 0;
    for (int axis = 0; axis < rank; ++axis) offset += index[axis] * strides_[axis];
    return advance(offset);
  }

  T* at_linear(ptrdiff_t linear) const {
    ptrdiff_t offset = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      offset += linear % shape_[axis] * strides_[axis];
      linear /= shape_[axis];
    }
    if (rank > 0) offset += linear * strides_[0];
    return advance(offset);
  }
};
