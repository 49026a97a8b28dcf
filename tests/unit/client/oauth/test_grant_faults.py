"""Machines in front of servers that fail, and of those that mean harm; and values that no machine can use."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator

import pytest
from authorization_server import AuthorizationServer
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import IDP_SECRET, KEYS, SECRET, bound, credentials, make_wire, managed, pem, vouched, with_idp
from oauth_wire import page
from recording_app import Answer

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.grants import ClientCredentials, EnterpriseManaged, Machine, WorkloadIdentity

# Servers that fail, and those that mean harm

FAULTS: dict[str, tuple[str, list[Answer], str]] = {
    "token 500": ("token", page(500, b"<h1>oops</h1>", "text/html"), "HTTP 500"),
    "token HTML": ("token", page(200, b"<html>log in</html>", "text/html"), "no JSON object"),
    "token garbage": ("token", page(200, b'{"access_token": '), "no JSON object"),
    "token deep": ("token", page(200, b"[" * 100_000), "no JSON object"),
    "token list": ("token", page(200, b'["access_token"]'), "no JSON object"),
    "token without": ("token", page(200, b'{"token_type": "Bearer"}'), "no access_token"),
    "token split": ("token", page(200, b'{"access_token": "a\\r\\nX: y", "token_type": "Bearer"}'), "no access_token"),
    "token number": ("token", page(200, b'{"access_token": 1, "token_type": "Bearer"}'), "no access_token"),
    "token kind": ("token", page(200, b'{"access_token": "a", "token_type": "mac"}'), "token_type"),
    "token moved": ("token", page(307, b"", location="https://evil.example/token"), "HTTP 307"),
    "token quotes": ("token", page(400, json.dumps({"error": "x", "error_description": f"no {SECRET}"}).encode()), "refuses: x"),
    "token empty": ("token", page(204, b""), "HTTP 204"),
    "metadata 500": ("metadata", page(500, b""), "HTTP 500"),
    "metadata HTML": ("metadata", page(200, b"<html>", "text/html"), "no metadata"),
    "metadata garbage": ("metadata", page(200, b"{{"), "can't be read"),
    "metadata moved": ("metadata", page(302, b"", location="https://evil.example/"), "evil.example"),
    "metadata loop": ("metadata", page(302, b"", location="https://as.example/.well-known/x"), "redirects more than"),
    "metadata inward": ("metadata", page(302, b"", location="http://169.254.169.254/latest"), "169.254"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_faults_of_the_authorization_server(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """SC-03, SC-07: a named error, and nothing of the client's goes elsewhere or into a text."""
    kind, answers, says = FAULTS[name]
    caplog.set_level(logging.DEBUG)
    wire = make_wire()
    evil = AuthorizationServer()
    wire.add(evil, "https://evil.example")
    wire.authorization.faults[kind] = answers
    with pytest.raises(AuthorizationFailed, match=says) as caught:
        await wire.call(credentials(wire))
    assert not evil.requests
    assert not [text for text in texts(caught.value) if "s3cr3t" in text]
    assert "s3cr3t" not in caplog.text
    assert wire.protected.url in str(caught.value)


def texts(error: BaseException | None) -> Iterator[str]:
    """Texts of an error and of all that led to it."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


async def test_servers_that_are_down() -> None:
    wire = make_wire()
    del wire.apps["https://as.example"]
    with pytest.raises(AuthorizationFailed, match=r"finding the authorization server: .*nobody listens there"):
        await wire.call(credentials(wire))
    wire.apps["https://as.example"] = wire.authorization
    wire.authorization.metadata_changes["token_endpoint"] = "https://down.example/token"
    with pytest.raises(AuthorizationFailed, match=r"asking for a token .*down\.example.*nobody listens there"):
        await wire.call(credentials(wire))


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.dictionaries(
            st.sampled_from(["access_token", "token_type", "expires_in", "scope", "refresh_token", "error"]),
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["Bearer", "DPoP", "tok"])
            ),
        ).map(lambda fields: json.dumps(fields).encode()),
    )
)
def test_any_answer_gives_a_token_or_a_named_error(body: bytes) -> None:
    async def run() -> None:
        wire = make_wire()
        auth = credentials(wire)
        wire.authorization.faults["token"] = page(200, body)
        try:
            await wire.call(auth)
        except AuthorizationFailed:
            return
        headers = await auth.headers("POST", wire.protected.url)
        assert headers["Authorization"].isprintable()

    asyncio.run(run())


# What users write


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClientCredentials("", "x"), "client_id"),
        (lambda: ClientCredentials("x"), "client_secret or private_key"),
        (lambda: ClientCredentials("x", ""), "client_secret or private_key"),
        (lambda: ClientCredentials("x", SECRET, private_key=pem(KEYS["ES256"])), "not both"),
        (lambda: ClientCredentials("x", private_key=SECRET), "PEM"),
        (lambda: ClientCredentials("x", SECRET, scopes=['a"b']), "scopes"),
        (lambda: ClientCredentials("x", SECRET, scopes=["é"]), "scopes"),
        (lambda: ClientCredentials("x", SECRET, issuer="as.example"), "issuer"),
        (lambda: ClientCredentials("x", SECRET, issuer="http://as.example"), "https"),
        (lambda: EnterpriseManaged("x", SECRET, subject_token=SECRET, idp_client_id="y"), "idp_issuer or idp_token_endpoint"),
        (lambda: EnterpriseManaged("x", subject_token="", idp_client_id="y", idp_issuer="https://i.example"), "subject_token"),
        (lambda: EnterpriseManaged("x", subject_token="t", idp_client_id="y", idp_issuer="http://i.example"), "idp_issuer"),
        (
            lambda: EnterpriseManaged("x", subject_token="t", idp_client_id="y", idp_issuer="https://i.example", subject_type="jwt"),
            "subject_type",
        ),
        (lambda: WorkloadIdentity(""), "assertion"),
    ],
)
def test_values_that_can_not_be_used(make: Callable[[], Machine], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "s3cr3t" not in str(caught.value)


async def test_nothing_secret_is_shown() -> None:
    wire, idp = with_idp()
    for auth in (credentials(wire), managed(wire, idp), bound(wire, WorkloadIdentity(vouched(wire), clock=wire.clock))):
        await wire.call(auth)
        shown = repr(auth) + "".join(repr(value) for value in vars(auth).values() if type(value).__module__.startswith("callboard"))
        for secret in (*wire.authorization.tokens, SECRET, IDP_SECRET):
            assert secret not in shown
