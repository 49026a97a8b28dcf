"""URLs of a Redis: what each form means, what is shown of it, and what is refused without a word of its password."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.errors import RegistrationError
from callboard.stores.redis import RedisStore
from callboard.stores.redis_url import read_url

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "kind", "nodes", "db", "shown"),
    [
        ("redis://localhost", "one", (("localhost", 6379),), 0, "redis://localhost:6379"),
        ("redis://h:1/2", "one", (("h", 1),), 2, "redis://h:1/2"),
        ("redis://h:1?db=3", "one", (("h", 1),), 3, "redis://h:1/3"),
        ("rediss://u:s3cr3t@h/0", "one", (("h", 6379),), 0, "rediss://h:6379/0"),
        ("valkey://[::1]:7/1", "one", (("::1", 7),), 1, "valkey://[::1]:7/1"),
        ("REDIS://h/", "one", (("h", 6379),), 0, "redis://h:6379"),
        ("unix:///run/redis.sock?db=4", "unix", (), 4, "unix:///run/redis.sock"),
        ("unix://u:s3cr3t@/run/redis.sock", "unix", (), 0, "unix:///run/redis.sock"),
        ("redis+sentinel://a,b:2/main/5", "sentinel", (("a", 26379), ("b", 2)), 5, "redis+sentinel://a:26379,b:2/main/5"),
        ("rediss+cluster://:s3cr3t@a:1,b", "cluster", (("a", 1), ("b", 6379)), 0, "rediss+cluster://a:1,b:6379"),
    ],
)
def test_every_form(url: str, kind: str, nodes: tuple[tuple[str, int], ...], db: int, shown: str) -> None:
    place = read_url(url)
    assert (place.kind, place.nodes, place.db) == (kind, nodes, db)
    assert place.shown.removesuffix("/0") == shown.removesuffix("/0")
    assert SECRET not in repr(place)
    assert (place.password == SECRET) == (SECRET in url)
    assert place.tls == url.startswith("rediss")


def test_options_are_read() -> None:
    url = "rediss+sentinel://u:p%40@h/m?ssl_ca_certs=/a%20b&ssl_check_hostname=false&sentinel_username=x&sentinel_password=s3cr3t&ssl_password=s3cr3t"
    place = read_url(url)
    assert (place.username, place.password) == ("u", "p@")
    assert place.options == {"ssl_ca_certs": "/a b", "ssl_check_hostname": False, "ssl_password": SECRET}
    assert place.sentinel == {"username": "x", "password": SECRET}
    assert SECRET not in repr(place)
    assert place.hide(f"bad {SECRET}") == "bad ***"
    assert read_url("rediss://h?ssl_cert_reqs=none").options == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h", "another scheme"),
        ("s3cr3t", "another scheme"),
        ("redis://", "host or port"),
        ("redis://:s3cr3t@h:port", "host or port"),
        ("redis://:s3cr3t@h:70000", "host or port"),
        ("redis://:a/s3cr3t@h:1/0", "host or port"),
        ("redis://:a#s3cr3t@h:1/0", "'#'"),
        ("redis://:a?s3cr3t@h:1/0", "host or port"),
        ("redis://[::1/0", "host"),
        ("redis://h/zero", "number"),
        ("redis://h/0/1", "nothing else"),
        ("redis://h/1?db=2", "number"),
        ("redis://a,b/0", "more than one host"),
        ("redis://h?password=s3cr3t", "'password' is not known"),
        ("redis://h?S3cr3t-s3cr3t=1", "one of its options is not known"),
        ("redis://h?ssl_ca_certs=x", "rediss://"),
        ("rediss://h?ssl_check_hostname=perhaps", "true or false"),
        ("unix://host/path", "three slashes"),
        ("unix://", "three slashes"),
        ("redis+sentinel://h", "know the master by"),
        ("redis+cluster://h/1", "one database only"),
    ],
)
def test_what_is_wrong_is_said_without_what_is_secret(url: str, why: str) -> None:
    with pytest.raises(RegistrationError, match="URL of") as caught:
        RedisStore(url)
    assert why in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@given(st.text(max_size=30), st.sampled_from(["redis://", "redis+sentinel://", "unix://", "rediss+cluster://u:p@", ""]))
@example("[", "redis://")
@example("h:\u0663", "redis://")
def test_any_text_is_a_place_or_a_clear_refusal(text: str, scheme: str) -> None:
    try:
        place = read_url(scheme + text)
    except RegistrationError:
        return
    assert place.kind
    assert all(0 < port < 65536 and host for host, port in place.nodes)


def test_a_store_shows_no_password() -> None:
    store = RedisStore(f"redis://u:{SECRET}@h/0")
    assert repr(store) == "RedisStore('redis://h:6379/0')"
    assert store.url.endswith(f"{SECRET}@h/0"), "for other clients of the same Redis"
    with pytest.raises(Exception, match=r"pickle|cannot"):
        pickle.dumps(store)


def test_a_time_limit_is_more_than_nothing() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        RedisStore("redis://h", timeout=0)
