"""Pictures of plans for ``ovgpu info``: graphs, and pages with a table."""

from ovgpu.cli.graph.drawing import folded as folded
from ovgpu.cli.graph.files import add_options as add_options
from ovgpu.cli.graph.files import check as check
from ovgpu.cli.graph.files import write as write
