"""The files of examples/deploy agree with Callboard, and with each other: names of options, limits, times, ports, probes.

What can be run of them is run in tests/e2e: test_nginx*.py, test_caddy.py, test_deploy_service.py.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from click.testing import CliRunner
from source_tree import ROOT

from callboard.cli import main
from callboard.cli_run import run
from callboard.limits import Limits
from callboard.transport.health import ALIVE, READY

DEPLOY = ROOT / "examples" / "deploy"
PAGES = [ROOT / "docs" / "deployment.md", *sorted((ROOT / "docs" / "deploy").glob("*.md"))]
KEEP_ALIVE = 15  # seconds: the default of `keep_alive=`
UNITS = {"ms": 0.001, "s": 1, "m": 60, "": 1}
SIZES = {"k": 2**10, "KiB": 2**10, "m": 2**20, "MiB": 2**20}


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def seconds(text: str, setting: str) -> float:
    """A time in a configuration, such as `proxy_read_timeout 300s`."""
    found = re.search(rf"\b{setting}\s+(\d+)(ms|s|m)?\b", text)
    assert found, f"{setting} is not set"
    return int(found[1]) * UNITS[found[2] or ""]


def size(text: str, setting: str) -> int:
    """A size in a configuration, such as `client_max_body_size 5m`."""
    found = re.search(rf"\b{setting}\s+(\d+)(k|KiB|m|MiB)\b", text)
    assert found, f"{setting} is not set"
    return int(found[1]) * SIZES[found[2]]


def test_proxies_let_connections_go_before_callboard_does() -> None:
    """Else a call may meet a connection that is just closing, and a POST is not sent twice."""
    server = uvicorn.Config("app:app").timeout_keep_alive
    assert seconds(read("nginx.conf"), "keepalive_timeout") < server
    assert seconds(read("Caddyfile"), "keepalive") < server


def test_proxies_limits_are_callboards() -> None:
    limits = Limits()
    nginx, caddy = read("nginx.conf"), read("Caddyfile")
    for text, body, head in ((nginx, "client_max_body_size", "large_client_header_buffers 4"), (caddy, "max_size", "max_header_size")):
        assert limits.max_body < size(text, body) <= 2 * limits.max_body
        assert size(text, head) >= limits.max_headers
    assert seconds(nginx, "client_header_timeout") == seconds(caddy, "read_header") == limits.head_timeout
    assert seconds(nginx, "client_body_timeout") == seconds(caddy, "read_body") == limits.body_timeout


def test_proxies_wait_longer_than_streams_and_tools_are_silent() -> None:
    longest = max(float(text) for text in re.findall(r"timeout=(\d+)", read("app.py")))
    assert seconds(read("nginx.conf"), "proxy_read_timeout") > max(longest, 4 * KEEP_ALIVE)


def commands(page: Path) -> Iterator[list[str]]:
    """What follows `callboard run` in a guide's lines of shell."""
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "callboard" in words and "run" in words:
                yield words[words.index("run") + 1 :]


