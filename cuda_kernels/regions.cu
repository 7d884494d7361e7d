// RegionYolo: probabilities of boxes and classes.
#include "common.cuh"

// A thread per place of a region, of which there are `count`. A region has `entries` channels: coordinates, objectness,
// classes. `from` and `to` are the channels of a batch in x and y. Of the coordinates, the first two are probabilities.
template <class T>
__global__ void region_yolo(const T* __restrict__ x, T* __restrict__ y, int count, int area, int regions, int entries,
                            int coords, int from, int to, bool softmax) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int at = i % area, region = i / area % regions, batch = i / area / regions;
  x += (batch * from + region * entries) * area + at;
  y += (batch * to + region * entries) * area + at;
  const int plain = softmax ? coords + 1 : entries;
  for (int e = 0; e < plain; e++) {
    const float value = float(x[e * area]);
    y[e * area] = T(e < 2 || e >= coords ? 1.f / (1.f + expf(-value)) : value);
  }
  float greatest = -3.402823466e+38f, sum = 0.f;
  for (int e = plain; e < entries; e++) greatest = fmaxf(greatest, float(x[e * area]));
  for (int e = plain; e < entries; e++) sum += expf(float(x[e * area]) - greatest);
  for (int e = plain; e < entries; e++) y[e * area] = T(expf(float(x[e * area]) - greatest) / sum);
}
