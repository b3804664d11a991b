"""CPU seconds until the command line or the middleware is there, beside a bare interpreter.

Each command runs in a process of its own, several times; the least counts, since the first run
may compile and a neighbour only ever adds. User and system time of the child (wait4), so waiting
for the disk is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tierway.bench.gateway_process import environment
from tierway.bench.load import positive

COMMANDS: Mapping[str, Sequence[str]] = {
    "bare interpreter": ("-c", "pass"),
    "import tierway.middleware": ("-c", "import tierway.middleware"),
    "tierway --help": ("-m", "tierway.middleware.cli", "--help"),
}


def cpu_s(arguments: Sequence[str]) -> float:
    """What one run of the interpreter with these arguments takes; RuntimeError if it fails."""
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed ({process.returncode})")
    return usage.ru_utime + usage.ru_stime


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 measured, 1 a command failed, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=positive, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    try:
        found = {
            name: round(min(cpu_s(arguments) for _ in range(options.runs)), 3)
            for name, arguments in COMMANDS.items()
        }
    except RuntimeError as error:
        print(f"startup: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"benchmark": "startup", "cpu_s": found}))
    else:
        print("\n".join(f"{name:<28}{seconds:>8.3f} s" for name, seconds in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