def dockerfile() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile."""
    lines = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


def entry() -> list[str]:
    """What the container runs, after `callboard run`."""
    found = {name: json.loads(rest) for name, rest in dockerfile() if name in {"ENTRYPOINT", "CMD"}}
    assert found["ENTRYPOINT"][:2] == ["/srv/notes/.venv/bin/callboard", "run"], "the exec form: SIGTERM goes to Callboard, not to a shell"
    return [*found["ENTRYPOINT"][2:], *found["CMD"]]


def unit() -> dict[str, list[str]]:
    """Settings of the service, each with its values."""
    found: dict[str, list[str]] = {}
    for line in read("callboard.service").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def options(words: list[str]) -> dict[str, Any]:
    """Options that `callboard run` reads; what it does not know fails."""
    return dict(run.make_context("run", list(words)).params)


def test_every_command_that_is_written_down_is_one() -> None:
    written = [words for page in PAGES for words in commands(page)]
    assert written
    for words in written:
        options(words)
    service = shlex.split(unit()["ExecStart"][0])
    assert service[1] == "run"
    assert options(service[2:])["workers"] == 2
    assert options(entry())["host"] == "0.0.0.0"


def test_what_ends_callboard_waits_longer_than_callboard_does() -> None:
    """`--grace` is for running calls; sessions and streams end within a few seconds after that."""
    service = options(shlex.split(unit()["ExecStart"][0])[2:])
    assert float(unit()["TimeoutStopSec"][0]) >= service["grace"] + 10
    grace = options(entry())["grace"]
    compose = yaml.safe_load(read("compose.yaml"))["services"]["callboard"]
    assert float(compose["stop_grace_period"].removesuffix("s")) >= grace + 10
    pod = manifest("deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = options([*entry()[: -len(json.loads(dict(dockerfile())["CMD"]))], *container["args"]])["grace"]
    assert pod["terminationGracePeriodSeconds"] >= pause + grace + 10


def test_the_service_ends_as_systemd_and_callboard_agree() -> None:
    """`callboard run` exits with 0 when told to stop, with 2 when it can't begin: that is not tried again."""
    settings = unit()
    expected = {"Type": "exec", "KillMode": "mixed", "KillSignal": "SIGTERM", "Restart": "on-failure", "RestartPreventExitStatus": "2"}
    assert {name: settings[name] for name in expected} == {name: [value] for name, value in expected.items()}
    assert settings["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert settings["DynamicUser"] == ["yes"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_reads_the_service(tmp_path: Path) -> None:
    """And finds it well shut in: 10 is an open door."""
    text = read("callboard.service").replace("/srv/notes/.venv/bin/callboard", sys.executable)
    path = tmp_path / "callboard.service"
    path.write_text(text, encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    words = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(path)]
    assert subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_image_has_no_more_than_it_needs() -> None:
    instructions = dockerfile()
    assert [rest for name, rest in instructions if name == "USER"] == ["65532:65532"]
    assert dict(instructions)["STOPSIGNAL"] == "SIGTERM"
    let_in = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    copied = {word for name, rest in instructions if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]}
    assert copied == let_in, "what is copied must be let in, and nothing else: no keys, no tokens"
    assert all((DEPLOY / name).exists() for name in copied)
    ports = {options(entry())[name] for name in ("port", "health_port")}
    assert {int(port) for port in dict(instructions)["EXPOSE"].split()} == ports
    assert f":{options(entry())['health_port']}{READY}" in dict(instructions)["HEALTHCHECK"]
    ast.parse(json.loads(dict(instructions)["HEALTHCHECK"].partition("CMD ")[2])[2])


def documents(name: str) -> list[dict[str, Any]]:
    """Objects of a manifest."""
    return list(yaml.safe_load_all(read(f"kubernetes/{name}.yaml")))


def manifest(name: str) -> dict[str, Any]:
    """The only, or first, object of a manifest."""
    return documents(name)[0]


