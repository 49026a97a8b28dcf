"""Sockets made before anything serves: what is wrong with the place is a sentence, and permissions are right from the beginning."""

import os
import socket
import stat
from pathlib import Path

import pytest

from callboard.transport.listening import CannotListenError, bind_path, bind_port


def test_a_port_that_is_taken_is_a_sentence() -> None:
    (taken, *more) = bind_port("127.0.0.1", 0)
    assert not more
    with taken, pytest.raises(CannotListenError, match="is in use: stop what serves there"):
        bind_port("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "expected"), [("nosuch.invalid", 0, "is no address of this machine"), ("127.0.0.1", 25, "belongs to smtp")]
)
def test_a_place_that_can_t_be(host: str, port: int, expected: str) -> None:
    with pytest.raises(CannotListenError, match=expected):
        bind_port(host, port)


def test_whoever_connects_waits_until_somebody_accepts() -> None:
    (listening,) = bind_port("127.0.0.1", 0)
    with listening, socket.create_connection(listening.getsockname(), timeout=5):
        accepted, _ = listening.accept()
        accepted.close()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_path_has_its_permissions(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o022)
    try:
        with bind_path(str(tmp_path / "s"), mode).listening:
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
        assert os.umask(0o022) == 0o022  # as it was
    finally:
        os.umask(before)


def test_what_a_dead_process_left_is_replaced_and_what_lives_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    bind_path(path, 0o600).listening.close()
    bound = bind_path(path, 0o600)
    with bound.listening, pytest.raises(CannotListenError, match="is in use"):
        bind_path(path, 0o600)
    bound.remove()
    assert not Path(path).exists()
    bound.remove()  # nothing happens


def test_who_ends_leaves_the_socket_of_whoever_has_taken_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = bind_path(str(path), 0o600)
    path.rename(tmp_path / "old")
    second = bind_path(str(path), 0o600)
    with first.listening, second.listening:
        first.remove()
        assert path.exists()
        second.remove()
        assert not path.exists()


def test_a_file_is_nobody_s_to_remove(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear")
    with pytest.raises(CannotListenError, match="no socket: remove it"):
        bind_path(str(path), 0o600)
    assert path.read_text() == "dear"


def test_a_path_that_can_t_be(tmp_path: Path) -> None:
    with pytest.raises(CannotListenError, match="can't be listened on"):
        bind_path(str(tmp_path / "no such folder" / "s"), 0o600)
    with pytest.raises(CannotListenError, match="can't be listened on"):
        bind_path(str(tmp_path / ("x" * 200)), 0o600)
