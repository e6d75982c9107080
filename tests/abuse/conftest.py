"""One server with three tenants, the honest client and the attacking process."""

from collections.abc import Iterator

import pytest

from abuse.attacker import Attacker
from abuse.honest import Honest
from abuse.setup import HONEST_KEY, HOSTILE_KEYS, MAX_MODEL_LEN, attacked_model, attacked_server
from abuse.wire import Target
from support.nginx import behind_nginx
from support.serving import Server

PATIENCE = 20.0  # seconds after which a request of the honest client is lost


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = attacked_model(tmp_path_factory.mktemp("attacked"))
    with attacked_server(model, "--trusted-proxy", "127.0.0.1") as server:
        yield server


@pytest.fixture(scope="session")
def proxied(attacked: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same server behind nginx."""
    with behind_nginx(attacked.url, tmp_path_factory.mktemp("nginx")) as url:
        yield url


@pytest.fixture(scope="session")
def honest(attacked: Server) -> Honest:
    return Honest(Target(attacked.url, HONEST_KEY), PATIENCE)


@pytest.fixture(scope="session")
def hostile(attacked: Server) -> list[Target]:
    """Two hostile tenants."""
    return [Target(attacked.url, key, "tiny", MAX_MODEL_LEN) for key in HOSTILE_KEYS]


@pytest.fixture(scope="session")
def attacker() -> Iterator[Attacker]:
    with Attacker() as process:
        yield process
