// KV caches in pages: a pool [pages, .., PAGE_TOKENS, ..], and a table with a row for each sequence: its tokens before
// an inference, its tokens afterwards, then the numbers of its pages.
#pragma once

#include "strided.cuh"

constexpr int PAGE_TOKENS = 16;  // as in ovgpu/ops/fused/kv_cache.py
constexpr int FIRST_PAGE = 2;    // index of the first page in a row of the table

// Return the offset in a pool of the page that a token is in. It has 64 bits: a pool may be large where a page is small.
template <class I>
__device__ __forceinline__ long long page_offset(const int* row, I token, I page_stride) {
  return static_cast<long long>(row[FIRST_PAGE + static_cast<unsigned>(token) / PAGE_TOKENS]) * page_stride;
}

// Return the index of a token in its page.
template <class I>
__device__ __forceinline__ I place_in_page(I token) {
  return static_cast<I>(static_cast<unsigned>(token) % PAGE_TOKENS);
}

// Lengths of a KV cache: before and after an inference, the same for all sequences, or a table of pages.
template <bool PAGED>
struct LengthType {
  using Type = long long;
};
template <>
struct LengthType<true> {
  using Type = int;
};
template <bool PAGED>
using Length = typename LengthType<PAGED>::Type;

// Return where a new token is written. Operand `own` of the axes is the cache. `lengths` points to the length before.
template <class T, class I, int R, int N>
__device__ __forceinline__ T* new_token(T* cache, const Axes<I, R, N>& axes, const I (&at)[R], int own, I token_stride,
                                        I, const long long* lengths) {
  return cache + *lengths * token_stride + offset(axes, at, own);
}

// The same for a pool. The next two operands are the token among the new ones, and the row of the table. Return null
// for tokens of a row that no sequence has.
template <class T, class I, int R, int N>
__device__ __forceinline__ T* new_token(T* pool, const Axes<I, R, N>& axes, const I (&at)[R], int own, I token_stride,
                                        I page_stride, const int* table) {
  const int* const row = table + offset(axes, at, own + 2);
  const I token = static_cast<I>(row[0]) + offset(axes, at, own + 1);
  if (token >= row[1]) return nullptr;
  return pool + page_offset(row, token, page_stride) + place_in_page(token) * token_stride + offset(axes, at, own);
}
