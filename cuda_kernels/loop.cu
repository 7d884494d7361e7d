// What a captured iteration needs to serve as any iteration: the number of the one that runs, and the parts that it
// reads and writes at fixed addresses, moved from and to the tensors that the loop slices and concatenates.
#include "common.cuh"

constexpr int PARTS = 16;  // that one launch moves

struct Iteration {
  long long number, trips;
  int narrow;        // the number again, for bodies that want 32 bits
  unsigned arrived;  // blocks that are done with the number
};

// A sliced tensor: where its part of iteration 0 lies, the way to the next one, and what a part is, all in bytes.
struct Whole {
  unsigned char* first;
  long long step, pitch, rows, row;
};

struct Parts {
  unsigned char* at[PARTS];
};

template <typename T>
__device__ __forceinline__ void move(unsigned char* slice, unsigned char* part, const Whole& whole, bool out) {
  const long long words = whole.row / sizeof(T), count = whole.rows * words;
  T* dense = reinterpret_cast<T*>(part);
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const long long row = whole.rows == 1 ? 0 : i / words;
    T* strided = reinterpret_cast<T*>(slice + row * whole.pitch) + (i - row * words);
    if (out) {
      *strided = dense[i];
    } else {
      dense[i] = *strided;
    }
  }
}

// Between two iterations: takes the results of the one that has run, and gives the next one its number and its parts,
// if there is a next one. Number -1 is before the first. Of `parts`, the first `incoming` are read by the body.
// blockIdx.y is the part's number; there are `count`.
extern "C" __global__ void next_iteration(Iteration* at, const Whole* wholes, const Parts parts, int incoming,
                                          int count) {
  const long long number = at->number;
  const int which = blockIdx.y;
  if (which < count) {
    const bool out = which >= incoming;
    const long long slice = out ? number : number + 1;
    if (slice >= 0 && slice < at->trips) {
      const Whole whole = wholes[which];
      unsigned char* const strided = whole.first + slice * whole.step;
      unsigned char* part = parts.at[0];
#pragma unroll
      for (int k = 1; k < PARTS; k++) part = k == which ? parts.at[k] : part;  // an index would copy all to the stack
      const unsigned long long bits = reinterpret_cast<unsigned long long>(strided) |
                                      reinterpret_cast<unsigned long long>(part) | whole.pitch | whole.row;
      if (bits % 16 == 0) {
        move<uint4>(strided, part, whole, out);
      } else if (bits % 4 == 0) {
        move<unsigned>(strided, part, whole, out);
      } else {
        move<unsigned char>(strided, part, whole, out);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&at->arrived, 1u) == gridDim.x * gridDim.y - 1) {  // all blocks have read it
    at->arrived = 0;
    at->number = number + 1;
    at->narrow = static_cast<int>(number + 1);
  }
}
