"""A kubeconfig means what it means to kubectl: which server, through which proxy, as whom. The program is
called as a person calls it, and one suite asks kubectl itself (--kubernetes DIR)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from installer import __version__
from installer.operator.api import NODES, ApiError, Limits
from installer.operator.kube import connect_as_kubectl
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.seen_requests import SeenRequests, serve_proxy

UNREACHABLE, WRONG = 69, 2
V1, BETA = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture
def server() -> Iterator[SeenRequests]:
    with SeenRequests() as found:
        yield found


@dataclass
class Machine:
    """That of a person, with a home of its own."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, content: object, name: str = "kubeconfig", mode: int = 0o600) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        return path

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        base = {key: value for key, value in os.environ.items() if key not in (*PROXIES, "KUBECONFIG")}
        home = {"HOME": str(self.home), "PYTHONPATH": str(EXTENSION)}
        return subprocess.run(
            [str(each) for each in command],
            env={**base, **home, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def report(self, kubeconfig: object = None, *more: str) -> subprocess.CompletedProcess[str]:
        """Nothing is installed where SeenRequests answers."""
        given = () if kubeconfig is None else ("--kubeconfig", self.write(kubeconfig))
        return self.run(Path(sys.executable).parent / "cri-resmgr-installer", "report", *given, *more)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def well(done: subprocess.CompletedProcess[str]) -> bool:
    assert not done.returncode, done.stderr
    return not done.stderr


def test_a_token_is_trimmed_and_the_request_says_who_we_are(machine: Machine, server: SeenRequests) -> None:
    for given in ("abc.def", "abc.def\n", " abc.def\r\n\t"):
        assert well(machine.report(server.kubeconfig({"token": given})))
        assert server.headers("authorization") == ["Bearer abc.def"]
        machine.write(given, "tok")
        assert well(machine.report(server.kubeconfig({"tokenFile": "tok"})))
        assert server.headers("authorization") == ["Bearer abc.def"]
    assert server.headers("user-agent") == [f"cri-resmgr-installer/{__version__}"]


def test_a_name_and_a_password(machine: Machine, server: SeenRequests) -> None:
    assert well(machine.report(server.kubeconfig({"username": "me", "password": "pa:ss"})))
    assert server.headers("authorization") == [f"Basic {b64encode(b'me:pa:ss').decode()}"]


def test_impersonation(machine: Machine, server: SeenRequests) -> None:
    extra = {"scope": ["x"], "example.org/k %": ["\u20ac"], "none": None}
    user = {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": extra}
    assert well(machine.report(server.kubeconfig(user)))
    assert server.headers("impersonate-user") == ["jane"]
    assert server.headers("impersonate-group") == ["a", "b"]
    assert server.headers("impersonate-extra-scope") == ["x"]
    (sent,) = server.headers("impersonate-extra-example.org%2fk%20%25")
    assert sent.encode("latin-1").decode() == "\u20ac"
    assert well(machine.report(server.kubeconfig({"token": "t", "as": "J\u00fcrgen"})))
    assert server.headers("impersonate-user")[0].encode("latin-1").decode() == "J\u00fcrgen"


@pytest.mark.parametrize(
    "user",
    [
        {"as-user-extra": {"k": "x"}},
        {"as-user-extra": {"k": 3}},
        {"as-user-extra": ["k"]},
        {"as-groups": [{"a": 1}]},
        {"as-groups": "a"},
        {"as": "a\nb"},
        {"exec": {}},
        {"exec": []},
    ],
    ids=str,
)
def test_what_kubectl_does_not_take_is_not_sent(
    machine: Machine, server: SeenRequests, user: dict[str, Any]
) -> None:
    asked = {"as": "jane", **user} if "exec" not in user else user
    assert machine.report(server.kubeconfig(asked)).returncode == WRONG
    assert not server.seen


def test_the_first_of_several_files_counts(machine: Machine, server: SeenRequests) -> None:
    """One is missing, one is empty, paths are relative to their own file."""
    machine.write("right", "sub/tok")
    paths = [
        machine.home / "missing",
        machine.write("", "empty"),
        machine.write(
            {"current-context": "x", "users": [{"name": "u", "user": {"tokenFile": "tok"}}]}, "sub/one"
        ),
        machine.write(server.kubeconfig({"token": "wrong"}) | {"current-context": "other"}, "two"),
    ]
    machine.environment["KUBECONFIG"] = ":".join(map(str, paths))
    assert well(machine.report())
    assert server.headers("authorization") == ["Bearer right"]


def test_without_any_file_that_says_something(machine: Machine) -> None:
    for name in ("empty", "missing"):
        machine.write("# nothing\n", "empty")
        machine.environment["KUBECONFIG"] = str(machine.home / name)
        done = machine.report()
        assert (done.returncode, "says nothing" in done.stderr) == (WRONG, True)


def test_a_server_that_is_not_verified_prints_no_warning(machine: Machine, server: SeenRequests) -> None:
    insecure = {"certificate-authority-data": None, "insecure-skip-tls-verify": True}
    assert well(machine.report(server.kubeconfig({"token": "t"}, **insecure)))


def test_a_certificate_for_another_name(machine: Machine) -> None:
    with SeenRequests("api.example.org") as server:
        done = machine.report(server.kubeconfig())
        assert done.returncode == UNREACHABLE
        assert "its certificate is not valid" in done.stderr
        assert well(machine.report(server.kubeconfig(**{"tls-server-name": "api.example.org"})))


def test_plain_http_carries_no_credentials(machine: Machine) -> None:
    given = {"server": "http://127.0.0.1:1", "certificate-authority-data": None}
    with SeenRequests() as server:
        done = machine.report(server.kubeconfig({"token": "marked-token-0123456789"}, **given))
    assert done.returncode == UNREACHABLE
    assert "Connection refused" in done.stderr


# -- proxies ----------------------------------------------------------------------------------------

FAR = "https://api.example.org:6443"


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("http://{}", ("http", "api.example.org:6443", "")),
        ("http://me:p%40ss@{}", ("http", "api.example.org:6443", "Basic " + b64encode(b"me:p@ss").decode())),
        ("socks5://{}", ("socks5", "api.example.org:6443", "")),
        ("socks5://me:p%40ss@{}", ("socks5", "api.example.org:6443", "me:p@ss")),
    ],
)
def test_a_proxy_of_the_kubeconfig(machine: Machine, url: str, used: tuple[str, str, str]) -> None:
    """NO_PROXY is not about it; the proxy resolves the name."""
    machine.environment |= {"NO_PROXY": "*"}
    with SeenRequests("api.example.org") as server, serve_proxy(server.port) as proxy:
        address = url.format(f"127.0.0.1:{proxy.port}")
        assert well(machine.report(server.kubeconfig(server=FAR, **{"proxy-url": address})))
        assert set(proxy.used) == {used}


@pytest.mark.parametrize(
    ("name", "value", "exceptions", "used"),
    [
        ("HTTPS_PROXY", "http://{}", "", True),
        ("https_proxy", "{}", "", True),
        ("HTTPS_PROXY", "socks5h://{}", "other.org,10.0.0.0/8", True),
        ("HTTPS_PROXY", "{}", "example.org", False),
        ("HTTPS_PROXY", "{}", ".example.org:6443", False),
        ("HTTPS_PROXY", "{}", ".api.example.org", True),
        ("HTTPS_PROXY", "{}", "example.org:443", True),
        ("HTTPS_PROXY", "{}", "*", False),
        ("HTTP_PROXY", "{}", "", False),
    ],
)
def test_a_proxy_of_the_environment(
    machine: Machine, name: str, value: str, exceptions: str, used: bool
) -> None:
    with SeenRequests("api.example.org") as server, serve_proxy(server.port) as proxy:
        machine.environment |= {name: value.format(f"127.0.0.1:{proxy.port}"), "NO_PROXY": exceptions}
        done = machine.report(server.kubeconfig(server=FAR))
        assert bool(proxy.used) is used
        assert done.returncode == (0 if used else UNREACHABLE), done.stderr


def test_an_address_of_this_machine_needs_no_proxy(machine: Machine, server: SeenRequests) -> None:
    machine.environment["HTTPS_PROXY"] = "127.0.0.1:1"
    assert well(machine.report(server.kubeconfig()))


def test_a_proxy_that_does_not_lead_there(machine: Machine) -> None:
    with SeenRequests("api.example.org") as server, serve_proxy(server.port) as proxy:
        proxy.refusal = 5
        given = {"proxy-url": f"socks5://127.0.0.1:{proxy.port}"}
        done = machine.report(server.kubeconfig(server=FAR, **given))
    assert done.returncode == UNREACHABLE
    assert "the SOCKS5 proxy 127.0.0.1 does not connect: connection refused" in done.stderr


def test_a_proxy_of_a_kind_that_nobody_knows(machine: Machine, server: SeenRequests) -> None:
    done = machine.report(server.kubeconfig(**{"proxy-url": "ftp://me:marked-password@proxy"}))
    assert (done.returncode, "must begin with http://" in done.stderr) == (WRONG, True)
    assert "marked" not in done.stderr


# -- credential plugins -----------------------------------------------------------------------------

CREDENTIAL = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "from-plugin"}}


