"""Tests of Ray. Its clusters listen on loopback only."""

import os

import pytest

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when ray is imported: all nodes have the address 127.0.0.1
pytest.importorskip("ray", reason="Ray comes with the extra `test-all`")
