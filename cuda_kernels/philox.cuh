// Philox4x32-10 (Salmon et al. 2011): a block of four random words for a counter and a key.
#pragma once
#include "common.cuh"

// Write the block with index `block`. `counter` is the upper half of the counter.
__device__ __forceinline__ void philox_block(unsigned long long block, unsigned long long counter,
                                             unsigned long long key, unsigned (&word)[4]) {
  constexpr int ROUNDS = 10;
  constexpr unsigned long long MULTIPLIER_0 = 0xD2511F53, MULTIPLIER_1 = 0xCD9E8D57;
  constexpr unsigned INCREMENT_0 = 0x9E3779B9, INCREMENT_1 = 0xBB67AE85;  // of the key per round
  word[0] = static_cast<unsigned>(block);
  word[1] = static_cast<unsigned>(block >> 32);
  word[2] = static_cast<unsigned>(counter);
  word[3] = static_cast<unsigned>(counter >> 32);
  unsigned k = static_cast<unsigned>(key), m = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    const unsigned long long p = MULTIPLIER_0 * word[0], q = MULTIPLIER_1 * word[2];
    word[0] = static_cast<unsigned>(q >> 32) ^ word[1] ^ k;
    word[1] = static_cast<unsigned>(q);
    word[2] = static_cast<unsigned>(p >> 32) ^ word[3] ^ m;
    word[3] = static_cast<unsigned>(p);
    k += INCREMENT_0;
    m += INCREMENT_1;
  }
}
