"""ONNX's own tests of its operators, converted by OpenVINO: models, inputs and results from an independent source."""
