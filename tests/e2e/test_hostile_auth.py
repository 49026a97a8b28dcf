"""SA29 to SA31 over a socket: no token, a wrong one, somebody else's; and that it goes no further."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from asgi_driver import LATEST
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from e2e.hostile_driver import ERAS, Speaker, Target, stall
from e2e.raw_http import Response, ask, make_head
from jwt.algorithms import ECAlgorithm

RESOURCE = "https://mcp.example.com/mcp"
ISSUER = "https://login.example.com"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
Token = Callable[[], str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    options: dict[str, Any] = {"jwt": {"issuer": ISSUER, "keys": PUBLIC}, "resource": RESOURCE, "scopes": ["mcp"]}
    with stall(tmp_path_factory.mktemp("auth"), watched=False, **options) as target:
        yield target


def make_token(key: Any = KEY, *, algorithm: str = "ES256", header: dict[str, Any] | None = None, **changed: Any) -> str:
    """An access token; a claim of None is left out."""
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "alice", "scope": "mcp", "iat": now, "exp": now + 600, **changed}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"typ": "at+jwt", **(header or {})})


def confused() -> str:
    """A token whose signature takes the public key for a secret."""
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256"}, jwt.decode(make_token(), options={"verify_signature": False}))
    )
    signature = hmac.new(PUBLIC.encode(), head + b"." + body, hashlib.sha256).digest()
    return (head + b"." + body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def unsigned() -> str:
    """A token that nobody signed."""
    return make_token(None, algorithm="none")


WRONG: dict[str, Token] = {
    "garbage": lambda: "garbage",
    "three parts of garbage": lambda: "a.b.c",
    "SA29 expired": lambda: make_token(exp=int(time.time()) - 3600),
    "SA29 never expires": lambda: make_token(exp=None),
    "not yet": lambda: make_token(nbf=int(time.time()) + 3600),
    "SA30 another audience": lambda: make_token(aud="https://other.example.com/mcp"),
    "SA30 no audience": lambda: make_token(aud=None),
    "SA30 an audience that begins alike": lambda: make_token(aud=RESOURCE + ".evil"),
    "SA30 another issuer": lambda: make_token(iss="https://evil.example"),
    "SA30 the issuer with a slash": lambda: make_token(iss=ISSUER + "/"),
    "another key": lambda: make_token(OTHER),
    "the public key as a secret": confused,
    "not signed": unsigned,
    "a key of its own": lambda: make_token(
        OTHER, header={"jku": "http://127.0.0.1:1/keys", "jwk": json.loads(ECAlgorithm.to_jwk(OTHER.public_key()))}
    ),
    "a signature cut": lambda: make_token()[:-4],
    "long": lambda: "x" * 10_000,
}


def challenged(answer: Response, *, error: str | None) -> str:
    """Demand a 401 that says where to go; the challenge."""
    assert answer.status == 401
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert 'resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"' in challenge
    assert 'scope="mcp"' in challenge
    assert (f'error="{error}"' in challenge) if error else ("error=" not in challenge)
    assert "id" not in answer.message
    return challenge


def everything(port: int, token: str | None, path: str = "/mcp") -> list[Response]:
    """What all ways in come to."""
    sent = {} if token is None else {"authorization": f"Bearer {token}"}
    found = []
    for version in ERAS:
        speaker = Speaker(port, version, sent, opens=False)
        bodies = [speaker.encode("tools/list"), speaker.encode("initialize", {"protocolVersion": version}), b"garbage"]
        found += [ask(port, make_head(len(body), speaker.headers(), path=path) + body) for body in bodies]
        found += [ask(port, make_head(None, speaker.headers(), verb=verb, path=path)) for verb in ("GET", "DELETE")]
    return found


def test_without_a_token_nobody_gets_in(target: Target) -> None:
    # SA29
    for answer in everything(target.port, None):
        challenged(answer, error=None)


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_with_a_wrong_token_nobody_gets_in(target: Target, make: Token) -> None:
    # SA29, SA30
    token = make()
    for answer in everything(target.port, token):
        challenged(answer, error="invalid_token")
        assert token not in answer.body.decode()
        assert token not in json.dumps(answer.headers)


@pytest.mark.parametrize("query", ["access_token={}", "token={}", "authorization=Bearer%20{}"])
def test_a_token_in_the_address_is_none(target: Target, query: str) -> None:
    # SA29
    for answer in everything(target.port, None, "/mcp?" + query.format(make_token())):
        challenged(answer, error=None)


@pytest.mark.parametrize("version", ERAS)
def test_with_a_good_token_its_owner_gets_in(target: Target, version: str) -> None:
    # SA29: without this the tests above would pass for a server that refuses all
    speaker = Speaker(target.port, version, {"authorization": f"Bearer {make_token()}"})
    speaker.serves()
    answer = speaker.call("quick", authorization=None)
    assert answer.status == 401
    narrow = speaker.call("quick", authorization=f"Bearer {make_token(scope='other')}")
    assert narrow.status == 403
    assert 'error="insufficient_scope"' in narrow.headers["www-authenticate"]


def test_functions_see_no_token(target: Target) -> None:
    # SA31: what a function does not have it can't pass on
    token = make_token()
    seen = Speaker(target.port, LATEST, {"authorization": f"Bearer {token}", "cookie": "a=b"}).call("headers").body.decode()
    assert "mcp-method" in seen
    assert token not in seen