def plugin(command: object, **more: object) -> dict[str, object]:
    return {"exec": {"apiVersion": V1, "interactiveMode": "Never", "command": str(command), **more}}


def script(machine: Machine, text: str) -> str:
    machine.write(f"#!/bin/sh\n{text}\n", "bin/plugin", 0o700)
    return "./bin/plugin"


def test_a_plugin_says_who(machine: Machine, server: SeenRequests) -> None:
    """It gets its arguments, its environment and, if it may, what there is to know of the cluster."""
    body = f"cat <<END\n{json.dumps(CREDENTIAL)}\nEND\nprintf '%s' \"$1 $MORE $KUBERNETES_EXEC_INFO\" >&2"
    given = plugin(
        script(machine, body), args=["one"], env=[{"name": "MORE", "value": "two"}], provideClusterInfo=True
    )
    done = machine.report(server.kubeconfig(given))
    assert server.headers("authorization") == ["Bearer from-plugin"]
    one, two, info = done.stderr.split(" ", 2)
    assert (one, two) == ("one", "two")
    asked = json.loads(info)
    assert asked["spec"]["interactive"] is False
    assert asked["spec"]["cluster"]["server"] == f"https://127.0.0.1:{server.port}"
    assert len(server.seen) > 1  # and it ran once


@pytest.mark.parametrize(
    ("until", "code", "runs"),
    [("2000-01-01T00:00:00Z", 200, 3), ("2200-01-01T00:00:00Z", 200, 1), (None, 401, 2)],
)
def test_a_plugin_runs_again_when_its_token_is_over(
    machine: Machine, server: SeenRequests, until: str | None, code: int, runs: int
) -> None:
    status = {"token": "from-plugin", "expirationTimestamp": until}
    ran = machine.home / "ran"
    command = script(machine, f"echo x >>{ran}; echo '{json.dumps(CREDENTIAL | {'status': status})}'")
    path = machine.write(server.kubeconfig(plugin(command)))
    client = connect_as_kubectl(str(path))
    server.answer = code, server.answer[1]
    said = []
    for _ in range(2):
        try:
            client.get(NODES, "", "n1")
        except ApiError as error:
            said.append(error.code)
    assert said == ([401, 401] if code == 401 else [])
    assert (len(server.seen), len(ran.read_text().split())) == (2, runs)


