"""Raising the limit of open files."""

import resource

import pytest

from holdfast.server.main import raise_descriptor_limit


class Limits:
    def __init__(self, soft: int, hard: int, *, is_fixed: bool = False) -> None:
        self.limits = (soft, hard)
        self.is_fixed = is_fixed

    def set(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        if self.is_fixed:
            raise ValueError("current limit exceeds maximum limit")
        self.limits = limits

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: self.limits)
        monkeypatch.setattr(resource, "setrlimit", self.set)


def test_soft_limit_is_raised_to_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1024, 65536)
    limits.put(monkeypatch)
    assert raise_descriptor_limit(5000) == 65536
    assert limits.limits == (65536, 65536)


def test_without_a_hard_limit_the_wanted_number_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1024, resource.RLIM_INFINITY)
    limits.put(monkeypatch)
    assert raise_descriptor_limit(5000) == 5000
    assert limits.limits == (5000, resource.RLIM_INFINITY)
    Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY).put(monkeypatch)
    assert raise_descriptor_limit(5000) == 5000


def test_limit_stays_if_it_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1024, 65536, is_fixed=True)
    limits.put(monkeypatch)
    assert raise_descriptor_limit(5000) == 1024
