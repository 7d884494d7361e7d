"""Properties of OpenVINO's CPU device."""

from __future__ import annotations

from ._property import Property, PropertyEnum, boolean, instance, real


class TbbPartitioner(PropertyEnum):
    """Partitioner of oneTBB."""

    STATIC = 1
    AUTO = 2


denormals_optimization = Property("CPU_DENORMALS_OPTIMIZATION", boolean)
sparse_weights_decompression_rate = Property("CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE", real)
tbb_partitioner = Property("TBB_PARTITIONER", instance(TbbPartitioner))
