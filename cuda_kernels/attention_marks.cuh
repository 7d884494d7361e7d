// Marks: classes of the tiles of an attention mask. attention_marks.cu writes them; attention_mma.cu reads them to skip
// tiles whose keys are hidden, and masks that change nothing.
#pragma once

#include "common.cuh"

// Size of the tiles that a mask is divided into. A warp's tile of queries has MARK_QUERIES rows as well.
constexpr int MARK_QUERIES = 16;  // rows
constexpr int MARK_KEYS = 64;     // columns

// Classes of tiles: all elements are 0; mixed; all keys are hidden; all elements are below LOWEST. LOW is internal to
// attention_marks.cu, which replaces it by HIDDEN or MIXED.
enum Mark : unsigned char { OPEN, MIXED, HIDDEN, LOW };

// A word has a mark in each byte: the marks of eight adjacent query tiles for one key tile.
constexpr int MARK_BITS = 8;
constexpr unsigned long long ALL_HIDDEN = HIDDEN * (~0ull / 0xff);  // ~0 / 0xff has a 1 in each byte
static_assert(sizeof(Mark) * 8 == MARK_BITS && OPEN == 0, "a byte per mark, and a word of OPEN marks is 0");

// Bitmasks over 32 mask tiles of keys. A `skipped` tile hides all its keys from all queries of the block, an `open` one
// changes none of their scores. `absent` and `plain` are the same for the queries of the warp.
struct Window {
  unsigned skipped, open, absent, plain;
};

// Load the window of key tiles [first_tile, first_tile + 32), of `tiles` in all; those behind the last one count as
// hidden. A block has QUERY_TILES adjacent query tiles, 4 or 8, and the calling warp has OWN of them, from index
// `begin` on. `marks` points to the block's first query tile; the marks of neighbouring key tiles are `pitch` bytes
// apart.
template <int QUERY_TILES, int OWN>
__device__ __forceinline__ Window load_window(const unsigned char* marks, int tiles, int pitch, int first_tile,
                                              int begin) {
  const int tile = first_tile + static_cast<int>(threadIdx.x) % 32;
  constexpr unsigned long long FULL = QUERY_TILES == 8 ? ALL_HIDDEN : ALL_HIDDEN >> 32;
  unsigned long long seen = FULL;
  if (tile < tiles) {
    const unsigned char* row_marks = marks + static_cast<long long>(tile) * pitch;
    if (QUERY_TILES == 8) seen = *reinterpret_cast<const unsigned long long*>(row_marks);
    if (QUERY_TILES == 4) seen = *reinterpret_cast<const unsigned*>(row_marks);
  }
  constexpr unsigned long long PART = (1ull << MARK_BITS * OWN) - 1;
  const unsigned long long own = seen >> MARK_BITS * begin & PART;
  return {__ballot_sync(0xffffffffu, seen == FULL), __ballot_sync(0xffffffffu, seen == 0),
          __ballot_sync(0xffffffffu, own == (ALL_HIDDEN & PART)), __ballot_sync(0xffffffffu, own == 0)};
}
