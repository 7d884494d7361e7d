"""Exchange with the openvino package, where it is installed: its names, values and models in ovgpu."""
