"""Networks with random weights, written as IR in the form of OpenVINO's converter and nncf."""
