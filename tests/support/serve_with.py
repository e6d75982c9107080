"""`holdfast serve` with another program as its engine process: `serve_with.py ENGINE [arguments of serve]`.

HOLDFAST_TEST_DESCRIPTORS in the environment is how many file descriptors it may have.
"""

import os
import resource
import sys
from functools import partial
from typing import Any

from holdfast.cli.main import main
from holdfast.server import main as server_run

if __name__ == "__main__":
    engine = sys.argv.pop(1)
    if "HOLDFAST_TEST_DESCRIPTORS" in os.environ:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["HOLDFAST_TEST_DESCRIPTORS"]),) * 2)
    run: Any = server_run.run
    server_run.run = partial(run, command=(sys.executable, engine))
    sys.argv[1:1] = ["serve"]
    main()
