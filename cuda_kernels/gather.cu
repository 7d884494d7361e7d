// Gather, GatherElements, GatherND: elements or rows of a tensor by index. T only determines the size of an element,
// or of a group of neighbouring ones. GatherTree: token sequences of beams from their parents.
#include "items.cuh"
#include "ptx.cuh"

// Gather along one axis of x, whose extent and stride are `extent` and `axis_stride`. The axes are those of y;
// operands: x, index, y. Indices out of range give zeros.
template <typename T, typename Index, typename I, int R>
__global__ void gather(const T* x, const Index* index, T* y, const Axes<I, R, 3> axes, I size, I extent,
                       I axis_stride) {
  start_next_launch();
  wait_for_launches();
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const I selected = normalize_index(index[offset(axes, at, 1)], extent);
    return selected >= 0 ? x[offset(axes, at, 0) + selected * axis_stride] : T();
  });
}

// Extents of x, and its strides, along the axes that a tuple indexes.
template <typename I>
struct Indexed {
  I extent[8], axis_stride[8];
};

// Like gather, but by tuples of `count` indices, which are `step` apart.
template <typename T, typename Index, typename I, int R>
__global__ void gather_nd(const T* x, const Index* index, T* y, const Axes<I, R, 3> axes, const Indexed<I> indexed,
                          I size, I count, I step) {
  start_next_launch();
  wait_for_launches();
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const Index* tuple = index + offset(axes, at, 1);
    I from = offset(axes, at, 0);
    bool inside = true;
    for (int n = 0; n < count; n++) {
      const I selected = normalize_index(tuple[n * step], indexed.extent[n]);
      inside = inside && selected >= 0;
      from += selected * indexed.axis_stride[n];
    }
    return inside ? x[from] : T();
  });
}

struct TreeStrides {
  long long ids[3], parents[3];
};

// Follow each beam from its last step back to its first, then write end_token to all steps after the first end_token.
// One thread per beam; y is dense.
template <typename T>
__global__ void gather_tree(const T* __restrict__ ids, const T* __restrict__ parents, const T* __restrict__ lengths,
                            const T* end, T* y, const TreeStrides stride, long long lengths_stride, long long steps,
                            long long batches, long long beams) {
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread >= batches * beams) return;
  const long long batch = thread / beams, pitch = batches * beams;
  const T end_token = *end;
  const long long length = static_cast<long long>(lengths[batch * lengths_stride]);
  y += thread;
  long long beam = thread % beams;
  for (long long i = steps - 1; i >= 0; i--) {
    const bool inside = i < length;
    y[i * pitch] =
        inside && beam >= 0 ? ids[i * stride.ids[0] + batch * stride.ids[1] + beam * stride.ids[2]] : end_token;
    if (inside && beam >= 0) {
      beam =
          static_cast<long long>(parents[i * stride.parents[0] + batch * stride.parents[1] + beam * stride.parents[2]]);
      if (beam >= beams) beam = -1;
    }
  }
  bool ended = false;
  for (long long i = 0; i < steps; i++) {
    if (ended)
      y[i * pitch] = end_token;
    else
      ended = y[i * pitch] == end_token;
  }
}
