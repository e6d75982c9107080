"""Settings and torch work of a caller around an engine on a GPU: same bits, and the settings stay
the caller's.
"""

from functools import partial

import pytest
import torch

from adversary.evidence import Evidence
from adversary.questions import QUESTIONS, ask
from adversary.settings import SETTINGS, HostileSetting, in_thread, switched
from engines import default_device, open_engine
from holdfast.bench.stress import result_bits, submit
from holdfast.engine.engine import Engine

_MATMUL = torch.backends.cuda.matmul

CUDA_SETTINGS: tuple[HostileSetting, ...] = (
    HostileSetting(
        "CUDA autocast",
        lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        lambda: torch.is_autocast_enabled("cuda"),
    ),
    switched(
        "TF32",
        lambda: _MATMUL.allow_tf32,
        lambda value: setattr(_MATMUL, "allow_tf32", value),
        True,
    ),
    *(
        switched(name, partial(getattr, _MATMUL, name), partial(setattr, _MATMUL, name), True)
        for name in (
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_reduced_precision_reduction",
            "allow_fp16_accumulation",
        )
    ),
    switched(
        "BLAS library",
        torch.backends.cuda.preferred_blas_library,
        torch.backends.cuda.preferred_blas_library,
        "cublaslt",
    ),
    HostileSetting(
        "another stream",
        lambda: torch.cuda.stream(torch.cuda.Stream()),  # type: ignore[no-untyped-call]
        lambda: torch.cuda.current_stream().cuda_stream,
    ),
)
NO_PART_OF_THE_FINGERPRINT = (
    "matmul precision",
    "default dtype",
    "allow_bf16_reduced_precision_reduction",
    "BLAS library",
)
DEVICE = default_device()
ALL_SETTINGS = (*SETTINGS, *CUDA_SETTINGS) if DEVICE.type == "cuda" else SETTINGS


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine("tiny")


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda setting: setting.name)
def test_setting_around_a_live_engine(engine: Engine, setting: HostileSetting) -> None:
    """A thread that steps an engine keeps our settings of a thread; another thread keeps its own."""
    evidence = Evidence()
    ask(engine, evidence)
    with setting.use():
        before = setting.read()
        in_thread(lambda: ask(engine, evidence))
        assert setting.read() == before
        ask(engine, evidence)
    ask(engine, evidence)
    evidence.assert_held()


def test_setting_before_the_engine_is_built(engine: Engine) -> None:
    evidence = Evidence()
    ask(engine, evidence)
    for setting in ALL_SETTINGS:
        if setting.name != "another stream":
            with setting.use(), evidence.refusing():
                other = open_engine("tiny")
                ask(other, evidence)
                if setting.name in NO_PART_OF_THE_FINGERPRINT:
                    assert other.fingerprint.differences(engine.fingerprint) == []
    evidence.assert_held()


def test_own_work_between_steps(engine: Engine) -> None:
    """The caller multiplies, draws random numbers and trains between our steps."""
    evidence = Evidence()
    ask(engine, evidence)
    x = torch.randn(33, 65, device=DEVICE, requires_grad=True)
    for number, setting in enumerate(ALL_SETTINGS):
        for question, probe in QUESTIONS.items():
            with evidence.refusing():
                request_id = submit(engine, probe.prompt, probe.params)
                while engine.has_work:
                    for update in engine.step():
                        if update.request_id == request_id and update.result is not None:
                            bits = result_bits(update.result)
                            evidence.add(engine.fingerprint.digest, question, bits)
                    with setting.use(), torch.device(DEVICE):
                        total = (x @ x.T).sum()
                        if total.requires_grad:
                            torch.autograd.backward(total)
                        torch.manual_seed(number)
    evidence.assert_held()


def test_another_current_device(engine: Engine) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    evidence = Evidence()
    ask(engine, evidence)
    with torch.cuda.device(1):
        ask(engine, evidence)
    evidence.assert_held()
