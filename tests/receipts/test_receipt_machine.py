"""The machine in a receipt: what it names, and what it does not."""

import platform

import pytest

from holdfast.receipts.canonical_json import digest_of
from holdfast.receipts.machine import _driver_in, describe_machine
from holdfast.version import __version__


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build\n",
            "570.124.06",
        ),
        ("GCC version: gcc 11.4.0\n", None),
    ],
)
def test_driver_version_is_found(text: str, version: str | None) -> None:
    assert _driver_in(text) == version


def test_cpu_has_neither_driver_nor_kernels() -> None:
    machine = describe_machine("cpu", "a cpu", "a cpu", ())
    assert (machine.device, machine.driver, machine.kernels) == ("a cpu", None, None)
    assert (machine.python, machine.holdfast) == (platform.python_version(), __version__)
    names = ("device", "driver", "kernels", "cpu", "system", "architecture", "python", "holdfast")
    assert machine.__struct_fields__ == names  # no host name, no address, no time


def test_kernels_are_a_digest_of_their_list() -> None:
    assert describe_machine("cuda", "a gpu", "a cpu", ("one", "two")).kernels == digest_of(["one", "two"])
