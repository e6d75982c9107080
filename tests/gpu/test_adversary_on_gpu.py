"""Settings and torch work of a caller around an engine on a GPU: same bits, and the settings stay
the caller's.
"""

import pytest
import torch

from adversary.evidence import Evidence
from adversary.live import attack_live_setting, attack_own_work, live_settings
from adversary.questions import ask
from adversary.settings import HostileSetting
from engines import default_device, open_engine
from holdfast.engine.engine import Engine
from support.adversary_targets import assert_held

SETTINGS = live_settings(default_device())


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_engine("tiny")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_setting_around_a_live_engine(engine: Engine, setting: HostileSetting) -> None:
    assert_held(attack_live_setting(engine, "GPU", setting))


def test_setting_before_the_engine_is_built(engine: Engine) -> None:
    evidence = Evidence("built under settings", "GPU")
    ask(engine, evidence)
    for setting in SETTINGS:
        if setting.name != "another stream":
            with setting.use(), evidence.refusing():
                ask(open_engine("tiny"), evidence)
    assert_held(evidence)


def test_own_work_between_steps(engine: Engine) -> None:
    assert_held(attack_own_work(engine, "GPU", len(SETTINGS), default_device()))


def test_another_current_device(engine: Engine) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    evidence = Evidence("another current device", "GPU")
    ask(engine, evidence)
    with torch.cuda.device(1):
        ask(engine, evidence)
    assert_held(evidence)
