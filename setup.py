"""Builds the C kernels into wheels for Linux, for every instruction set of the machine's architecture.

HOLDFAST_WHEEL_MACHINE=aarch64 builds them with a cross compiler, and HOLDFAST_WHEEL_PLATFORM is the platform
in the wheel's name; scripts/dist.py sets both. An editable installation gets the one library that this CPU
uses. Without a compiler, on another system, or with HOLDFAST_PREBUILT=0 there are none: the kernels are then
built at first use.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
MACHINE = os.environ.get("HOLDFAST_WHEEL_MACHINE")
sys.path.insert(0, str(HERE / "src"))

from holdfast.errors import ConfigError  # noqa: E402
from holdfast.numerics.backends.c import build as kernels_build  # noqa: E402
from holdfast.numerics.backends.c import prebuilt  # noqa: E402


def _can_build() -> bool:
    if sys.platform != "linux" or os.environ.get("HOLDFAST_PREBUILT") == "0":
        return False
    try:
        kernels_build.find_compiler(MACHINE)
    except ConfigError:
        return False
    return True


class BuildKernels(build_py):
    """Adds the prebuilt kernels to the package."""

    def run(self) -> None:
        super().run()
        if not _can_build():
            return
        targets = prebuilt.supported_targets()[:1] if self.editable_mode else None
        folder = prebuilt.PREBUILT_DIR.relative_to(HERE / "src")
        built = prebuilt.build_all(
            (HERE / "src" if self.editable_mode else Path(self.build_lib)) / folder, targets, MACHINE
        )
        self.announce(f"built the kernels for {', '.join(built)}", level=3)


class KernelsWheel(bdist_wheel):
    """A wheel for one platform and every Python: the kernels are no extension module."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        platform = os.environ.get("HOLDFAST_WHEEL_PLATFORM", platform)
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


class KernelsDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return _can_build()


setup(
    distclass=KernelsDistribution,
    cmdclass={"build_py": BuildKernels, "bdist_wheel": KernelsWheel},
)
