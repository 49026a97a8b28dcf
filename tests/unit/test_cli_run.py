"""What `callboard run` and `callboard.run` refuse before anything is served; how they serve is shown in tests/e2e/test_workers.py."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import callboard
from callboard import RegistrationError, Server
from callboard.cli import main
from callboard.serving import Plan, refuse_lonely_workers, warn_of_workers
from callboard.stores.memory import MemoryStore
from callboard.telemetry import Prometheus


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--workers", "0"], "--workers"),
        (["--workers", "2", "--reload"], "leave out --workers"),
        (["--workers", "2", "--stdio"], "leave out"),
        (["--grace", "-1"], "--grace"),
        (["--stdio", "--grace", "5"], "--grace"),
        (["--health-port", "70000"], "--health-port"),
        (["--health-port", "8123", "--port", "8123"], "is the server's own port"),
        (["--uds", "s", "--port", "8000"], "leave out --port"),
        (["--uds-mode", "660"], "--uds-mode goes with --uds"),
        (["--uds", "s", "--uds-mode", "888"], "octal"),
        (["--uds", "s", "--uds-mode", "rw"], "octal"),
        (["--ssl-keyfile", "k"], "--ssl-keyfile goes with --ssl-certfile"),
        (["--ssl-certfile", "nowhere.pem"], "--ssl-certfile: nowhere.pem can't be read"),
        (["--ssl-certfile", __file__], "no certificate with its key is in "),
        (["--ssl-certfile", __file__], "Where the key is in another file, --ssl-keyfile names it."),
        (["--log-format", "json", "--access-log", "text"], "give both the same"),
        (["--access-log", "xml"], "--access-log"),
    ],
)
def test_a_wrong_command_is_refused_with_the_reason(words: list[str], expected: str) -> None:
    ran = CliRunner().invoke(main, ["run", "app.py", *words])
    assert (ran.exit_code, expected in ran.output) == (2, True), ran.output
    assert "Traceback" not in ran.output


@pytest.mark.parametrize("url", ["redis://:s3cret@host:port/0", "memcached://u:s3cret@x"])
def test_a_store_that_is_none_is_refused_without_its_password(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from callboard import Server\nserver = Server('s')\n")
    ran = CliRunner().invoke(main, ["run", str(tmp_path / "app.py"), "--port", "0", "--store", url])
    assert (ran.exit_code, "s3cret" in ran.output) == (2, False), ran.output
    assert "--store" in ran.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"workers": 0}, "workers= is a number from 1 up"),
        ({"workers": True}, "workers="),
        ({"workers": 2}, "workers=2 needs a store that all workers share"),
        ({"workers": 2, "store": MemoryStore()}, "store=redis://HOST:PORT/0"),
        ({"grace": -1}, "grace= is a number of seconds"),
        ({"grace": "30"}, "grace="),
        ({"health_port": 70000}, "health_port="),
        ({"access_log": True}, "access_log is 'text' or 'json'"),
        ({"ssl_keyfile": "k"}, "ssl_keyfile= goes with ssl_certfile="),
        ({"store": 5}, "store"),
        ({"wrkers": 2}, "callboard.run takes no 'wrkers'; did you mean workers=?"),
        ({"telemetry": 5}, "callboard.run takes no 'telemetry'; the server does: Server(..., telemetry=...)."),
        ({"zzz": 5}, "it takes transport, host, "),
        ({"transport": "stdio", "workers": 2}, "workers is an option of HTTP"),
        ({"transport": "stdio", "uds": "x"}, "uds is an option of HTTP"),
    ],
)
def test_a_program_is_refused_with_the_reason(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        callboard.run(Server("s"), **{"port": 0, **options})
    assert expected in str(refused.value)


def spell(name: str) -> str:
    return f"--{name}"


def test_workers_without_sessions_need_no_store(caplog: pytest.LogCaptureFixture) -> None:
    app = callboard.asgi(Server("s"), sessions="off")
    assert refuse_lonely_workers(app, Plan(workers=4), spell) is None
    assert not caplog.text
    warn_of_workers(app, Plan(workers=4))
    assert "4 workers share no store" in caplog.text


def test_workers_that_share_a_store_are_fine(caplog: pytest.LogCaptureFixture) -> None:
    app = callboard.asgi(Server("s", store=MemoryStore(shared=True)))
    assert refuse_lonely_workers(app, Plan(workers=4), spell) is None
    warn_of_workers(app, Plan(workers=4))
    assert not caplog.text


@pytest.mark.parametrize(("workers", "warned"), [(None, False), (1, False), (2, True)])
def test_a_page_of_numbers_is_for_one_worker(workers: int | None, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    for sink in (Prometheus(path="/numbers"), [Prometheus(path="/numbers"), Prometheus()]):
        caplog.clear()
        warn_of_workers(callboard.asgi(Server("s", store=MemoryStore(shared=True), telemetry=sink)), Plan(workers=workers))
        assert [record.getMessage().partition(" shows")[0] for record in caplog.records] == ["Prometheus(path='/numbers')"] * warned
        assert ("Prometheus(port=" in caplog.text) is warned
    caplog.clear()
    warn_of_workers(callboard.asgi(Server("s", store=MemoryStore(shared=True), telemetry=Prometheus(port=0))), Plan(workers=2))
    assert not caplog.text


def test_one_worker_needs_nothing() -> None:
    app = callboard.asgi(Server("s"))
    assert refuse_lonely_workers(app, Plan(workers=1), spell) is None
    assert refuse_lonely_workers(app, Plan(), spell) is None
