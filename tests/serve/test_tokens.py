"""Tokens: files, roles, quotas of sequences; files that are read again while the server runs."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import queue
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from ovgpu.errors import Error
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.tokens import Role, Tokens, role_of
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, Serving, fails, serving, write
from tests.serve.test_access import call, secure
from tests.serve.test_access import keys as keys  # a fixture
from tests.serve.test_models import X, adding, counting, until, version
from tests.serve.test_stop import process

ALL, INFER, MANAGE, READ = (f"{name}-with-16-characters" for name in ("all", "infer", "manage", "read"))
FILE = f"""# One token a line.
{ALL}

  {INFER}  infer  sequences=2
sha256:{sha256(MANAGE.encode()).hexdigest()} manage
{READ} read
"""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, adding(1), "add")
    write(folder, counting(0), "count")
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    found.write_text(FILE)
    return found


@pytest.fixture
def server(repository: Path, file: Path) -> Iterator[Serving]:
    with serving(repository, token_file=file) as found:
        yield found


# ---- files


def test_roles_of_the_tokens_of_a_file(file: Path) -> None:
    tokens = Tokens(file)
    allowed = {
        token: {method for method in ("Metrics", "ModelInfer", "RepositoryModelLoad") if allows(tokens, token, method)}
        for token in (ALL, INFER, MANAGE, READ, "another-token-of-theirs")
    }
    assert allowed == {
        ALL: {"Metrics", "ModelInfer", "RepositoryModelLoad"},
        INFER: {"Metrics", "ModelInfer"},
        MANAGE: {"Metrics", "RepositoryModelLoad"},
        READ: {"Metrics"},
        "another-token-of-theirs": set(),
    }


def allows(tokens: Tokens, token: str, method: str) -> bool:
    try:
        tokens.authorise(f"Bearer {token}", method)
    except ServeError as error:
        assert error.status in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED)
        return False
    return True


def test_methods_that_nobody_knows_need_most() -> None:
    assert role_of("SomethingNew") is Role.MANAGE


@pytest.mark.parametrize(
    "line",
    [
        f"{ALL} administer",
        f"{ALL} sequences=",
        f"{ALL} sequences=-1",
        f"{ALL} sequences=many",
        f"{ALL} infer,manage",
        "sha256:1234567890abcdef",
        f"sha256:{'A' * 64}",
        f"{READ}",  # twice
    ],
)
def test_lines_that_are_malformed(file: Path, line: str) -> None:
    """The error names the line and does not show the token."""
    file.write_text(f"{READ}\n{line}\n")
    with pytest.raises(Error, match="line 2") as error:
        Tokens(file)
    assert line.split()[0] not in str(error.value)


def test_comparisons_take_the_same_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hmac.compare_digest` compares the digest of any given token with those of all tokens."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def recording(given: bytes, wanted: bytes) -> bool:
        compared.append((given, wanted))
        return compare(given, wanted)

    tokens = Tokens(file)
    monkeypatch.setattr(hmac, "compare_digest", recording)
    wanted = [sha256(token.encode()).digest() for token in (ALL, INFER, MANAGE, READ)]
    for given in (ALL, READ, "wrong"):
        compared.clear()
        allows(tokens, given, "Metrics")
        assert compared == [(sha256(given.encode()).digest(), digest) for digest in wanted]


# ---- roles


@pytest.mark.parametrize("interface", INTERFACES)
def test_roles(server: Serving, interface: str) -> None:
    with server.client(interface) as client:
        for token in (ALL, INFER):
            assert client.infer("add", {"x": X}, headers=bearer(token))["y"][0, 0] == 2
        for token in (MANAGE, READ):
            assert "role 'infer'" in fails("PERMISSION_DENIED", client.infer, "add", {"x": X}, headers=bearer(token))
        for token in (ALL, MANAGE):
            client.client.load_model("add", headers=bearer(token))
        for token in (INFER, READ):
            for change in (client.client.load_model, client.client.unload_model):
                assert "role 'manage'" in fails("PERMISSION_DENIED", change, "add", headers=bearer(token))
        for token in (ALL, INFER, MANAGE, READ):
            assert client.client.get_model_metadata("add", headers=bearer(token))


def test_roles_of_routes_and_streams(server: Serving) -> None:
    found = {
        token: [
            call(server, *route, bearer(token), b"{}")[0]
            for route in (
                ("GET", "/metrics"),
                ("GET", "/"),
                ("POST", "/v2/repository/index"),
                ("POST", "/v1/config/reload"),
                ("POST", "/v1/models/add:predict"),
            )
        ]
        for token in (ALL, INFER, MANAGE, READ)
    }
    assert found == {
        ALL: [200, 200, 200, 200, 400],
        INFER: [200, 200, 200, 403, 400],
        MANAGE: [200, 200, 200, 200, 403],
        READ: [200, 200, 200, 403, 403],
    }
    with grpc.insecure_channel(server.grpc) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as error:
            list(stream(iter([b""]), metadata=tuple(bearer(READ).items()), timeout=SECONDS))
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_every_method_of_grpc_has_the_role_that_it_should_have() -> None:
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    known = {method.name: role_of(method.name) for method in methods}
    assert {name for name, role in known.items() if role is Role.INFER} == {"ModelInfer", "ModelStreamInfer"}
    for name, role in known.items():
        assert role is not Role.READ or not any(word in name for word in ("Load", "Unload", "Register", "Setting"))


def test_the_access_log_names_the_token(server: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ovgpu.serve.access"), server.client("gRPC") as client:
        client.infer("add", {"x": X}, headers=bearer(INFER))
    (line,) = [json.loads(r.getMessage()) for r in caplog.records if r.name == "ovgpu.serve.access"]
    assert line["token"] == sha256(INFER.encode()).hexdigest()[:8]
    assert INFER not in caplog.text


# ---- quotas


def step(client: Client, token: str, id: int, **flags: bool) -> float:
    return float(client.infer("count", {"x": X}, sequence_id=id, headers=bearer(token), **flags)["y"][0, 0])


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_quota_of_open_sequences(server: Serving, interface: str) -> None:
    with server.client(interface) as client:
        for id in (1, 2):
            assert step(client, INFER, id, sequence_start=True) == 2
        start = {"sequence_id": 3, "sequence_start": True, "headers": bearer(INFER)}
        assert "2 sequences" in fails("RESOURCE_EXHAUSTED", client.infer, "count", {"x": X}, **start)
        assert step(client, INFER, 1) == 3
        assert step(client, INFER, 1, sequence_start=True) == 2  # it begins anew: there are still two
        assert step(client, ALL, 4, sequence_start=True) == 2
        fails("RESOURCE_EXHAUSTED", client.infer, "count", {"x": X}, **(start | {"sequence_id": 4}))
        assert step(client, ALL, 4) == 3  # the refused start has not ended it
        assert step(client, INFER, 2, sequence_end=True) == 3
        assert step(client, INFER, 3, sequence_start=True) == 2
        fails("RESOURCE_EXHAUSTED", client.infer, "count", {"x": X}, **(start | {"sequence_id": 5}))


def test_sequences_that_begin_at_once(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not exceed the quota while the store of sequences is asked."""
    service = server.server.service
    assert service is not None
    store: Any = service.sequences._store
    start, asked = store.start, threading.Semaphore(0)

    async def slow(*arguments: Any, **options: Any) -> Any:
        asked.release()
        await asyncio.sleep(0.1)
        return await start(*arguments, **options)

    monkeypatch.setattr(store, "start", slow)
    results = queue.SimpleQueue[bool]()
    with server.client("gRPC") as client:
        for id in range(1, 6):
            client.client.async_infer(
                "count",
                client.inputs({"x": X}),
                lambda result, error: results.put(error is None),
                sequence_id=id,
                sequence_start=True,
                headers=bearer(INFER),
            )
        assert asked.acquire(timeout=SECONDS)
        assert sum(results.get(timeout=SECONDS) for _ in range(5)) == 2