def test_a_person_may_take_longer_to_log_in_than_a_request_may_last(
    machine: Machine, server: SeenRequests
) -> None:
    later = machine.home / "later"
    expired = json.dumps(
        CREDENTIAL | {"status": {"token": "t", "expirationTimestamp": "2000-01-01T00:00:00Z"}}
    )
    command = script(machine, f"test ! -e {later} || sleep 2.5; echo '{expired}'")
    path = machine.write(server.kubeconfig(plugin(command)))
    client = connect_as_kubectl(str(path), limits=Limits(seconds=2.0))
    later.touch()
    assert client.get(NODES, "", "n1")


def test_a_connection_that_says_nothing_holds_up_no_other(machine: Machine, server: SeenRequests) -> None:
    """Somebody else's may come to a port that was theirs before."""
    with socket.create_connection(("127.0.0.1", server.port)):
        assert well(machine.report(server.kubeconfig({"token": "t"})))


def test_a_token_of_the_kubeconfig_comes_before_a_plugin(machine: Machine, server: SeenRequests) -> None:
    assert well(machine.report(server.kubeconfig({"token": "t", **plugin("/nowhere")})))
    assert server.headers("authorization") == ["Bearer t"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'log in first: run frob' >&2; exit 3", "failed with exit code 3"),
        ("echo marked-token-0123456789", "has printed no ExecCredential"),
        (f"echo '{json.dumps(CREDENTIAL | {'apiVersion': BETA})}'", f"its kubeconfig says {V1}"),
        (f"echo '{json.dumps(CREDENTIAL | {'status': {'x': 1}})}'", "neither a token nor a certificate"),
        (f"echo '{json.dumps(CREDENTIAL | {'status': {'clientKeyData': 'marked'}})}'", "not both"),
    ],
)
def test_a_plugin_that_fails(machine: Machine, server: SeenRequests, body: str, said: str) -> None:
    """No request is made as nobody."""
    done = machine.report(server.kubeconfig(plugin(script(machine, body))))
    assert (done.returncode, said in done.stderr) == (WRONG, True), done.stderr
    assert ("log in first: run frob" in done.stderr) is ("frob" in body)
    assert "marked" not in done.stderr
    assert not server.seen


