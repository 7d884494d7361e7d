"""Tokens of clients: what they allow, and how many sequences their clients may have open."""

from __future__ import annotations

import hmac
import re
from contextvars import ContextVar
from enum import Enum
from hashlib import sha256
from pathlib import Path

from ovgpu.errors import Error
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.openai import models as openai

MIN_TOKEN = 16  # characters
NO_TOKEN = "the call has no valid token"
READING = {
    "StatusPage",
    "Metrics",
    "ServerMetadata",
    "ModelMetadata",
    "ModelReady",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
}
INFERRING = {"ModelInfer", "ModelStreamInfer", "Predict", *openai.METHODS}


class Role(Enum):
    """Calls that a token allows. Each token allows those of `READ`."""

    READ = "read"
    INFER = "infer"
    MANAGE = "manage"


def role_of(method: str) -> Role:
    """Return the role that a method of REST or gRPC needs: `MANAGE`, unless it is known to need less."""
    return Role.READ if method in READING else Role.INFER if method in INFERRING else Role.MANAGE


class Token:
    """Secret that clients send as ``Authorization: Bearer TOKEN``, by its SHA-256.

    ``max_sequences`` limits the sequences that its clients have open at a time; None is no limit.
    """

    def __init__(self, digest: bytes, roles: frozenset[Role], max_sequences: int | None) -> None:
        self.digest, self.roles, self.max_sequences = digest, roles, max_sequences
        self.sequences = 0  # that are open

    @property
    def id(self) -> str:
        """First digits of the digest, which name the token in the access log."""
        return self.digest.hex()[:8]

    def check_sequences(self, ended: int) -> None:
        """Raise ServeError if no more sequences may be opened, after ``ended`` ones have ended."""
        if self.max_sequences is not None and self.sequences - ended >= self.max_sequences:
            text = f"the token's {self.max_sequences} sequences are open already"
            raise ServeError(Status.RESOURCE_EXHAUSTED, text, 1)


caller: ContextVar[Token | None] = ContextVar("caller", default=None)
"""Token of the call that the current task answers; None on a server without tokens."""


class Tokens:
    """Tokens of a file, which has one a line: ``TOKEN [ROLE...] [sequences=N]``.

    TOKEN may be ``sha256:DIGEST``. A token without roles has all of them. Empty lines, and those that begin with #, are
    left out. Raises: Error for a file that cannot be read, or has no token or a malformed line.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tokens: dict[bytes, Token] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. If this raises Error, the tokens stay as they were."""
        try:
            lines = self._file.read_text(errors="replace").split("\n")
        except OSError as error:
            raise Error(f"the token cannot be read: {error}") from None
        tokens = dict[bytes, Token]()
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                token = _parsed(line, f"{self._file}, line {number},")
                if token.digest in tokens:
                    raise Error(f"{self._file}, line {number}, has the token of an earlier line")
                tokens[token.digest] = token
        if not tokens:
            raise Error(f"{self._file} has no token of at least {MIN_TOKEN} printable ASCII characters")
        for digest, old in self._tokens.items():  # which open sequences have
            if digest in tokens:
                old.roles, old.max_sequences = tokens[digest].roles, tokens[digest].max_sequences
                tokens[digest] = old
        self._tokens = tokens

    def authorise(self, authorization: str, method: str) -> None:
        """Make the token in a header the `caller`. Raise ServeError if it is unknown, or may not call the method."""
        token = self._find(authorization)
        if token is None:
            raise ServeError(Status.UNAUTHENTICATED, NO_TOKEN)
        role = role_of(method)
        if role is not Role.READ and role not in token.roles:
            raise ServeError(Status.PERMISSION_DENIED, f"the token lacks the role '{role.value}', which {method} needs")
        caller.set(token)

    def known(self, digest: bytes) -> Token:
        """Return the token with a digest. Raise ServeError if it was withdrawn."""
        token = self._tokens.get(digest)
        if token is None:
            raise ServeError(Status.UNAUTHENTICATED, NO_TOKEN)
        return token

    def _find(self, authorization: str) -> Token | None:
        """Return the token in a header. It is compared with all tokens, and takes the same time for all wrong ones."""
        scheme, _, given = authorization.partition(" ")
        digest = sha256(given.strip().encode()).digest()
        found = None
        for token in self._tokens.values():
            if hmac.compare_digest(digest, token.digest):
                found = token
        return found if scheme.lower() == "bearer" else None


def _parsed(line: str, where: str) -> Token:
    """Return the token of a line. Raise Error for a malformed one, without its secret."""
    secret, *words = line.split()
    if re.fullmatch(r"sha256:[0-9a-f]{64}", secret):
        digest = bytes.fromhex(secret.removeprefix("sha256:"))
    elif len(secret) >= MIN_TOKEN and secret.isascii() and secret.isprintable() and not secret.startswith("sha256:"):
        digest = sha256(secret.encode()).digest()
    else:
        raise Error(f"{where} has no token of at least {MIN_TOKEN} printable ASCII characters, or sha256:DIGEST")
    roles, max_sequences = set[Role](), None
    for word in words:
        if re.fullmatch(r"sequences=[0-9]{1,9}", word):
            max_sequences = int(word.removeprefix("sequences="))
        elif word in {role.value for role in Role}:
            roles.add(Role(word))
        else:
            raise Error(f"{where} has a word behind its token that is neither read, infer, manage nor sequences=N")
    return Token(digest, frozenset(roles or Role), max_sequences)
