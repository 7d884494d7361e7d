// Bookkeeping that lets one captured graph serve as every iteration of a loop: the iteration number, and copies between
// the body's inputs and outputs, at fixed addresses, and the tensors that the loop slices and concatenates.
#include "common.cuh"

constexpr int PARTS = 16;  // maximum per launch

struct Iteration {
  long long number, trips;
  int number32;      // the same, for bodies that read it as i32
  unsigned arrived;  // blocks that have read the number
};

// A sliced tensor, in bytes: its slice of iteration 0, the step to the next slice, and the pitch, number and size of a
// slice's rows.
struct SlicedTensor {
  unsigned char* first;
  long long step, pitch, rows, row;
};

struct Parts {
  unsigned char* at[PARTS];
};

template <typename T>
__device__ __forceinline__ void copy_part(unsigned char* slice, unsigned char* part, const SlicedTensor& tensor,
                                          bool out) {
  const long long words = tensor.row / sizeof(T), count = tensor.rows * words;
  T* dense = reinterpret_cast<T*>(part);
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const long long row = tensor.rows == 1 ? 0 : i / words;
    T* strided = reinterpret_cast<T*>(slice + row * tensor.pitch) + (i - row * words);
    if (out) {
      *strided = dense[i];
    } else {
      dense[i] = *strided;
    }
  }
}

// Advance to the next iteration: copy results of the finished iteration to their slices, and slices of the next one, if
// there is one, to the body's inputs. Iteration -1 precedes the first one. blockIdx.y is the part's index, out of
// `count`; the first `incoming` parts are inputs of the body.
extern "C" __global__ void next_iteration(Iteration* at, const SlicedTensor* tensors, const Parts parts, int incoming,
                                          int count) {
  const long long number = at->number;
  const int index = blockIdx.y;
  if (index < count) {
    const bool out = index >= incoming;
    const long long slice = out ? number : number + 1;
    if (slice >= 0 && slice < at->trips) {
      const SlicedTensor tensor = tensors[index];
      unsigned char* const strided = tensor.first + slice * tensor.step;
      unsigned char* part = parts.at[0];
#pragma unroll
      for (int k = 1; k < PARTS; k++) part = k == index ? parts.at[k] : part;  // indexing would use the stack
      const unsigned long long bits = reinterpret_cast<unsigned long long>(strided) |
                                      reinterpret_cast<unsigned long long>(part) | tensor.pitch | tensor.row;
      if (bits % 16 == 0) {
        copy_part<uint4>(strided, part, tensor, out);
      } else if (bits % 4 == 0) {
        copy_part<unsigned>(strided, part, tensor, out);
      } else {
        copy_part<unsigned char>(strided, part, tensor, out);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&at->arrived, 1u) == gridDim.x * gridDim.y - 1) {  // all have read it
    at->arrived = 0;
    at->number = number + 1;
    at->number32 = static_cast<int>(number + 1);
  }
}
