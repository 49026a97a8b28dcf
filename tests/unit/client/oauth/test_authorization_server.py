"""The servers that the client's OAuth is tested against: they take what is right and nothing else."""

import base64
import hashlib
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import pytest
from authorization_server import AuthorizationServer, Client
from cryptography.hazmat.primitives.asymmetric import ec
from jwt_oracle import sign, unpadded
from protected_server import ProtectedServer, guarded

VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
BACK = "http://127.0.0.1:4444/callback"


async def authorize(
    http: aiohttp.ClientSession, server: AuthorizationServer, resource: str, /, **changes: str
) -> tuple[int, dict[str, str]]:
    query = {
        "response_type": "code", "client_id": "desk", "redirect_uri": BACK, "state": "s" * 16, "code_challenge": CHALLENGE,
        "code_challenge_method": "S256", "resource": resource, "scope": "mcp:basic", **changes,
    }  # fmt: skip
    kept = {name: value for name, value in query.items() if value != "-"}
    async with http.get(f"{server.url('authorize')}?{urlencode(kept)}", allow_redirects=False) as answer:
        return answer.status, dict(parse_qsl(urlsplit(answer.headers.get("location", "")).query))


async def redeem(http: aiohttp.ClientSession, server: AuthorizationServer, code: str, resource: str, /, **changes: str) -> dict[str, Any]:
    form = {
        "grant_type": "authorization_code", "code": code, "redirect_uri": BACK, "client_id": "desk", "code_verifier": VERIFIER,
        "resource": resource, **changes,
    }  # fmt: skip
    async with http.post(server.url("token"), data=form) as answer:
        return dict(await answer.json())


async def status(http: aiohttp.ClientSession, protected: ProtectedServer, token: str, scheme: str = "Bearer", **more: str) -> int:
    headers = {"authorization": f"{scheme} {token}", "accept": "application/json, text/event-stream", **more}
    async with http.post(protected.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers) as answer:
        return answer.status


def desk() -> AuthorizationServer:
    server = AuthorizationServer()
    server.clients["desk"] = Client("desk", redirect_uris=(BACK,))
    return server


async def test_a_code_becomes_a_token_that_opens_the_endpoint_once_each() -> None:
    async with guarded(desk()) as (server, protected), aiohttp.ClientSession() as http:
        code, back = await authorize(http, server, protected.url)
        assert code == 302
        assert (back["state"], back["iss"]) == ("s" * 16, server.issuer)
        tokens = await redeem(http, server, back["code"], protected.url)
        assert tokens["scope"] == "mcp:basic"
        assert await status(http, protected, tokens["access_token"]) not in {401, 403}
        assert await status(http, protected, tokens["access_token"], "DPoP") == 401
        assert await status(http, protected, "guess") == 401
        assert (await redeem(http, server, back["code"], protected.url))["error"] == "invalid_grant"
        renewed = await redeem(http, server, "", protected.url, grant_type="refresh_token", refresh_token=tokens["refresh_token"])
        assert await status(http, protected, renewed["access_token"]) not in {401, 403}
        again = await redeem(http, server, "", protected.url, grant_type="refresh_token", refresh_token=tokens["refresh_token"])
        assert again["error"] == "invalid_grant"
        assert await status(http, protected, renewed["access_token"]) == 401  # the family is over


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"redirect_uri": BACK + "/"}, 400),
        ({"client_id": "nobody"}, 401),
        ({"state": "-"}, "invalid_request"),
        ({"code_challenge": "-"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"resource": "-"}, "invalid_target"),
        ({"resource": "https://elsewhere.example/mcp"}, "invalid_target"),
        ({"scope": "root"}, "invalid_scope"),
        ({"response_type": "token"}, "unsupported_response_type"),
    ],
)
async def test_wrong_authorization_requests(changes: dict[str, str], error: str | int) -> None:
    async with guarded(desk()) as (server, protected), aiohttp.ClientSession() as http:
        code, back = await authorize(http, server, protected.url, **changes)
        assert (back.get("error") if isinstance(error, str) else code) == error
        assert "code" not in back
        assert server.violations


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_verifier": "w" * 43}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:4445/callback"}, "invalid_grant"),
        ({"resource": "https://elsewhere.example"}, "invalid_target"),
        ({"client_secret": "x"}, "invalid_client"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
    ],
)
async def test_wrong_token_requests(changes: dict[str, str], error: str) -> None:
    async with guarded(desk()) as (server, protected), aiohttp.ClientSession() as http:
        _, back = await authorize(http, server, protected.url)
        assert (await redeem(http, server, back["code"], protected.url, **changes))["error"] == error


def proof(key: ec.EllipticCurvePrivateKey, method: str, url: str, **claims: Any) -> str:
    numbers = key.public_key().public_numbers()
    jwk = {"kty": "EC", "crv": "P-256", "x": unpadded(numbers.x.to_bytes(32, "big")), "y": unpadded(numbers.y.to_bytes(32, "big"))}
    body = {"htm": method, "htu": url, "iat": int(time.time()), "jti": "j" * 16, **claims}
    return sign({"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk}, body, key)


@pytest.mark.parametrize(
    "claims",
    [{"htm": "GET"}, {"htu": "http://x/mcp"}, {"iat": 1}, {"iat": "now"}, {"jti": "short"}, {"ath": "AAAA"}, {"ath": None}],
)
async def test_wrong_proofs(claims: dict[str, Any]) -> None:
    server = desk()
    server.clients["machine"] = Client("machine", "s3", method="client_secret_post")
    server.dpop, server.auth_methods = "required", ("client_secret_post",)
    form = {"grant_type": "client_credentials", "client_id": "machine", "client_secret": "s3"}
    key = ec.generate_private_key(ec.SECP256R1())
    async with guarded(server) as (_, protected), aiohttp.ClientSession() as http:
        form["resource"] = protected.url
        good = {"dpop": proof(key, "POST", server.url("token"))}
        async with http.post(server.url("token"), data=form, headers=good) as answer:
            token = (await answer.json())["access_token"]
        async with http.post(server.url("token"), data=form, headers=good) as answer:
            assert (await answer.json())["error"] == "invalid_dpop_proof"  # the same jti
        ath = unpadded(hashlib.sha256(token.encode()).digest())
        assert await status(http, protected, token) == 401  # as a bearer token
        right = proof(key, "POST", protected.url, ath=ath)
        other = proof(ec.generate_private_key(ec.SECP256R1()), "POST", protected.url, ath=ath, jti="o" * 16)
        assert await status(http, protected, token, "DPoP", dpop=right) not in {401, 403}
        assert await status(http, protected, token, "DPoP", dpop=other) == 401
        wrong = proof(key, "POST", protected.url, **{"ath": ath, "jti": "w" * 16, **claims})
        assert await status(http, protected, token, "DPoP", dpop=wrong) == 401
