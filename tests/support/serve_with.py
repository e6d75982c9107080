"""`holdfast serve` with another program as its engine process, or as that of each replica:
`serve_with.py ENGINE [arguments of serve]`.

HOLDFAST_TEST_DESCRIPTORS in the environment is how many file descriptors it may have.
"""

import os
import resource
import sys
from functools import partial
from importlib import import_module

from holdfast.cli.main import main

if __name__ == "__main__":
    engine = sys.argv.pop(1)
    if "HOLDFAST_TEST_DESCRIPTORS" in os.environ:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["HOLDFAST_TEST_DESCRIPTORS"]),) * 2)
    replicas = "--replicas" in sys.argv
    module = import_module("holdfast.ray.serve_replicas" if replicas else "holdfast.server.main")
    name = "serve_replicas" if replicas else "run"
    setattr(module, name, partial(getattr(module, name), command=(sys.executable, engine)))
    sys.argv[1:1] = ["serve"]
    main()
