"""Tokens that are bound to a key, tokens on the word of an identity provider or of a platform."""

import base64
from typing import Any

import pytest
from jwt_oracle import Nonces, parts
from machines import IDP_SECRET, asked, bound, credentials, make_wire, managed, vouched, with_idp
from oauth_wire import Wire, page
from recording_app import Answer

from callboard.client.auth import Challenge
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.grants import WorkloadIdentity

# Keys


def with_keys(required: bool = True, **options: Any) -> Wire:
    wire = make_wire(prm_changes={"dpop_bound_access_tokens_required": required or None}, **options)
    wire.authorization.dpop = "on"
    return wire


async def test_tokens_are_bound_to_a_key_where_the_server_wants_it() -> None:
    """EX-06."""
    wire = with_keys()
    auth = credentials(wire)
    for _ in range(3):
        assert await wire.call(auth) == 200
    proofs = [request.headers["dpop"] for request in wire.protected.accepted]
    assert len(set(proofs)) == 3
    assert {request.headers["authorization"].split()[0] for request in wire.protected.accepted} == {"DPoP"}
    wire.authorization.end_tokens()
    assert await wire.call(auth) == 200
    assert len({token.thumbprint for token in wire.authorization.tokens.values()}) == 1  # the same key


@pytest.mark.parametrize("uses", [0, 1, 2])
async def test_nonces_of_both_servers(uses: int) -> None:
    """EX-06: one more request when there is no nonce yet, or it is over; never two."""
    wire = with_keys()
    wire.authorization.nonces, wire.protected.nonces = Nonces(uses), Nonces(uses)
    auth = credentials(wire)
    for _ in range(4):
        assert await wire.call(auth) == 200
    assert len(asked(wire)) == 2
    assert len(wire.protected.sent("mcp")) == 4 + 1  # each answer names the nonce of the next proof
    wire.now += 4000
    assert await wire.call(auth) == 200
    assert len(asked(wire)) == 3
    assert len(wire.protected.sent("mcp")) == 6
    for server in (wire.authorization, wire.protected):
        assert server.nonces is not None
        server.nonces.renew()
    assert await wire.call(auth) == 200
    assert len(wire.protected.sent("mcp")) == 8
    assert len(asked(wire)) == 3  # a nonce that is over costs no token


async def test_a_nonce_that_changes_all_the_time() -> None:
    wire = with_keys()
    auth = credentials(wire)
    await wire.call(auth)
    wire.protected.nonces = Nonces()
    renew = wire.protected.nonces.renew
    wire.protected.nonces.take = lambda nonce: bool(renew())  # type: ignore[method-assign]
    assert await wire.call(auth) == 401
    assert len(asked(wire)) == 1


async def test_a_nonce_that_is_never_taken() -> None:
    """EX-06: the proof held just what the server asks for, so another one would fare no better."""
    wire = with_keys()
    auth = credentials(wire)
    await wire.call(auth)
    wire.protected.nonces = Nonces()
    wire.protected.nonces.take = lambda nonce: False  # type: ignore[method-assign]
    with pytest.raises(AuthorizationFailed, match="use_dpop_nonce"):
        await wire.call(auth)
    assert len(wire.protected.sent("mcp")) == 4
    assert len(asked(wire)) == 1


async def test_a_proof_that_is_refused() -> None:
    wire = with_keys()
    auth = credentials(wire)
    wire.protected.clock = lambda: wire.now + 3600  # type: ignore[attr-defined]
    await wire.call(auth)
    sent = await auth.headers("POST", wire.protected.url)
    headers = (("www-authenticate", 'DPoP error="invalid_dpop_proof", error_description="old"'),)
    with pytest.raises(AuthorizationFailed, match=r"invalid_dpop_proof: old\); compare this machine's clock"):
        await auth.answer(Challenge(401, "POST", wire.protected.url, headers, sent))
    assert len(asked(wire)) == 1


async def test_without_need_there_is_no_key() -> None:
    """Authorization servers list their algorithms whatever the MCP server takes."""
    wire = with_keys(required=False)
    assert await wire.call(credentials(wire)) == 200
    assert "dpop" not in wire.authorization.sent("token")[0].headers
    wire = with_keys(required=False)
    assert await wire.call(credentials(wire, dpop=True)) == 200
    assert "dpop" in wire.protected.accepted[0].headers


@pytest.mark.parametrize(
    ("dpop", "algorithms", "says"),
    [(False, ["ES256"], "leave dpop=False away"), (None, ["RS256"], "ES256"), (True, ["RS256"], "ES256"), (None, None, "ES256")],
)
async def test_keys_that_do_not_fit(dpop: bool | None, algorithms: list[str] | None, says: str) -> None:
    wire = with_keys()
    wire.authorization.metadata_changes["dpop_signing_alg_values_supported"] = algorithms
    with pytest.raises(AuthorizationFailed, match=says):
        await wire.call(credentials(wire, dpop=dpop))
    assert not asked(wire)


async def test_a_bearer_token_where_a_bound_one_was_asked_for() -> None:
    wire = make_wire()
    with pytest.raises(AuthorizationFailed, match="bound to no key"):
        await wire.call(credentials(wire, dpop=True))
    assert len(wire.protected.sent("mcp")) == 1


# Enterprise-managed authorization


