"""Operations that OpenVINO does not define: passes make them of several layers."""
