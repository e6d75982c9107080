"""`holdfast serve --replicas` with another program as the engine process of each replica:
`serve_replicas_with.py ENGINE [arguments of serve]`."""

import sys
from functools import partial
from typing import Any

from holdfast.cli.main import main
from holdfast.ray import serve_replicas as module

if __name__ == "__main__":
    engine = sys.argv.pop(1)
    run: Any = module.serve_replicas
    module.serve_replicas = partial(run, command=(sys.executable, engine))
    sys.argv[1:1] = ["serve"]
    main()
