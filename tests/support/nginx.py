"""The real nginx with docs/nginx.conf in front of a server: `with behind_nginx(server.url) as url: ...`.

Where nginx is not installed the tests that need it are skipped. In CI they fail.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CONF = Path(__file__).parents[2] / "docs" / "nginx.conf"
_TEMP = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # folders that nginx makes
_PATIENCE = 20.0


@contextmanager
def behind_nginx(url: str, folder: Path) -> Iterator[str]:
    """Run nginx in front of the server at url. Its files are in the folder."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("nginx is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = CONF.read_text()
    temp = "".join(f" {name}_temp_path {folder / name};" for name in _TEMP)
    for ours, here in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("server 127.0.0.1:8000;", f"server {urlsplit(url).netloc};"),
        ("http {", f"http {{{temp}"),
    ):
        assert conf.count(ours) == 1, ours
        conf = conf.replace(ours, here)
    (folder / "nginx.conf").write_text(conf)
    user = "user root;" if os.getuid() == 0 else ""
    directives = f"daemon off; pid {folder / 'nginx.pid'}; error_log stderr crit; {user}"
    process = subprocess.Popen([program, "-p", folder, "-e", "stderr", "-c", "nginx.conf", "-g", directives])
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            assert process.poll() is None, "nginx ended"
            try:
                socket.create_connection(("127.0.0.1", port), _PATIENCE).close()
                break
            except OSError:
                assert time.monotonic() < until, "nginx does not listen"
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(_PATIENCE)