def test_a_plugin_that_is_not_installed(machine: Machine, server: SeenRequests) -> None:
    done = machine.report(server.kubeconfig(plugin("no-such-plugin", installHint="brew install no-such")))
    assert (done.returncode, "brew install no-such" in done.stderr) == (WRONG, True)
    done = machine.report(server.kubeconfig(plugin("no-such-plugin")))
    assert "client-go-credential-plugins" in done.stderr


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "hint"),
    [(401, "log in again"), (403, " auth can-i --list`"), (500, "overloaded")],
)
def test_a_refusal_has_an_exit_code_and_a_hint(
    machine: Machine, server: SeenRequests, code: int, hint: str
) -> None:
    server.answer = code, json.dumps({"kind": "Status", "message": "so it is"}).encode()
    done = machine.report(server.kubeconfig({"token": "t"}))
    assert done.returncode == UNREACHABLE
    assert f"the API server: {code}: so it is" in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://127.0.0.1:1", "Connection refused"),
        ("https://no-such-host.invalid", "the name of the server or its proxy is not known"),
        ("http://127.0.0.1:{}", "no answer"),
    ],
)
def test_a_server_that_is_not_there(machine: Machine, server: SeenRequests, address: str, said: str) -> None:
    done = machine.report(server.kubeconfig(server=address.format(server.port)))
    assert (done.returncode, said in done.stderr) == (UNREACHABLE, True), done.stderr
    assert not any(each in done.stderr for each in ("object at", "Pool(", "Errno", "urllib3", "Caused by"))


MARKED = "marked-secret-0123456789"
BAD_KEY = b64encode(f"-----BEGIN PRIVATE KEY-----\n{MARKED}\n".encode()).decode()
ECHO = b'{"kind": "Status", "message": "I do not know TOKEN, and TOKE"}'


def broken(user: object, **cluster: object) -> Callable[[SeenRequests], Any]:
    return lambda server: server.kubeconfig(user, **cluster)


def listed(text: str) -> Callable[[SeenRequests], Any]:
    return lambda _: text


