"""What `callboard login` keeps, and how the other commands come by it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from callboard.client.connection import Challenged
from callboard.client.errors import AuthorizationFailed, ClientError, HttpError, Origin, ServerError
from callboard.client.oauth.challenge import Demand, Parameters, demand_of, parse
from callboard.client.oauth.registration import check_document_url
from callboard.client.oauth.urls import place_of
from callboard.core.urls import printable
from callboard.oauth import FileStorage, OAuth, RedirectReceiver, StorageError

__all__ = ["SECRET", "Identity", "kept_login", "lacking_scopes", "make_login", "remember", "way_in"]

SECRET = "CALLBOARD_CLIENT_SECRET"  # noqa: S105 - the variable's name
"""Environment variable with the secret of a client that was registered beforehand; it is never kept."""
_BAD_REQUEST, _UNAUTHORIZED = 400, 401
# Schemes whose credentials a login gives.
_BY_LOGIN = {"bearer", "dpop"}
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who the client is at the authorization server, as far as it was said on the command line.

    Attributes:
        client_id: Id of a client that is registered there.
        client_metadata_url: URL of its metadata document.
        issuer: The authorization server.
    """

    client_id: str | None = None
    client_metadata_url: str | None = None
    issuer: str | None = None


class _Nobody:
    """Where nobody can be sent to a page: the commands that are no login."""

    redirect_uris = ()

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> NoReturn:
        raise AuthorizationFailed("somebody has to log in again", Origin(self._url))

    async def __aexit__(self, *_: object) -> None:
        """Nothing was opened."""

    async def __call__(self, url: str) -> str:
        """Never called: it can't be entered."""
        raise NotImplementedError


def make_login(
    folder: Path, identity: Identity, *, client_secret: str | None, scopes: tuple[str, ...], port: int, no_browser: bool
) -> OAuth:
    """Make what logs somebody in.

    Args:
        folder: Where tokens are kept.
        identity: Who the client is.
        client_secret: Its secret.
        scopes: What to ask for besides what the server demands.
        port: Port of 127.0.0.1 for the browser to come back to; 0 for any.
        no_browser: Whether the page's address is printed, and no browser opened.

    Raises:
        ValueError: Options that can't be meant.
    """
    try:
        place_of(identity.issuer or "https://localhost")
    except ValueError as error:
        raise ValueError(f"--issuer: {error}") from error
    try:
        check_document_url(identity.client_metadata_url or "https://localhost/client.json")
    except ValueError as error:
        raise ValueError("--client-metadata takes an https URL with a path, such as https://example.com/client.json") from error
    redirect = RedirectReceiver(port=port, open_page=_tell_page if no_browser else None) if port or no_browser else None
    return OAuth(
        client_id=identity.client_id,
        client_secret=client_secret,
        client_metadata_url=identity.client_metadata_url,
        issuer=identity.issuer,
        scopes=scopes,
        storage=FileStorage(folder),
        redirect=redirect,
    )


async def remember(folder: Path, url: str, identity: Identity) -> None:
    """Keep that somebody has logged in at a URL, and as which client.

    Raises:
        click.ClickException: The folder can't be used.
    """
    try:
        await FileStorage(folder).save(_key(url), msgspec.to_builtins(identity))
    except StorageError as error:
        raise click.ClickException(f"{error}.") from error


async def kept_login(folder: Path, url: str) -> OAuth | None:
    """Find what a login at a URL has left; None where nobody has logged in. Nobody is ever sent to a page.

    Raises:
        click.ClickException: The folder can't be used.
    """
    try:
        found: Any = await FileStorage(folder).load(_key(url))
        identity = msgspec.convert(found, Identity | None)
    except (ValueError, msgspec.ValidationError):  # no URL that one can log in at, or an entry of another kind
        return None
    except StorageError as error:
        raise click.ClickException(f"{error}.") from error
    if identity is None:
        return None
    return OAuth(
        client_id=identity.client_id,
        client_secret=os.environ.get(SECRET) if identity.client_id else None,
        client_metadata_url=identity.client_metadata_url,
        issuer=identity.issuer,
        storage=FileStorage(folder),
        redirect=_Nobody(url),
    )


def lacking_scopes(error: ClientError) -> tuple[str, ...]:
    """Scopes that a login needs so that it does not end in the same refusal; empty where any login may do (AC-14).

    Args:
        error: What came of it that nobody could log in.
    """
    for cause in _causes(error):
        if isinstance(cause, Challenged):
            demand = demand_of(cause.challenge.headers)
            return demand.scopes if demand.error == "insufficient_scope" else ()
    return ()


def way_in(error: ClientError, given: Mapping[str, str], *, option: str = "-H", tried: bool = False) -> str:
    """How to get in where a server at a URL has refused: by a login, by a header, or by another one than was given.

    Args:
        error: What came of it.
        given: Headers of the user's own.
        option: What takes such a header: an option, or a key of a configuration.
        tried: Whether it was a login that failed.

    Returns:
        A sentence; empty where there is none to say. No credential is in it.
    """
    refused = next((cause for cause in _causes(error) if _wants_credentials(cause)), None)
    if refused is None and not isinstance(error, AuthorizationFailed):
        return ""
    headers = getattr(refused, "challenges", ())
    demand = demand_of((("www-authenticate", value) for value in headers), sent=given)
    wanted, example = _wanted(challenge for value in headers for challenge in parse(value))
    words = ["callboard", "login", error.target, *(word for scope in lacking_scopes(error) for word in ("--scope", scope))]
    login = shlex.join(words)
    held = next((name for name in given if name.lower() == wanted.lower()), None)
    if held is not None:
        return _advise_other(error, demand, held, option, login)
    by_header = f"{option} {shlex.quote(f'{wanted}: {example}')}"
    if headers and not _BY_LOGIN & {*demand.schemes}:
        return f"It wants this header, with a credential of yours: {by_header}"
    if tried:  # to log in is no way out of it
        return "" if refused is None or demand.resource_metadata else f"Where it has no login but gives out tokens itself: {by_header}"
    if headers and not demand.resource_metadata:
        return f"It wants a token, and names nobody who gives one. With one of yours: {by_header}\nIf it has a login all the same: {login}"
    return f"To log in: {login}"


def _advise_other(error: ClientError, demand: Demand, held: str, option: str, login: str) -> str:
    """What to do where the header that was given is not good enough."""
    reason = printable(demand.description or demand.error).rstrip(".")
    said = f": {reason}" if reason and reason not in error.text else ""
    text = f"It refused the header {held} given with {option}{said}. Give another"
    return f"{text}, or leave it out and log in: {login}" if demand.resource_metadata else f"{text}."


def _wanted(challenges: Iterator[Parameters]) -> tuple[str, str]:
    """Name of the header that a server looks at, and what stands in it."""
    found = list(challenges)
    if not found or _BY_LOGIN & {challenge.scheme for challenge in found}:
        return "Authorization", "Bearer TOKEN"
    name = found[0].values.get("header", "")
    return (name, "KEY") if _HEADER.fullmatch(name) else ("Authorization", f"{found[0].scheme.capitalize()} CREDENTIAL")


def _wants_credentials(error: BaseException) -> bool:
    status = getattr(error, "status", None)
    return isinstance(error, HttpError | ServerError) and (status == _UNAUTHORIZED or (status == _BAD_REQUEST and bool(error.challenges)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _key(url: str) -> str:
    return f"callboard login {place_of(url).resource}"


def _tell_page(url: str) -> None:
    click.echo(f"Open this page in a browser of this machine:\n{url}", err=True)
