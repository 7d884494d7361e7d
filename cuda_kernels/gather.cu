// Gather, GatherElements, GatherND: elements or rows of a tensor by number. T stands for elements of its size, or for
// several that lie side by side. GatherTree: tokens of beams by their parents.
#include "items.cuh"

// Operands of the axes, which are those of y: x, index, y. `extent` and `row` are the extent and stride of x along the
// axis. Indices out of range give zeros.
template <typename T, typename Index, typename I, int R>
__global__ void gather(const T* __restrict__ x, const Index* __restrict__ index, T* __restrict__ y,
                       const Axes<I, R, 3> axes, I size, I extent, I row) {
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const I chosen = located(index[offset(axes, at, 1)], extent);
    return chosen >= 0 ? x[offset(axes, at, 0) + chosen * row] : T();
  });
}

// Extents and strides in x of the axes that a tuple of indices is for.
template <typename I>
struct Indexed {
  I extent[8], row[8];
};

// As gather, by tuples of `count` indices that lie `step` apart.
template <typename T, typename Index, typename I, int R>
__global__ void gather_nd(const T* __restrict__ x, const Index* __restrict__ index, T* __restrict__ y,
                          const Axes<I, R, 3> axes, const Indexed<I> indexed, I size, I count, I step) {
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const Index* tuple = index + offset(axes, at, 1);
    I from = offset(axes, at, 0);
    bool inside = true;
    for (int n = 0; n < count; n++) {
      const I chosen = located(tuple[n * step], indexed.extent[n]);
      inside = inside && chosen >= 0;
      from += chosen * indexed.row[n];
    }
    return inside ? x[from] : T();
  });
}

struct Steps {
  long long ids[3], parents[3];
};

// One thread per beam: from its last step back, and then forwards to its end. y is dense.
template <typename T>
__global__ void gather_tree(const T* __restrict__ ids, const T* __restrict__ parents, const T* __restrict__ lengths,
                            const T* end, T* y, const Steps stride, long long lengths_stride, long long steps,
                            long long batches, long long beams) {
  const long long number = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (number >= batches * beams) return;
  const long long batch = number / beams, pitch = batches * beams;
  const T token = *end;
  const long long length = static_cast<long long>(lengths[batch * lengths_stride]);
  y += number;
  long long beam = number % beams;
  for (long long i = steps - 1; i >= 0; i--) {
    const bool inside = i < length;
    y[i * pitch] = inside && beam >= 0
        ? ids[i * stride.ids[0] + batch * stride.ids[1] + beam * stride.ids[2]] : token;
    if (inside && beam >= 0) {
      beam = static_cast<long long>(parents[i * stride.parents[0] + batch * stride.parents[1]
                                            + beam * stride.parents[2]]);
      if (beam >= beams) beam = -1;
    }
  }
  bool ended = false;
  for (long long i = 0; i < steps; i++) {
    if (ended) y[i * pitch] = token;
    else ended = y[i * pitch] == token;
  }
}