async def test_the_identity_provider_vouches_for_somebody() -> None:
    """EM-01, EM-02."""
    wire, idp = with_idp()
    wire.protected.challenge_scope = "mcp:read"
    assert await wire.call(managed(wire, idp)) == 200
    (exchange,), (request,) = idp.sent("token"), wire.authorization.sent("token")
    subject = exchange.form.pop("subject_token", "") or exchange.form["subject_token"]
    assert parts(subject)[1]["aud"] == "idp-desk"
    assert {name: value for name, value in exchange.form.items() if name != "subject_token"} == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "audience": wire.authorization.issuer,
        "resource": wire.protected.url,
        "scope": "mcp:read",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
    }
    assert set(request.form) == {"grant_type", "resource", "scope", "assertion"}
    assert parts(request.form["assertion"])[1]["aud"] == wire.authorization.issuer
    assert IDP_SECRET.encode() not in base64.b64decode(request.headers["authorization"].split()[1])
    assert b"s3cr3t%3A" not in base64.b64decode(exchange.headers["authorization"].split()[1])
    assert not wire.authorization.sent("authorize")  # EM-02: nobody is sent there


async def test_each_token_is_asked_for_with_a_fresh_word() -> None:
    wire, idp = with_idp()
    given: list[str] = []

    async def subject() -> str:
        given.append(idp.identity_token("idp-desk"))
        return given[-1]

    auth = managed(wire, idp, subject_token=subject)
    assert await wire.call(auth) == 200
    wire.now += 4000
    assert await wire.call(auth) == 200
    assert len(given) == 2


async def test_the_identity_provider_is_found_by_its_issuer() -> None:
    wire, idp = with_idp()
    assert await wire.call(managed(wire, idp, idp_token_endpoint=None, idp_issuer=idp.issuer)) == 200
    idp.metadata_changes["issuer"] = "https://idp.example/other"
    with pytest.raises(AuthorizationFailed, match="exchanging the subject token at the identity provider"):
        await wire.call(managed(wire, idp, idp_token_endpoint=None, idp_issuer=idp.issuer))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (page(400, b'{"error": "invalid_grant", "error_description": "log in again"}'), "invalid_grant: log in again"),
        (page(500, b""), "HTTP 500"),
        (page(200, b'{"access_token": "x", "token_type": "Bearer", "issued_token_type": "urn:x"}'), "gave no ID-JAG but 'urn:x'"),
        (page(200, b"[]"), "gave no ID-JAG"),
        (page(200, b'{"issued_token_type": "urn:ietf:params:oauth:token-type:id-jag", "access_token": ""}'), "gave no ID-JAG"),
    ],
)
async def test_identity_providers_that_do_not_vouch(fault: list[Answer], says: str) -> None:
    wire, idp = with_idp()
    idp.faults["token"] = fault
    with pytest.raises(AuthorizationFailed, match=says) as caught:
        await wire.call(managed(wire, idp))
    assert "identity provider" in str(caught.value)
    assert not asked(wire)


async def test_an_authorization_server_that_takes_no_such_word() -> None:
    """EM-03."""
    wire, idp = with_idp()
    wire.authorization.metadata_changes["authorization_grant_profiles_supported"] = ["urn:other"]
    with pytest.raises(AuthorizationFailed, match="takes no tokens of identity providers"):
        await wire.call(managed(wire, idp))
    assert not idp.requests
    wire.authorization.metadata_changes["authorization_grant_profiles_supported"] = ["urn:ietf:params:oauth:grant-profile:id-jag"]
    assert await wire.call(managed(wire, idp)) == 200


async def test_a_word_for_somebody_else_is_refused() -> None:
    """EM-04: by the server; the client says at which step."""
    wire, idp = with_idp()
    wire.authorization.trusted = {}
    with pytest.raises(AuthorizationFailed, match=r"asking for a token with the identity provider's word: .*invalid_grant"):
        await wire.call(managed(wire, idp))


# Workload identity


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "private_key_jwt"])
async def test_a_workload_shows_what_its_platform_gave(method: str) -> None:
    """EX-07: nothing but the assertion says who asks."""
    wire = make_wire(method)
    assertion = vouched(wire)
    assert await wire.call(bound(wire, WorkloadIdentity(assertion, clock=wire.clock))) == 200
    (request,) = wire.authorization.sent("token")
    assert request.form == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": assertion,
        "resource": wire.protected.url,
    }
    assert "authorization" not in request.headers


async def test_a_workload_gets_fresh_assertions() -> None:
    wire = make_wire()
    audiences: list[str] = []

    async def fresh(audience: str) -> str:
        audiences.append(audience)
        return vouched(wire, aud=audience)

    auth = bound(wire, WorkloadIdentity(fresh, client_id="job", clock=wire.clock))
    assert await wire.call(auth) == 200
    wire.now += 4000
    assert await wire.call(auth) == 200
    assert audiences == [wire.authorization.url("token")] * 2
    assert asked(wire)[0]["client_id"] == "job"


@pytest.mark.parametrize("changes", [{"aud": "https://elsewhere.example"}, {"exp": 1}, {"iss": "https://nobody.example"}])
async def test_a_refused_assertion_is_not_shown_again(changes: dict[str, Any]) -> None:
    """EX-07: neither a retry nor another grant."""
    wire = make_wire()
    auth = bound(wire, WorkloadIdentity(vouched(wire, **changes), clock=wire.clock))
    with pytest.raises(AuthorizationFailed, match=r"workload's assertion: .*invalid_grant"):
        await wire.call(auth)
    for _ in range(3):
        with pytest.raises(AuthorizationFailed, match="was refused before"):
            await wire.call(auth)
    assert len(asked(wire)) == 1


@pytest.mark.parametrize(("result", "says"), [(ValueError("s3cr3t"), "raised ValueError"), (None, "gave no text"), ("", "gave no text")])
async def test_functions_that_give_nothing(result: Any, says: str) -> None:
    wire = make_wire()

    async def source(audience: str) -> str:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    with pytest.raises(AuthorizationFailed, match=says) as caught:
        await wire.call(bound(wire, WorkloadIdentity(source, clock=wire.clock)))
    assert "s3cr3t" not in str(caught.value)
