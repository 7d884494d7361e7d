// Elements of any type as bytes that are loaded and stored together.
#pragma once

#include "common.cuh"

// SIZE bytes that are loaded and stored at once, or by 16 bytes.
template <int SIZE>
struct WordOf {
  using Type = unsigned;
};
template <>
struct WordOf<1> {
  using Type = unsigned char;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <int SIZE>
struct alignas(SIZE < 16 ? SIZE : 16) Bytes {
  typename WordOf<SIZE>::Type words[SIZE / sizeof(typename WordOf<SIZE>::Type)];
};
