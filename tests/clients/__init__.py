"""Programs of other people that use openvino, run with ovgpu; see README.md."""
