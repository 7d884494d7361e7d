"""Models for the Python backend of Triton Inference Server; ``ovgpu triton`` writes their folders."""
