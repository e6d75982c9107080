"""Readable machine names."""

import pytest

from holdfast.bench.machine import readable


@pytest.mark.parametrize(
    ("system", "architecture", "name"),
    [
        ("aarch64 0x41 0xd0c", "aarch64", "Neoverse-N1 (aarch64)"),
        ("aarch64 0x41 0xfff", "aarch64", "0x41 0xfff (aarch64)"),
        (
            "x86_64 Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz",
            "x86_64",
            "Intel Xeon Platinum 8488C (x86_64)",
        ),
        ("riscv64", "riscv64", "riscv64"),
    ],
)
def test_machine_name_is_readable(system: str, architecture: str, name: str) -> None:
    assert readable(system, architecture) == name
