"""Shared set-up: one cache of kernels for all runs, certificates made anew, and tiny models made once.

Threads that wait sleep. Two workers of two threads on two cores would otherwise wait for each other in circles, with most
of the machine's time. Which thread computes what, and so every bit, stays as it is.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, here and in children

try:
    import hypothesis
except ImportError:  # tests/gpu needs none, and runs on machines that have none
    pass
else:  # a busy machine is no finding
    hypothesis.settings.register_profile(
        "holdfast", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("holdfast")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture(scope="session", autouse=True)
def cache_dir(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Our own HOLDFAST_CACHE_DIR. Built kernels stay for the next run; no test meets an earlier run's certificate."""
    before = os.environ.get("HOLDFAST_CACHE_DIR")
    cache = getattr(pytestconfig, "cache", None)  # there is none under -p no:cacheprovider
    folder = cache.mkdir("holdfast") if cache else tmp_path_factory.mktemp("holdfast")
    for made in ("certificates", "recipes"):
        shutil.rmtree(folder / made, ignore_errors=True)
    os.environ["HOLDFAST_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["HOLDFAST_CACHE_DIR"]
    else:
        os.environ["HOLDFAST_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama on disk, fp32."""
    from support.tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny") / "llama")
