"""Access to the server: tokens, TLS, addresses and ports."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from starlette.routing import Route
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ovgpu.errors import Error
from ovgpu.serve.access import AllowedHosts, check_exposure, resolve
from ovgpu.serve.engines import EngineOptions
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.http_app import HttpApp
from ovgpu.serve.server import Server, ServerOptions
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, Serving, fails, serving, write
from tests.serve.test_inference import echo
from tests.serve.wire import SERVICE, Input, message

TOKEN = "a-token-of-29-characters~+/=."
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
ROOT = Path(__file__).parents[2]
X = np.arange(3, dtype=np.float32)[None]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, echo("f32"), "echo")
    return folder


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(f"{TOKEN}\n")
    return file


# ---- tokens


@pytest.fixture(scope="module")
def server(repository: Path, token_file: Path) -> Iterator[Serving]:
    """A server that asks for a token."""
    with serving(repository, token_file=token_file) as found:
        yield found


def call(server: Serving, verb: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any, bytes]:
    """Return status, headers and body of the response to a request."""
    connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
    connection.request(verb, path, body, headers)
    response = connection.getresponse()
    found = response.read()
    connection.close()
    return response.status, response.headers, found


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"BEARER   {TOKEN}", True),
        (None, False),
        ("", False),
        ("Bearer", False),
        ("Bearer ", False),
        (TOKEN, False),
        (f"Basic {TOKEN}", False),
        (f"Bearer{TOKEN}", False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN.upper()}", False),
        (f"Bearer Bearer {TOKEN}", False),
        (f"Bearer {TOKEN} {TOKEN}", False),
        (f" {TOKEN}", False),
        ("Bearer " + "x" * 5000, False),
    ],
)
def test_tokens(server: Serving, interface: str, header: str | None, allowed: bool) -> None:
    options = {} if header is None else {"headers": {"authorization": header}}
    with server.client(interface) as client:
        if allowed:
            assert client.infer("echo", {"x": X}, **options)["y"].tolist() == X[:, ::-1].tolist()
        else:
            assert "no valid token" in fails("UNAUTHENTICATED", client.infer, "echo", {"x": X}, **options)


def test_a_header_that_is_no_ascii(server: Serving) -> None:
    for value in ("Bearer \xfc\xe4", "\xff" + TOKEN, "Bearer \xff" + TOKEN):
        assert call(server, "GET", "/v2", {"Authorization": value})[0] == 401


def test_all_routes_need_the_token_but_health(server: Serving) -> None:
    assert server.server.service is not None
    app = HttpApp(server.server.service, AllowedHosts("127.0.0.1"), 1, 1, server.server.held)
    refused, open_ = set(), set()
    for route in app.asgi.routes:
        assert isinstance(route, Route)
        path = route.path.replace("{model}", "echo").replace("{version}", "1")
        for verb in route.methods or ():
            status, headers, body = call(server, verb, path, {})
            if status == 401:
                assert headers["WWW-Authenticate"] == "Bearer"
                assert verb == "HEAD" or "token" in str(json.loads(body)["error"])  # an object in OpenAI's protocol
            (refused if status == 401 else open_).add((verb, route.path))
            assert call(server, verb, path, RIGHT)[0] != 401
    assert open_ == {(verb, f"/v2/health/{kind}") for verb in ("GET", "HEAD") for kind in ("live", "ready")}
    assert len(refused) > 20
    with server.client("REST") as client:
        client.client.load_model("echo", headers=RIGHT)  # which was unloaded above


def test_all_methods_need_the_token_but_health(server: Serving) -> None:
    codes: dict[str, str] = {}
    with grpc.insecure_channel(server.grpc) as channel:
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            try:
                if method.client_streaming:
                    list(channel.stream_stream(SERVICE + method.name)(iter([b""]), timeout=SECONDS))
                else:
                    channel.unary_unary(SERVICE + method.name)(b"", timeout=SECONDS)
                codes[method.name] = "OK"
            except grpc.RpcError as error:
                codes[method.name] = error.code().name
    assert {name for name, code in codes.items() if code == "OK"} == {"ServerLive", "ServerReady"}
    refused = {name for name, code in codes.items() if code == "UNAUTHENTICATED"}
    assert {"ModelInfer", "ModelStreamInfer", "RepositoryModelUnload", "ModelMetadata"} <= refused
    assert set(codes.values()) == {"OK", "UNAUTHENTICATED"}


def test_streams_need_the_token(server: Serving) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = [message(Input(X.tobytes()))] * 3
        for wrong in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError) as error:
                list(stub.ModelStreamInfer(iter(sent), metadata=wrong, timeout=SECONDS))
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        right = (("authorization", f"Bearer {TOKEN}"),)
        found = list(stub.ModelStreamInfer(iter(sent), metadata=right, timeout=SECONDS))
        assert [np.frombuffer(x.infer_response.raw_output_contents[0], np.float32).tolist() for x in found] == (
            [[2, 1, 0]] * 3
        )


def test_bodies_without_a_token_are_not_read(server: Serving) -> None:
    free = server.server.held.free
    with socket.create_connection(("127.0.0.1", server.server.port), SECONDS) as connection:
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
        assert server.server.held.free == free


@pytest.mark.parametrize(
    "text",
    ["", "\n", "# a comment\n", "x" * 15, f" {'x' * 15}\n\n", "x" * 20 + "\n" + "x" * 15, "\xfc" * 20, "x\0" * 20],
)
def test_files_without_a_good_token(tmp_path: Path, repository: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(Error, match=r"token(, line \d,)? has no token of at least 16"):
        Server(ServerOptions(repository, token_file=file))


def test_files_that_cannot_be_read(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" * 20)
    with pytest.raises(Error, match="has no token"):
        Server(ServerOptions(repository, token_file=tmp_path / "binary"))
    for file in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(Error, match="the token cannot be read"):
            Server(ServerOptions(repository, token_file=file))


# ---- hosts and sites, without a token


@pytest.fixture(scope="module")
def open_server(repository: Path) -> Iterator[Serving]:
    """A server on loopback that asks for no token."""
    with serving(repository, allowed_hosts=("models.example",)) as found:
        yield found


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:{port}", True),
        ("LocalHost", True),
        ("localhost.", True),
        ("127.0.0.1:{port}", True),
        ("127.9.9.9", True),
        ("[::1]:{port}", True),
        ("Models.Example:443", True),
        ("", False),
        ("attacker.example", False),
        ("attacker.example:{port}", False),
        ("localhost.attacker.example", False),
        ("127.0.0.1.attacker.example", False),
        ("models.example.attacker.example", False),
        ("xmodels.example", False),
        ("localhost:{port}@attacker.example", False),
        ("attacker.example#localhost", False),
        ("192.0.2.1:{port}", False),
        ("[2001:db8::1]", False),
        ("0.0.0.0:{port}", False),
        ("[localhost", False),
        ("*", False),
    ],
)
def test_hosts(open_server: Serving, host: str, allowed: bool) -> None:
    """A name that another site has given to loopback is refused (DNS rebinding)."""
    status, _, body = call(open_server, "GET", "/v2", {"Host": host.format(port=open_server.server.port)})
    assert status == (200 if allowed else 403)
    if not allowed:
        assert "--allowed-host" in json.loads(body)["error"]


def test_two_hosts(open_server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", open_server.server.port), SECONDS) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:{port}", True),
        ("HTTP://LOCALHOST:{port}", True),
        ("https://models.example", True),
        ("https://attacker.example", False),
        ("http://localhost", False),  # another port is another site
        ("http://localhost:1", False),
        ("http://127.0.0.1:{port}", False),
        ("https://models.example.attacker.example", False),
        ("null", False),
        ("", False),
        ("localhost:{port}", False),
    ],
)
def test_origins(open_server: Serving, origin: str, allowed: bool) -> None:
    """A page of another site may not unload a model. It could send this without asking the server for permission."""
    port = open_server.server.port
    headers = {"Host": f"localhost:{port}", "Origin": origin.format(port=port), "Content-Type": "text/plain"}
    for action in ("unload", "load"):
        status, _, body = call(open_server, "POST", f"/v2/repository/models/echo/{action}", headers, b"{}")
        assert status == (200 if allowed else 403)
        if not allowed:
            assert "may not call the server" in json.loads(body)["error"]
    with open_server.client("gRPC") as client:
        assert client.client.is_model_ready("echo")


def test_all_routes_check_the_host_but_health(open_server: Serving) -> None:
    assert open_server.server.service is not None
    app = HttpApp(open_server.server.service, AllowedHosts("127.0.0.1"), 1, 1, open_server.server.held)
    allowed = set()
    for headers in ({"Host": "attacker.example"}, {"Host": "localhost", "Origin": "https://attacker.example"}):
        for route in app.asgi.routes:
            assert isinstance(route, Route)
            path = route.path.replace("{model}", "echo").replace("{version}", "1")
            for verb in route.methods or ():
                if call(open_server, verb, path, headers)[0] != 403:
                    allowed.add((verb, path))
    assert allowed == {(verb, f"/v2/health/{kind}") for verb in ("GET", "HEAD") for kind in ("live", "ready")}


def test_a_token_is_enough(server: Serving) -> None:
    """No page of another site has it."""
    assert call(server, "GET", "/v2", RIGHT | {"Host": "any.example", "Origin": "https://other.example"})[0] == 200


def test_hosts_beyond_loopback() -> None:
    """Names are refused unless they are allowed. Addresses are not: no name can stand in for them."""
    hosts = AllowedHosts("0.0.0.0", ("models.example", "2001:DB8::2"), "gpu.example")
    for host in ("192.0.2.1:8000", "[2001:db8::1]:8000", "localhost", "models.example", "gpu.example:8000"):
        hosts.check(host, None)
        hosts.check(host, f"http://{host}")
    for host, origin in (
        ("attacker.example", None),
        ("attacker.example", "http://attacker.example"),
        ("192.0.2.1:8000", "http://attacker.example"),
        ("192.0.2.1:8000", "http://192.0.2.2:8000"),
    ):
        with pytest.raises(ServeError) as error:
            hosts.check(host, origin)
        assert error.value.status is Status.PERMISSION_DENIED
    hosts = AllowedHosts("127.0.0.1", ("*", "2001:DB8::2"))
    hosts.check("attacker.example", "null")
    AllowedHosts("127.0.0.1", ("2001:DB8::2",)).check("[2001:db8:0::2]:80", None)


@pytest.mark.parametrize("name", ["", "http://models.example", "models.example:80", "a b", "models.example/", "**"])
def test_names_that_are_none(repository: Path, name: str) -> None:
    with pytest.raises(Error, match="--allowed-host"):
        Server(ServerOptions(repository, allowed_hosts=(name,)))


# ---- TLS


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two certificates and their keys; that of the first is there encrypted as well."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no command openssl")
    folder = tmp_path_factory.mktemp("keys")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("first", "second"):
        run(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        )
    run("ec", "-in", "first.key", "-aes256", "-passout", "pass:secret", "-out", "encrypted.key")
    (folder / "text").write_text("text\n")
    return folder


@pytest.fixture(scope="module")
def tls(repository: Path, token_file: Path, keys: Path) -> Iterator[Serving]:
    with serving(repository, tls_cert=keys / "first.pem", tls_key=keys / "first.key", token_file=token_file) as server:
        yield server


@contextmanager
def secure(tls: Serving, interface: str, certificate: Path) -> Iterator[Client]:
    if interface == "gRPC":
        options: dict[str, Any] = {"root_certificates": str(certificate)}
    else:
        from gevent import ssl as gevent_ssl

        options = {"ssl_context_factory": lambda: gevent_ssl.create_default_context(cafile=str(certificate))}
    with Client(interface, tls.http if interface == "REST" else tls.grpc, ssl=True, **options) as client:
        yield client


@pytest.mark.parametrize("interface", INTERFACES)
def test_tls(tls: Serving, keys: Path, interface: str) -> None:
    with secure(tls, interface, keys / "first.pem") as client:
        found = client.infer("echo", {"x": X}, headers={"authorization": f"Bearer {TOKEN}"})
        assert found["y"].tolist() == [[2, 1, 0]]
        fails("UNAUTHENTICATED", client.infer, "echo", {"x": X})


def test_clients_that_trust_another_certificate(tls: Serving, keys: Path) -> None:
    context = ssl.create_default_context(cafile=keys / "second.pem")
    with socket.create_connection(("127.0.0.1", tls.server.port), SECONDS) as plain:
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    with secure(tls, "gRPC", keys / "second.pem") as client:
        fails("UNAVAILABLE", client.infer, "echo", {"x": X}, client_timeout=SECONDS)


def test_clients_without_tls(tls: Serving) -> None:
    with pytest.raises((ConnectionError, http.client.BadStatusLine)):
        call(tls, "GET", "/v2/health/live", {})
    with tls.client("gRPC") as client:
        fails("UNAVAILABLE", client.infer, "echo", {"x": X}, client_timeout=SECONDS)


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        ("first.pem", None, "need each other"),
        (None, "first.key", "need each other"),
        ("nothing", "first.key", "nothing and "),
        ("text", "first.key", "no certificate"),
        ("first.key", "first.key", "no certificate"),
        ("first.pem", "text", "no certificate"),
        ("first.pem", "second.key", "no certificate and its key"),
        ("first.pem", "encrypted.key", "no certificate and its key"),
    ],
)
def test_wrong_certificates(repository: Path, keys: Path, certificate: str | None, key: str | None, text: str) -> None:
    with pytest.raises(Error, match=text):
        Server(
            ServerOptions(
                repository, tls_cert=keys / certificate if certificate else None, tls_key=keys / key if key else None
            )
        )


# ---- addresses, ports and other options


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "192.0.2.1", "2001:db8::1", "fe80::1", "::ffff:0.0.0.0"])
def test_exposure(repository: Path, token_file: Path, host: str) -> None:
    with pytest.raises(Error, match=r"can be reached from other machines: set --token-file, or --insecure"):
        Server(ServerOptions(repository, host=host))
    Server(ServerOptions(repository, host=host, token_file=token_file))
    Server(ServerOptions(repository, host=host, insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "127.1"])
def test_loopback_needs_no_token(repository: Path, host: str) -> None:
    Server(ServerOptions(repository, host=host))


def test_names_of_hosts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is as safe as its address, which is looked up once."""
    addresses = iter(["192.0.2.7", "127.0.0.1"])

    def look_up(host: str, *args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(addresses), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert resolve("models.example") == "192.0.2.7"
    with pytest.raises(Error, match=r"192\.0\.2\.7 can be reached"):
        check_exposure("192.0.2.7", False, False)
    Server(ServerOptions(repository, host="models.example"))
    assert list(addresses) == []


@pytest.mark.parametrize("host", ["nothing.invalid", "256.1.1.1", "", "a b", "x" * 300, "127.0.0.1:8000"])
def test_hosts_without_an_address(repository: Path, host: str) -> None:
    with pytest.raises(Error, match="has no address"):
        Server(ServerOptions(repository, host=host))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"port": 65536}, "no port 65536"),
        ({"port": -1}, "no port -1"),
        ({"grpc_port": 70_000}, "no port 70000"),
        ({"body_mib": 0}, "--max-body-mib 0"),
        ({"body_mib": 9, "held_mib": 8}, "--max-held-mib 8"),
        ({"max_queue": 0}, "--max-queue 0"),
        ({"max_calls": 0}, "--max-calls 0"),
        ({"idle_seconds": 0}, "--idle-seconds 0"),
        ({"engine": EngineOptions(max_batch_size=0)}, "--max-batch-size 0"),
        ({"engine": EngineOptions(requests=-1)}, "--requests -1"),
        ({"name": "model"}, "is a repository: its folders name the models"),
        ({"path": Path("nothing")}, "there is no file or folder nothing"),
    ],
)
def test_options_that_make_no_sense(repository: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(Error, match=text):
        Server(ServerOptions(**{"path": repository, **options}))


def test_bodies_may_be_larger_than_messages(repository: Path) -> None:
    with serving(repository, body_mib=4096, held_mib=4096) as server:
        for interface in INTERFACES:
            with server.client(interface) as client:
                client.infer("echo", {"x": X})


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_port_that_is_in_use(repository: Path, interface: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = other.getsockname()[1]
        ports = {"port": used, "grpc_port": 0} if interface == "REST" else {"port": 0, "grpc_port": used}
        server = Server(ServerOptions(repository, engine=EngineOptions("CPU"), **ports))
        with pytest.raises(Error, match=rf"^{interface} cannot listen on 127\.0\.0\.1:{used}: "):
            asyncio.run(server.run())
    if interface == "gRPC":  # the other port is closed again
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), SECONDS)


def test_a_second_server_does_not_share_ports(repository: Path) -> None:
    with serving(repository) as server:
        for ports in ((server.server.port, 0), (0, server.server.grpc_port)):
            with pytest.raises(Error, match="cannot listen"):
                asyncio.run(Server(ServerOptions(repository, port=ports[0], grpc_port=ports[1])).run())


def test_the_command_prints_one_line(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ovgpu", "serve", str(repository), "--host", "0.0.0.0", "--port", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "ovgpu: error: 0.0.0.0 can be reached from other machines: set --token-file, or --insecure if that is meant\n"
    )
