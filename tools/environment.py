"""Makes .venv, the one environment of this project, with nothing but the Python that runs this file.

It runs before anything is installed and perhaps on a Python that is too old, so it uses the standard library alone and syntax
that older versions parse: the version check must be reached to speak.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
INTERPRETER = VENV / "bin" / "python"
MINIMUM = (3, 11)
PIP_INDEX = "https://pypi.org/pypi/pip/json"
PIP = "pip>=25.1"  # the first that installs a dependency group


def newer_python() -> str:
    """Name of an interpreter on PATH that is new enough and runs (a version manager leaves names that don't); empty without one."""
    names = [f"python3.{minor}" for minor in range(14, MINIMUM[1] - 1, -1)]
    return next((name for name in names if shutil.which(name) and runs([name, "-c", ""])), "")


def runs(command: "list[str]") -> bool:
    """Whether a command ends well; what it prints is dropped."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def refuse_old_python() -> None:
    """Ends with one sentence when this interpreter is too old."""
    if sys.version_info >= MINIMUM:
        return
    found = newer_python()
    way_out = f"this machine has one: make PYTHON={found}" if found else "install one and name it: make PYTHON=/path/to/python3.11"
    sys.exit(f"Callboard needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}; {way_out}")


def usable() -> bool:
    """Whether .venv already holds an interpreter that runs, is new enough and has pip."""
    return INTERPRETER.exists() and runs([str(INTERPRETER), "-c", f"import sys, pip; sys.exit(sys.version_info < {MINIMUM})"])


def ways() -> "list[list[str]]":
    """Commands that make .venv with pip inside, the likeliest first; Debian ships python3 without ensurepip, so venv may fail."""
    target = str(VENV)
    found = [[sys.executable, "-m", "venv", "--clear", target]]
    if shutil.which("uv"):
        found.append(["uv", "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, target])
    if shutil.which("virtualenv"):
        found.append(["virtualenv", "--quiet", "--clear", "--python", sys.executable, target])
    found.append([sys.executable, "-m", "virtualenv", "--quiet", "--clear", target])
    return found


def fetch_pip() -> bool:
    """Makes .venv without pip and puts pip's own wheel from PyPI into it, checked by its digest; whether that worked."""
    if not runs([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)]):
        return False
    try:
        with urllib.request.urlopen(PIP_INDEX, timeout=60) as answer:
            wheel = next(file for file in json.load(answer)["urls"] if file["packagetype"] == "bdist_wheel")
        with urllib.request.urlopen(urljoin(PIP_INDEX, wheel["url"]), timeout=60) as answer:
            content = answer.read()
    except (OSError, ValueError, StopIteration):
        return False
    if hashlib.sha256(content).hexdigest() != wheel["digests"]["sha256"]:
        return False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / wheel["filename"]
        path.write_bytes(content)
        return runs([str(INTERPRETER), str(path / "pip"), "install", "--no-index", str(path)])


def create() -> None:
    """Makes .venv by the first way that works; ends with one sentence when none does."""
    for command in ways():
        if runs(command) and usable():
            return
    if fetch_pip() and usable():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    sys.exit(
        f"{sys.executable} cannot make a virtual environment with pip (Debian and Ubuntu keep that part in another package): "
        "run 'apt-get install python3-venv', or install uv or virtualenv, and run make again"
    )


def install() -> None:
    """Installs this project in place with its development tools."""
    pip = [str(INTERPRETER), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]  # errors still show
    for arguments in (["--upgrade", PIP], ["--editable", ".", "--group", "dev"]):
        failed = subprocess.run([*pip, *arguments], cwd=ROOT, check=False).returncode
        if failed:
            sys.exit(f"pip could not install {arguments[-1] if arguments[0] == '--upgrade' else 'the project'}; its reason stands above")


def main() -> None:
    """Makes or mends .venv; running it again is harmless."""
    refuse_old_python()
    if not usable():
        print(f"making .venv with Python {sys.version.split()[0]}", flush=True)
        create()
    print("installing callboard and its development tools into .venv", flush=True)
    install()


if __name__ == "__main__":
    main()
