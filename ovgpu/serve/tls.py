"""Class Certificate: the certificate of both interfaces, which is replaced while connections stay open."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from ovgpu.errors import Error


class Certificate:
    """Certificate chain and its key, in files of PEM. The key must not be encrypted.

    Raises: Error if they do not fit each other, or cannot be read.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._context, self._pair = self._read()
        self._given = self._pair  # to gRPC

    def reload(self) -> None:
        """Read the files again, for new connections. If this raises Error, the old certificate stays."""
        self._context, self._pair = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the context of REST. A connection asks it for the certificate of that moment."""
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = self._context

        found.sni_callback = choose
        return found

    def credentials(self) -> Any:
        """Return the credentials of gRPC. They fetch the certificate of the moment for each connection."""
        return grpc.dynamic_ssl_server_credentials(_configuration(self._given), self._fetch)

    def _fetch(self) -> Any:
        """Return the certificate for gRPC, or None if gRPC has it."""
        pair = self._pair
        if pair == self._given:
            return None
        self._given = pair
        return _configuration(pair)

    def _read(self) -> tuple[ssl.SSLContext, tuple[bytes, ...]]:
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            pair = tuple(file.read_bytes() for file in self._files)
            context.load_cert_chain(certificate, key, lambda: "")  # no password: else it asks for one
            if pair != tuple(file.read_bytes() for file in self._files):
                raise OSError("they have changed meanwhile")
        except OSError as error:
            raise Error(f"{certificate} and {key} are no certificate and its key: {error}") from None
        return context, pair


def certificate(chain: Path | None, key: Path | None) -> Certificate | None:
    """Return a certificate from its files; None if there are none. Raise Error if only one of them is given."""
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise Error("--tls-cert and --tls-key need each other")
    return Certificate(chain, key)


def _configuration(pair: tuple[bytes, ...]) -> Any:
    chain, key = pair
    return grpc.ssl_server_certificate_configuration([(key, chain)])
