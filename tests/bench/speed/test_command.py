"""The cost of one command: time to the first byte and peak memory of the child process."""

import sys
import time

import pytest

from holdfast.bench.speed import command
from holdfast.bench.speed.launcher import launch
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate


def test_first_byte_is_timed_not_the_end() -> None:
    program = "import sys, time; sys.stdout.write('a'); sys.stdout.flush(); time.sleep(1.5); print('b')"
    began = time.perf_counter()
    found = launch([sys.executable, "-S", "-c", program])
    whole = time.perf_counter() - began
    assert found["returncode"] == 0
    assert 0 < float(found["first_byte_seconds"]) < whole - 1.0  # however long its start takes


def test_memory_is_that_of_the_child() -> None:
    ours = bytearray(400_000_000)
    ours[::4096] = b"x" * len(ours[::4096])  # touched, so that it is resident here
    small = command._launch([sys.executable, "-S", "-c", "print('small')"])[1]
    large = command._launch([sys.executable, "-S", "-c", "print(len(b'x' * 200_000_000))"])[1]
    assert small < 100_000_000
    assert 200_000_000 < large < 300_000_000


def test_failed_command_has_a_reason() -> None:
    with pytest.raises(EngineStopped, match="no such thing"):
        command._launch([sys.executable, "-S", "-c", "raise SystemExit('no such thing')"])


def test_real_command_is_measured(tiny_llama, monkeypatch) -> None:
    monkeypatch.setattr(command, "NUM_TRIES", 1)
    said: list[str] = []
    cost = command.measure(str(tiny_llama), "fp32", None, said.append)
    assert said == ["holdfast generate: warming up", "holdfast generate: 1 of 1"]
    assert cost.first_byte_seconds > 0
    assert 20_000_000 < cost.peak_resident_bytes < 860_000_000
    assert cost.allowed_bytes == cost.weights_bytes + command.ALLOWED_BYTES
    assert 4 * 320 * 64 < cost.weights_bytes < 2_000_000


@pytest.mark.smollm2
def test_quantised_weights_count_as_they_are() -> None:
    checkpoint = open_checkpoint(locate(None).path)
    assert command.weights_bytes(checkpoint, "auto") == checkpoint.path.stat().st_size
    assert command.weights_bytes(checkpoint, "bf16") > 2.5 * checkpoint.path.stat().st_size
