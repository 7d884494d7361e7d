"""CUDA without a GPU, for the tests: `cupy_emu` stands for cupy, `blas_emu` for nvmath.bindings.cublas, and `cudnn_emu`
for nvidia-cudnn-frontend."""
