"""``ovgpu generate``: text by a language model that optimum-intel exported."""

from ovgpu.cli.generate.command import add_to as add_to
