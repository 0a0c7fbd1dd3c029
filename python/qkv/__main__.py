# SPDX-License-Identifier: Apache-2.0
"""The command line program: python -m qkv."""

import signal
import sys

from qkv import _core


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program holds no Python state to unwind
    sys.stdout.flush()
    return _core.run_program(["qkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
