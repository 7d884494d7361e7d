"""Access to the server: its token, and the addresses on which it may listen without one."""

from __future__ import annotations

import hmac
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path

from ovgpu.errors import Error

MIN_TOKEN = 16  # characters


class Token:
    """Secret that clients send as ``Authorization: Bearer TOKEN``."""

    def __init__(self, file: Path) -> None:
        try:
            token = file.read_text(errors="replace").strip()
        except OSError as error:
            raise Error(f"the token cannot be read: {error}") from None
        if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()):
            raise Error(f"{file} has no token of at least {MIN_TOKEN} printable ASCII characters")
        self._expected = token.encode()

    def allows(self, authorization: str) -> bool:
        """Return whether a header has the token. The comparison takes the same time for all wrong tokens."""
        scheme, _, given = authorization.partition(" ")
        return hmac.compare_digest(given.strip().encode(), self._expected) and scheme.lower() == "bearer"


def resolve(host: str) -> str:
    """Return the address of a host. Raise Error if it has none."""
    try:
        addresses = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise Error(f"host {host!r} has no address: {error}") from None
    address: str = addresses[0][4][0]  # type: ignore[assignment]
    return address


def check_exposure(address: str, token: Token | None, insecure: bool) -> None:
    """Raise Error if anyone on a network could call the server, unless ``insecure`` allows it."""
    if not ip_address(address).is_loopback and token is None and not insecure:
        raise Error(f"{address} can be reached from other machines: set --token-file, or --insecure if that is meant")


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Raise Error if only one of them is given, or if they do not fit each other. The key must not be encrypted."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise Error("--tls-cert and --tls-key need each other")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, lambda: ""
        )  # no password: else it asks for one
    except OSError as error:
        raise Error(f"{certificate} and {key} are no certificate and its key: {error}") from None
