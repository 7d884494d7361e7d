// Elements of any type as bytes that are loaded and stored together.
#pragma once

#include "common.cuh"

// Type of the words that SIZE bytes consist of.
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

// SIZE bytes, aligned so that one instruction loads or stores all of them, or 16 at a time.
template <int SIZE>
struct alignas(SIZE < 16 ? SIZE : 16) Bytes {
  typename WordOf<SIZE>::Type words[SIZE / sizeof(typename WordOf<SIZE>::Type)];
};
