"""Runs the claims of benchmarks/claims one after another: `make bench`, or with ARGS="--only async_call,latency --quick".

Every claim is a script of its own (`python -m benchmarks.claims.async_call`); this one starts them and sums up.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = sorted(path.stem for path in (ROOT / "benchmarks" / "claims").glob("*.py"))


def run(claim: str, options: list[str]) -> bool:
    """Run one claim in a session of its own, which Linux schedules as one group; whether it holds."""
    process = subprocess.Popen([sys.executable, "-m", f"benchmarks.claims.{claim}", *options], cwd=ROOT, start_new_session=True)
    try:
        return process.wait() == 0
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        raise


def main() -> None:
    """Run what was asked for; the exit status says whether every claim holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CLAIMS), help=f"claims, separated by commas, of: {', '.join(CLAIMS)}")
    chosen, options = parser.parse_known_args()
    claims = chosen.only.split(",")
    if unknown := sorted(set(claims) - set(CLAIMS)):
        parser.error(f"no such claim: {', '.join(unknown)}; there are {', '.join(CLAIMS)}")
    held = {claim: run(claim, options) for claim in claims}
    print("\n" + "\n".join(f"{'PASS' if holds else 'FAIL'}  {claim}" for claim, holds in held.items()))
    sys.exit(not all(held.values()))


if __name__ == "__main__":
    main()
