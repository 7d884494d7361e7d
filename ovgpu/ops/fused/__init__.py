"""Internal ops, which OpenVINO does not define: passes make each of them from several layers."""
