// RegionYolo: probabilities of boxes and classes.
#include "common.cuh"

// One thread per position, region and image, `count` in all. A region has `entries` channels: coordinates, objectness,
// classes. The first two coordinates, the objectness and the classes go through the logistic function; with `softmax`,
// the classes go through softmax instead. Other coordinates are copied. x_channels and y_channels: channels per image
// of x and y.
template <class T>
__global__ void region_yolo(const T* __restrict__ x, T* __restrict__ y, int count, int area, int regions, int entries,
                            int coords, int x_channels, int y_channels, bool softmax) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int position = i % area, region = i / area % regions, batch = i / area / regions;
  x += (batch * x_channels + region * entries) * area + position;
  y += (batch * y_channels + region * entries) * area + position;
  const int plain_entries = softmax ? coords + 1 : entries;
  for (int e = 0; e < plain_entries; e++) {
    const float value = float(x[e * area]);
    y[e * area] = T(e < 2 || e >= coords ? 1.f / (1.f + expf(-value)) : value);
  }
  float maximum = -3.402823466e+38f, sum = 0.f;
  for (int e = plain_entries; e < entries; e++) maximum = fmaxf(maximum, float(x[e * area]));
  for (int e = plain_entries; e < entries; e++) sum += expf(float(x[e * area]) - maximum);
  for (int e = plain_entries; e < entries; e++) y[e * area] = T(expf(float(x[e * area]) - maximum) / sum);
}
