"""How to get in where a server refuses: by a login, by a header, or by another one than was given (AR-04, AC-02)."""

import pytest

from callboard import cli
from callboard.cli_login import way_in
from callboard.client.auth import Challenge
from callboard.client.connection import Challenged
from callboard.client.errors import AuthorizationFailed, ClientError, HttpError, Origin, ServerError

URL = "https://b.example/mcp"
AT = Origin(URL)
LOGIN = f"callboard login {URL}"
WHERE = 'resource_metadata="https://b.example/.well-known/oauth-protected-resource/mcp"'
BEARER = {"Authorization": "Bearer my-own-secret"}


def refused(*challenges: str, status: int = 401, message: str = "no") -> ServerError:
    return ServerError(401, message, None, status, AT, challenges=challenges)


def failed(*challenges: str) -> ClientError:
    """A login that failed, after a refusal."""
    headers = tuple(("www-authenticate", value) for value in challenges)
    error = AuthorizationFailed("no", AT)
    error.__context__ = Challenged(Challenge(401, "POST", URL, headers), "", AT)
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HttpError(401, "", AT), f"To log in: {LOGIN}"),
        (refused(f"Bearer {WHERE}"), f"To log in: {LOGIN}"),
        (failed(f"Bearer {WHERE}"), f"To log in: {LOGIN}"),
        (AuthorizationFailed("no", AT), f"To log in: {LOGIN}"),
        (
            failed(f'Bearer error="insufficient_scope", scope="a b", {WHERE}'),
            f"To log in: {LOGIN} --scope a --scope b",
        ),
        (refused("Bearer"), f"one of yours: -H 'Authorization: Bearer TOKEN'\nIf it has a login all the same: {LOGIN}"),
        (refused('ApiKey header="x-key"'), "It wants this header, with a credential of yours: -H 'x-key: KEY'"),
        (refused('Basic realm="x"'), "-H 'Authorization: Basic CREDENTIAL'"),
        (refused('ApiKey header="x\'; rm -rf"'), "-H 'Authorization: Apikey CREDENTIAL'"),
        (refused("x'y"), "'Authorization: X'\"'\"'y CREDENTIAL'"),
        (refused('Basic realm="x"', f"Bearer {WHERE}"), f"To log in: {LOGIN}"),
        (refused('Bearer error="invalid_request"', status=400), f"If it has a login all the same: {LOGIN}"),
    ],
)
def test_the_way_in_is_what_the_challenge_says(error: ClientError, said: str) -> None:
    assert way_in(error, {}).endswith(said)


@pytest.mark.parametrize("error", [HttpError(403, "", AT), refused(status=400), refused("Bearer", status=500), ClientError("no", AT)])
def test_what_is_about_no_credentials_has_none(error: ClientError) -> None:
    assert way_in(error, BEARER) == ""


def test_a_header_that_was_given_is_not_given_again() -> None:
    text = "It refused the header Authorization given with -H"
    assert way_in(refused("Bearer"), BEARER) == f"{text}. Give another."
    assert way_in(refused(f"Bearer {WHERE}"), BEARER) == f"{text}. Give another, or leave it out and log in: {LOGIN}"
    ended = 'Bearer error="invalid_token", error_description="The token has ended."'
    assert way_in(refused(ended), BEARER) == f"{text}: The token has ended. Give another."
    assert way_in(refused(ended, message="The token has ended."), BEARER) == f"{text}. Give another."
    assert way_in(refused('ApiKey header="x-key"'), {"X-Key": "mine"}) == "It refused the header X-Key given with -H. Give another."
    assert way_in(refused('ApiKey header="x-key"'), BEARER).endswith("-H 'x-key: KEY'")  # another one than it wants


def test_no_reason_shows_the_credential_or_breaks_the_line() -> None:
    said = way_in(refused('Bearer error_description="my-own-secret\x1b[1m\nis bad"'), BEARER)
    assert said == "It refused the header Authorization given with -H: ***?[1m?is bad. Give another."


def test_a_login_that_failed_is_no_way_out_of_it() -> None:
    assert way_in(failed(f"Bearer {WHERE}"), {}, tried=True) == ""
    assert way_in(AuthorizationFailed("no", AT), {}, tried=True) == ""
    assert way_in(failed("Bearer"), {}, tried=True).endswith("-H 'Authorization: Bearer TOKEN'")
    assert way_in(failed('ApiKey header="x-key"'), {}, tried=True).endswith("-H 'x-key: KEY'")


def test_it_is_said_for_urls_alone_and_fit_for_a_shell() -> None:
    assert cli._way_in(HttpError(401, "", Origin(f"{URL}?a=1&b")), {}, "-H") == f"\nTo log in: callboard login '{URL}?a=1&b'"
    assert cli._way_in(AuthorizationFailed("no", Origin("npx x")), {}, "-H") == ""