PATHS: Mapping[str, Callable[[SeenRequests], Any]] = {
    "a token over two lines": broken({"token": f"a\n{MARKED}"}),
    "a token with a letter of no header": broken({"token": f"{MARKED}\u20ac"}),
    "a token that is a list": broken({"token": [MARKED]}),
    "a token and a password": broken({"token": MARKED, "password": MARKED}),
    "a user as a text": broken(MARKED),
    "a user without its level": lambda server: (
        server.kubeconfig() | {"users": [{"name": "u", "token": MARKED}, {"name": "u", "token": MARKED}]}
    ),
    "users as an object": lambda server: server.kubeconfig() | {"users": {"u": {"token": MARKED}}},
    "a key that is not one": broken({"client-certificate-data": BAD_KEY, "client-key-data": BAD_KEY}),
    "a key that is not base64": broken({"client-certificate-data": BAD_KEY, "client-key-data": f"{MARKED}!"}),
    "a proxy with a password": broken({}, **{"proxy-url": f"http://u:{MARKED}@[bad"}),
    "a proxy that is away": broken({}, server=FAR, **{"proxy-url": f"http://u:{MARKED}@127.0.0.1:1"}),
    "a SOCKS5 proxy that is away": broken(
        {}, server=FAR, **{"proxy-url": f"socks5://u:{MARKED}@127.0.0.1:1"}
    ),
    "a server with a password": broken({}, server=f"https://u:{MARKED}@127.0.0.1:1"),
    "a server with a password and no port": broken({}, server=f"https://u:{MARKED}@h:port"),
    "not YAML, on the line": listed(f"users: [{{name: u, user: {{token: '{MARKED}"),
    "not YAML, a tag": listed(f"users:\n- user:\n    token: !{MARKED}\n"),
    "not YAML, an alias": listed(f"users:\n- user:\n    token: *{MARKED}\n"),
    "not YAML, a number": listed(f"users:\n- user:\n    token: !!int '{MARKED}'\n"),
    "not YAML, a key twice": listed(f"users:\n- user:\n    {MARKED}: 1\n    {MARKED}: 2\n"),
    "a server that repeats a token": broken({"token": MARKED}),
    "a server that repeats a password": broken({"username": "u", "password": MARKED}),
}


@pytest.mark.parametrize("name", PATHS)
def test_no_message_repeats_a_credential(machine: Machine, server: SeenRequests, name: str) -> None:
    server.answer = 401, ECHO
    for output in ("text", "json"):
        done = machine.report(PATHS[name](server), "--output", output)
        assert done.returncode in (WRONG, UNREACHABLE), done.stderr
        said = done.stdout + done.stderr
        assert not any(each in said for each in ("marked-s", b64encode(f"u:{MARKED}".encode()).decode()[:12]))
        assert "this is a bug" not in said


# -- kubectl itself ---------------------------------------------------------------------------------


def oidc(token: str, **more: str) -> dict[str, Any]:
    config = {"idp-issuer-url": "https://127.0.0.1:9", "client-id": "c", "id-token": token} | more
    return {"auth-provider": {"name": "oidc", "config": config}}


def token_until(seconds: int) -> str:
    claims = {"iss": "https://127.0.0.1:9", "sub": "s", "exp": seconds}
    parts = (json.dumps(each).encode() for each in ({"alg": "RS256"}, claims))
    return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + ".c2ln"


