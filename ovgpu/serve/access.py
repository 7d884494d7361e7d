"""Access to the server: the addresses and names by which it may be called without a token."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from ovgpu.errors import Error
from ovgpu.serve.errors import ServeError, Status

MAX_SHOWN = 100  # characters of a header in an error


class AllowedHosts:
    """Hosts by which browsers may call a server that needs no token.

    A page of any site can send requests from its user's browser, also to loopback. A POST needs no permission of the
    server, and a name of the site can get the server's address (DNS rebinding), so that the page can read the answers.
    The headers Host and Origin tell of both. No name can stand in for an address: a server beyond loopback allows all
    addresses, one on loopback those of loopback. Beside these, localhost, ``host`` and ``names`` are allowed; pages of
    ``names`` may call the server under another Host, too. The name ``*`` is any. Raises: Error for a name that is none.
    """

    def __init__(self, address: str, names: Iterable[str] = (), host: str = "") -> None:
        self._loopback = ip_address(address).is_loopback
        self._own, self._names = {"localhost", _canonical(host)} - {""}, set[str]()
        for name in names:
            if not re.fullmatch(r"\*|[\w.-]+|[\da-fA-F:.]+", name):
                raise Error(f"--allowed-host {name!r} is no name of a host: it has no scheme, port or path")
            self._names.add(_canonical(name))

    def check(self, host: str, origin: str | None) -> None:
        """Raise ServeError if a request has the Host of another server, or the Origin of a page of another site."""
        if not self._allows(host):
            raise _forbidden(f"the server has no host {host[:MAX_SHOWN]!r}")
        if origin is not None:
            site = origin.partition("://")[2]
            if site.lower() != host.lower() and not self._named(site):
                raise _forbidden(f"pages of {origin[:MAX_SHOWN]!r} may not call the server")

    def _allows(self, host: str) -> bool:
        name = _name(host)
        if name in self._own or self._named(host):
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback

    def _named(self, host: str) -> bool:
        return "*" in self._names or _name(host) in self._names


def _forbidden(text: str) -> ServeError:
    return ServeError(Status.PERMISSION_DENIED, f"{text}: send a token, or start the server with --allowed-host")


@lru_cache(16)  # most clients send the same one
def _name(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    bracketed = re.fullmatch(r"\[(.*)\](:\d*)?", host)
    return _canonical(bracketed[1] if bracketed else re.sub(r":\d*$", "", host))


def _canonical(name: str) -> str:
    with suppress(ValueError):
        return str(ip_address(name))
    return name.lower().removesuffix(".")


def resolve(host: str) -> str:
    """Return the address of a host. Raise Error if it has none."""
    try:
        addresses = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise Error(f"host {host!r} has no address: {error}") from None
    address: str = addresses[0][4][0]  # type: ignore[assignment]
    return address


def check_exposure(address: str, has_tokens: bool, insecure: bool) -> None:
    """Raise Error if anyone on a network could call the server, unless ``insecure`` allows it."""
    if not ip_address(address).is_loopback and not has_tokens and not insecure:
        raise Error(f"{address} can be reached from other machines: set --token-file, or --insecure if that is meant")