def test_first_steps_that_fail_do_not_count(server: Serving) -> None:
    with server.client("gRPC") as client:
        for _ in range(5):
            fails(
                "INVALID_ARGUMENT",
                client.infer,
                "count",
                {"x": np.ones((2, 2), np.float32)},
                sequence_id=1,
                sequence_start=True,
                headers=bearer(INFER),
            )
        for id in (1, 2):
            assert step(client, INFER, id, sequence_start=True) == 2


# ---- files that are read again


def test_tokens_are_read_again(server: Serving, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def reload(text: str, wanted: str) -> None:
        caplog.clear()
        file.write_text(text)
        server.server.reload()
        until(lambda: wanted in caplog.text and "repository: read again" in caplog.text)

    with server.client("gRPC") as client:
        assert step(client, INFER, 1, sequence_start=True) == 2
        reload(f"{INFER} infer sequences=1\n{READ} infer\n", "tokens: read again")
        fails("UNAUTHENTICATED", client.infer, "add", {"x": X}, headers=bearer(ALL))
        assert client.infer("add", {"x": X}, headers=bearer(READ))["y"][0, 0] == 2
        assert step(client, INFER, 1) == 3  # its sequence counts on
        with_two = {"sequence_id": 2, "sequence_start": True, "headers": bearer(INFER)}
        fails("RESOURCE_EXHAUSTED", client.infer, "count", {"x": X}, **with_two)
        reload("short\n", "tokens stay as they were: ")
        assert step(client, INFER, 1, sequence_end=True) == 4
        assert step(client, INFER, 2, sequence_start=True) == 2
        file.unlink()
        server.server.reload()
        until(lambda: "the token cannot be read" in caplog.text)
        assert step(client, INFER, 2) == 3


def test_a_stream_ends_when_its_token_is_withdrawn(
    server: Serving, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    messages = queue.SimpleQueue[bytes | None]()
    with grpc.insecure_channel(server.grpc) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = stream(iter(messages.get, None), metadata=tuple(bearer(INFER).items()), timeout=SECONDS)
        messages.put(b"")
        next(answers)
        file.write_text(f"{ALL}\n")
        server.server.reload()
        until(lambda: "tokens: read again" in caplog.text)
        messages.put(b"")
        with pytest.raises(grpc.RpcError) as error:
            next(answers)
        messages.put(None)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def certificate_of(server: Serving, keys: Path) -> bytes:
    """Return the certificate that REST shows to a new client."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", server.server.port), SECONDS) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            found = connection.getpeercert(binary_form=True)
            assert found is not None
            return found


@pytest.mark.parametrize("interface", INTERFACES)
def test_certificates_are_read_again(
    repository: Path, keys: Path, tmp_path: Path, interface: str, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections have the new certificate. A connection that is open stays so."""
    caplog.set_level(logging.INFO)
    files = {suffix: tmp_path / f"current.{suffix}" for suffix in ("pem", "key")}

    def copy(**names: str) -> None:
        for suffix, name in names.items():
            files[suffix].write_bytes((keys / f"{name}.{suffix}").read_bytes())

    copy(pem="first", key="first")
    with serving(repository, tls_cert=files["pem"], tls_key=files["key"]) as server:
        with secure(server, interface, keys / "first.pem") as old:
            assert old.infer("add", {"x": X})["y"][0, 0] == 2
            copy(pem="second")
            server.server.reload()
            until(lambda: "certificate and key stay as they were" in caplog.text)  # the key is still the first one
            with secure(server, interface, keys / "first.pem") as client:
                assert client.infer("add", {"x": X})["y"][0, 0] == 2
            copy(key="second")
            server.server.reload()
            until(lambda: "certificate and key: read again" in caplog.text)
            for _ in range(2):
                with secure(server, interface, keys / "second.pem") as client:
                    assert client.infer("add", {"x": X})["y"][0, 0] == 2
            assert old.infer("add", {"x": X})["y"][0, 0] == 2
            shown = ssl.DER_cert_to_PEM_cert(certificate_of(server, keys))
            assert shown.split() == (keys / "second.pem").read_text().split()
        if interface == "gRPC":
            with secure(server, interface, keys / "first.pem") as client:
                fails("UNAVAILABLE", client.infer, "add", {"x": X}, client_timeout=SECONDS)


def test_files_that_change_are_read_again(
    repository: Path, keys: Path, tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets of Kubernetes are replaced by renaming a folder. Nobody sends a signal."""
    caplog.set_level(logging.INFO)
    for name in ("pem", "key"):
        (tmp_path / name).write_bytes((keys / f"first.{name}").read_bytes())
    options: dict[str, Any] = {"tls_cert": tmp_path / "pem", "tls_key": tmp_path / "key"}
    with serving(repository, token_file=file, poll_seconds=0.02, **options) as server:
        (tmp_path / "new").write_text(f"{READ} infer\n")
        (tmp_path / "new").replace(file)
        with secure(server, "gRPC", keys / "first.pem") as client:

            def allowed() -> bool:
                try:
                    client.infer("add", {"x": X}, headers=bearer(READ))
                except InferenceServerException:
                    return False
                return True

            until(allowed)
            fails("UNAUTHENTICATED", client.infer, "add", {"x": X}, headers=bearer(ALL))
        for name in ("pem", "key"):
            (tmp_path / name).write_bytes((keys / f"second.{name}").read_bytes())
        second = (keys / "second.pem").read_text().split()
        until(lambda: ssl.DER_cert_to_PEM_cert(certificate_of(server, keys)).split() == second)
        count = caplog.text.count("tokens: read again")
        server.server.reload()
        until(lambda: caplog.text.count("repository: read again") == 1)
        assert caplog.text.count("tokens: read again") == count + 1  # and not whenever the server looks


@pytest.mark.parametrize("with_tokens", [False, True])
def test_sighup_reads_files_again_and_ends_nothing(tmp_path: Path, file: Path, with_tokens: bool) -> None:
    models = tmp_path / "models"
    write(models, adding(1), "add")
    options = ("--token-file", file) if with_tokens else ()
    with process(models, "--poll-seconds", 0, *options) as server, server.client("gRPC") as client:

        def names() -> set[str]:
            index: Any = client.client.get_model_repository_index(headers=bearer(READ))
            return {model.name for model in index.models}

        assert names() == {"add"}
        write(models, adding(2), "more")
        for _ in range(3):
            os.kill(server.process.pid, signal.SIGHUP)
        until(lambda: names() == {"add", "more"})
        assert server.stop() == 0
        assert any("tokens: read again" in line for line in server.lines) == with_tokens


def test_a_repository_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add", 1)
    with serving(tmp_path, poll_seconds=0) as server:
        write(tmp_path, adding(2), "add", 2)
        server.server.reload()
        until(lambda: version(server, "add") == "2")
