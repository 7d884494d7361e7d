"""Integrations of ovgpu into other packages. Nothing else in ovgpu imports them."""
