// Bucketize, SearchSorted: the number of elements before a value in a sorted line, by binary search.
#include "strided.cuh"

// Relation of a bound to the value. NOT_GREATER also holds if either is NaN.
enum Rule { LESS, AT_MOST, NOT_GREATER };

// Search with comparisons in type C. The axes are those of y; their operands: value, line of bounds, y. A line has
// `extent` bounds, which are `step` apart.
template <typename B, typename V, typename C, typename Y, Rule rule, typename I, int R>
__global__ void search(const B* __restrict__ bounds, const V* __restrict__ values, Y* __restrict__ y,
                       const Axes<I, R, 3> axes, I size, I extent, I step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  const C value = static_cast<C>(values[offset(axes, at, 0)]);
  bounds += offset(axes, at, 1);
  I low = 0, high = extent;
  while (low < high) {
    const I middle = low + (high - low) / 2;
    const C bound = static_cast<C>(bounds[middle * step]);
    if (rule == LESS ? bound < value : rule == AT_MOST ? bound <= value : !(bound > value))
      low = middle + 1;
    else
      high = middle;
  }
  y[offset(axes, at, 2)] = static_cast<Y>(low);
}