def test_probes_ask_what_callboard_answers() -> None:
    """Liveness must not ask for readiness: a store that is down would restart everybody."""
    (container,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = options(entry())
    assert ports == {"http": given["port"], "health": given["health_port"]}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    paths = {"startup": ALIVE, "liveness": ALIVE, "readiness": READY}
    assert asked == {name: {"path": path, "port": "health"} for name, path in paths.items()}


def test_manifests_fit_together() -> None:
    pod = manifest("deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert manifest("service")["spec"]["selector"] == labels
    assert manifest("disruption")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("autoscaler")["spec"]["scaleTargetRef"]["name"] == manifest("deployment")["metadata"]["name"]
    policy, _ = documents("network")
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    (container,) = pod["spec"]["containers"]
    assert policy["spec"]["ingress"][0]["ports"][0]["port"] == container["ports"][0]["containerPort"]
    reached = policy["spec"]["egress"][1]["to"][0]["podSelector"]["matchLabels"]
    redis = documents("redis")
    assert redis[0]["spec"]["selector"] == redis[1]["spec"]["template"]["metadata"]["labels"] == reached
    assert f"//{redis[0]['metadata']['name']}:6379" in manifest("secret.example")["stringData"]["store"]
    listed = set(manifest("kustomization")["resources"])
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert there - listed == {"kustomization.yaml", "secret.example.yaml"}


def test_pods_may_do_no_more_than_they_must() -> None:
    for pod in (manifest("deployment"), documents("redis")[1]):
        spec = pod["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
    world = documents("network")[0]["spec"]["egress"][-1]["to"][0]["ipBlock"]["except"]
    assert "169.254.0.0/16" in world


def test_the_ingress_says_what_nginx_conf_says() -> None:
    nginx = read("nginx.conf")
    ingress = manifest("ingress")
    prefix = "nginx.ingress.kubernetes.io/"
    said = {name.removeprefix(prefix): value for name, value in ingress["metadata"]["annotations"].items()}
    for name in ("proxy-read-timeout", "proxy-send-timeout", "proxy-connect-timeout"):
        assert float(said[name]) == seconds(nginx, name.replace("-", "_"))
    assert said["proxy-body-size"] in nginx
    assert said["proxy-next-upstream"] in nginx
    paths = [each["path"] for each in ingress["spec"]["rules"][0]["http"]["paths"]]
    assert all(re.search(r"\^/\(mcp\|\\\.well-known/oauth-protected-resource\)", nginx) for _ in paths)
    assert paths == ["/mcp", "/.well-known/oauth-protected-resource"]


def test_redis_forgets_nothing_that_is_in_use() -> None:
    """Eviction would end sessions that somebody has; without a file a restart of Redis ends all (docs/stores.md)."""
    compose = yaml.safe_load(read("compose.yaml"))
    for words in (compose["services"]["redis"]["command"], documents("redis")[1]["spec"]["template"]["spec"]["containers"][0]["args"]):
        given = dict(zip(words[-8::2], words[-7::2], strict=True))
        assert given["--maxmemory-policy"] == "noeviction"
        assert given["--appendonly"] == "yes"
    assert compose["networks"]["back"] == {"internal": True}
    assert "ports" not in compose["services"]["redis"]
    assert "ports" not in compose["services"]["callboard"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_kubectl_puts_the_manifests_together() -> None:
    words = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    built = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert built.returncode == 0, built.stderr
    assert {each["metadata"]["namespace"] for each in yaml.safe_load_all(built.stdout)} == {"notes"}


@pytest.mark.parametrize("version", ["1.28", "1.33", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    """Where the package kubernetes-validate (72 MB of schemas) is installed."""
    validator = pytest.importorskip("kubernetes_validate")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document["kind"] != "Kustomization":
                validator.validate(document, version, strict=True)


def test_the_doctor_finds_nothing_to_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text(f"{'0' * 64} nobody\n", encoding="utf-8")
    monkeypatch.setenv("CREDENTIALS", str(tmp_path))
    monkeypatch.delenv("ISSUER", raising=False)
    found = CliRunner().invoke(main, ["doctor", str(DEPLOY / "app.py"), "--strict"])
    assert found.exit_code == 0, found.output


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed here")
def test_compose_tells_caddy_where_callboard_is(tmp_path: Path) -> None:
    """By the environment that the Caddyfile reads."""
    given = yaml.safe_load(read("compose.yaml"))["services"]["caddy"]["environment"]
    words = ["caddy", "adapt", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
    environment = {**os.environ, "HOME": str(tmp_path), **given}
    built = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.findall(r'"dial":"([^"]+)"', built) == ["callboard:8000"]
    assert re.findall(r'"host":\["([^"]+)"\]', built) == ["notes.example.com"]