SHAPES: Mapping[str, Callable[[SeenRequests], Any]] = {
    "a token": broken({"token": "t"}),
    "white space behind a token": broken({"tokenFile": "tok"}),
    "no such token file": broken({"tokenFile": "nothing"}),
    "an empty token file": broken({"tokenFile": "empty"}),
    "a token and a password": broken({"token": "t", "username": "u", "password": "p"}),
    "a server without a scheme": lambda server: server.kubeconfig(
        {"token": "t"}, server=f"127.0.0.1:{server.port}"
    ),
    "a path with a slash at its end": lambda server: server.kubeconfig(
        {"token": "t"}, server=f"https://127.0.0.1:{server.port}/k8s/clusters/c-1/"
    ),
    "an authority and no verification": broken({"token": "t"}, **{"insecure-skip-tls-verify": True}),
    "no authority": broken({}, **{"certificate-authority-data": None}),
    "groups of nobody": broken({"as-groups": ["g"]}),
    "somebody else": broken({"token": "t", "as": "jane"}),
    "somebody with another alphabet": broken({"token": "t", "as": "J\u00fcrgen \u20ac"}),
    "somebody over two lines": broken({"token": "t", "as": "a\nb"}),
    "a key with a slash": broken({"token": "t", "as": "jane", "as-user-extra": {"example.org/k %": ["x"]}}),
    "a key without values": broken({"token": "t", "as": "jane", "as-user-extra": {"k": None}}),
    "a key with a text": broken({"token": "t", "as": "jane", "as-user-extra": {"k": "x"}}),
    "a key with a number": broken({"token": "t", "as": "jane", "as-user-extra": {"k": 3}}),
    "groups that are objects": broken({"token": "t", "as": "jane", "as-groups": [{"a": 1}]}),
    "a plugin without anything": broken({"exec": {}}),
    "a plugin that is a list": broken({"exec": []}),
    "a plugin whose token ends at no time": broken(
        plugin(
            "echo",
            args=[json.dumps(CREDENTIAL | {"status": {"token": "t", "expirationTimestamp": "soon"}})],
        )
    ),
    "no such user": lambda server: server.kubeconfig() | {"users": []},
    "no such cluster": lambda server: server.kubeconfig() | {"clusters": []},
    "no current context": lambda server: server.kubeconfig() | {"current-context": ""},
    "a name twice": lambda server: (
        server.kubeconfig() | {"users": [{"name": "u", "user": {}}, {"name": "u", "user": {"token": "t"}}]}
    ),
    "a number as a token": broken({"token": 12}),
    "a certificate without a key": broken({"client-certificate": "tok"}),
    "a plugin without a mode": broken({"exec": {"apiVersion": V1, "command": "true"}}),
    "a plugin of the first version": broken(
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "true"}}
    ),
    "a plugin that says nothing": broken(plugin("true")),
    "a plugin that fails": broken(plugin("false")),
    "a plugin that kubectl had": broken({"auth-provider": {"name": "gcp"}}),
    "an OpenID token": broken(oidc(token_until(4102444800))),
    "an OpenID token that is over": broken(oidc(token_until(1))),
    "an OpenID token of nobody": broken(oidc("")),
    "an OpenID token that is none": broken(oidc("abc")),
    "an OpenID token that cannot be renewed": broken(oidc(token_until(1), **{"refresh-token": "r"})),
    "an OpenID provider without its URL": broken(oidc(token_until(4102444800), **{"idp-issuer-url": ""})),
    "an OpenID provider without a client": broken(oidc(token_until(4102444800), **{"client-id": ""})),
    "an OpenID provider without anything": broken({"auth-provider": {"name": "oidc"}}),
    "an OpenID token beside a token": broken(oidc(token_until(4102444800)) | {"token": "t"}),
    "an OpenID token beside a plugin": broken(oidc(token_until(4102444800)) | plugin("true")),
    "a proxy of another kind": broken({}, **{"proxy-url": "ftp://127.0.0.1:1"}),
    "a proxy without a scheme": broken({}, **{"proxy-url": "127.0.0.1:1"}),
    "a proxy that resolves": broken({}, **{"proxy-url": "socks5h://127.0.0.1:1"}),
    "another kind of document": listed("kind: Pod\napiVersion: v1\n"),
    "a list": listed("[]"),
}


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (oidc(token_until(4102444800)), ""),
        (oidc(token_until(1)), "log in again"),
        (oidc(""), "the token of its auth-provider is empty"),
        ({"auth-provider": {"name": "oidc"}}, "has no idp-issuer-url"),
        (oidc(token_until(4102444800)) | plugin("true"), "only one is allowed"),
        ({"auth-provider": {"name": "azure"}}, "use the credential plugin kubelogin"),
    ],
    ids=["good", "over", "none", "empty", "with a plugin", "gone"],
)
def test_a_provider_works_or_says_what_is_missing(
    machine: Machine, server: SeenRequests, user: dict[str, Any], said: str
) -> None:
    done = machine.report(server.kubeconfig(user))
    assert (done.returncode, said in done.stderr) == (WRONG if said else 0, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", SHAPES)
def test_kubectl_takes_what_we_take(
    machine: Machine, server: SeenRequests, name: str, request: pytest.FixtureRequest
) -> None:
    programs = request.config.getoption("--kubernetes")
    if programs is None:
        pytest.skip("needs kubectl: --kubernetes DIR")
    machine.write("abc\n", "tok")
    machine.write("", "empty")
    given = SHAPES[name](server)
    ours = machine.report(given)
    said = [server.headers(each) for each in ("authorization", "impersonate-user")] if server.seen else None
    server.seen.clear()
    path = machine.home / "kubeconfig"
    theirs = machine.run(Path(programs) / "kubectl", "--kubeconfig", path, "get", "--raw", "/api/v1/nodes")
    told = [server.headers(each) for each in ("authorization", "impersonate-user")] if server.seen else None
    assert (ours.returncode == 0, said) == (theirs.returncode == 0, told), (ours.stderr, theirs.stderr)
    assert ours.returncode in (0, WRONG, UNREACHABLE)
