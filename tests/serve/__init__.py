"""Tests of the server, through clients that others wrote."""
