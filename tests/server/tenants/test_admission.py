"""Who is let in: places shared between tenants, limits of a key, and the time until the next try."""

import contextlib
import random
from collections.abc import Iterator

import pytest

from holdfast.errors import TooBusy
from holdfast.server.errors import ApiError, to_api_error
from holdfast.server.tenants.admission import Admission, RateLimits, TokenBucket
from holdfast.server.tenants.tenant import Tenant, TenantLimits, address_tenant, key_tenant

ALICE, BOB, CAROL = (address_tenant(name) for name in ("alice", "bob", "carol"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limited(**limits: int) -> Tenant:
    return key_tenant("alice", limits=TenantLimits(**limits))


@pytest.fixture
def admission() -> Admission:
    """4 places to run and 8 to wait."""
    one = Admission(8)
    one.max_running = 4
    return one


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def refusal(admission: Admission, num_choices: int, tenant: Tenant) -> ApiError:
    with pytest.raises((ApiError, TooBusy)) as caught, admission.admit(num_choices, tenant):
        pass
    return to_api_error(caught.value)


def test_a_single_tenant_may_take_every_place(admission: Admission, held: contextlib.ExitStack) -> None:
    held.enter_context(admission.admit(12, ALICE))
    error = refusal(admission, 1, ALICE)
    assert (error.status, error.code) == (429, "too_many_requests")
    assert int(error.headers["Retry-After"]) > 0
    held.close()
    assert admission.num_admitted == 0
    held.enter_context(admission.admit(12, ALICE))


def test_a_tenant_within_its_share_is_admitted_whatever_others_hold(
    admission: Admission, held: contextlib.ExitStack
) -> None:
    for _ in range(6):
        held.enter_context(admission.admit(2, ALICE))
    for _ in range(6):
        held.enter_context(admission.admit(1, BOB))
    assert refusal(admission, 1, BOB).code == "too_many_requests"
    assert refusal(admission, 1, ALICE).code == "too_many_requests"
    held.enter_context(admission.admit(4, CAROL))
    assert refusal(admission, 1, CAROL).status == 429
    assert refusal(admission, 5, address_tenant("dave")).status == 429
    held.enter_context(admission.admit(3, address_tenant("dave")))


def test_places_that_others_leave_are_shared(admission: Admission, held: contextlib.ExitStack) -> None:
    held.enter_context(admission.admit(12, ALICE))
    held.enter_context(admission.admit(1, BOB))
    held.enter_context(admission.admit(5, CAROL))  # (12 - 1) / 2
    assert refusal(admission, 1, CAROL).status == 429


def test_places_in_use_stay_below_the_harmonic_bound() -> None:
    rng = random.Random(7)
    for num_tenants in (2, 5, 40):
        admission = Admission(20)
        admission.max_running = 10
        held: list[contextlib.AbstractContextManager[object]] = []
        for _ in range(3000):
            if held and rng.random() < 0.3:
                held.pop(rng.randrange(len(held))).__exit__(None, None, None)
            one = admission.admit(rng.randint(1, 4), address_tenant(str(rng.randrange(num_tenants))))
            with contextlib.suppress(TooBusy):
                one.__enter__()
                held.append(one)
            bound = 30 * sum(1 / number for number in range(1, num_tenants + 1))
            assert admission.num_admitted <= bound
        for one in held:
            one.__exit__(None, None, None)
        assert admission.num_admitted == 0


def test_limits_of_a_key_are_named(admission: Admission, held: contextlib.ExitStack) -> None:
    alice = limited(max_running=1, max_waiting=2)
    held.enter_context(admission.admit(3, alice))
    error = refusal(admission, 1, alice)
    assert (error.status, error.code) == (429, "max_waiting_exceeded") and "at most 3" in error.message
    held.enter_context(admission.admit(9, BOB))
    error = refusal(admission, 4, alice)
    assert error.status == 400 and "at most 3" in error.message
    assert refusal(admission, 13, BOB).status == 400


def test_requests_per_minute() -> None:
    clock = Clock()
    admission = Admission(8, clock)
    alice = limited(requests_per_minute=6)
    for _ in range(6):
        with admission.admit(1, alice):
            pass
    error = refusal(admission, 1, alice)
    assert (error.code, error.headers["Retry-After"]) == ("requests_per_minute_exceeded", "10")
    clock.now += 9.9
    assert refusal(admission, 1, alice).headers["Retry-After"] == "1"
    clock.now += 0.1
    with admission.admit(1, alice):
        pass
    with admission.admit(1, BOB):
        pass


def test_tokens_per_minute_counts_prompts_and_answers() -> None:
    clock = Clock()
    admission = Admission(8, clock)
    alice = limited(tokens_per_minute=600)
    with admission.admit(2, alice) as meter:
        meter.add_prompt(200, 2, 100)
        with admission.admit(1, alice) as other:  # 400 of 600 are reserved
            other.add_prompt(800, 1, 10)
            assert (
                refusal(admission, 1, alice).headers["Retry-After"] == "62"
            )  # 600 - 400 - 810 + 1 at 10 a second
            other.close(was_accepted=False)
        meter.add_generated(50)
        meter.close(was_accepted=True)
    with admission.admit(1, alice) as meter:  # 350 are left
        meter.add_prompt(349, 1, 1000)
        assert refusal(admission, 1, alice).headers["Retry-After"] == "26"
        meter.add_generated(300)
        meter.close(was_accepted=True)
    error = refusal(admission, 1, alice)
    assert (error.code, error.headers["Retry-After"]) == ("tokens_per_minute_exceeded", "30")
    clock.now += 30
    with admission.admit(1, alice):
        pass


def test_another_limit_after_a_reload_applies_at_once() -> None:
    clock = Clock()
    admission = Admission(8, clock)
    with admission.admit(1, limited(tokens_per_minute=600)) as meter:
        meter.add_prompt(700, 1, 0)
    assert refusal(admission, 1, limited(tokens_per_minute=6000)).headers["Retry-After"] == "2"
    with admission.admit(1, limited()):
        pass


def test_a_bucket_never_holds_more_than_a_minute() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock)
    bucket.take(-30)
    clock.now += 1000
    assert bucket.level == 60
    bucket.take(61)
    assert bucket.seconds_until(0) == 1 and bucket.seconds_until(1) == 2


def test_models_of_a_server_share_the_limits_per_minute() -> None:
    rates = RateLimits(Clock())
    one, other = Admission(8, rates=rates), Admission(8, rates=rates)
    tenant = limited(requests_per_minute=2)
    for admission in (one, other):
        with admission.admit(1, tenant):
            pass
    assert refusal(other, 1, tenant).code == "requests_per_minute_exceeded"
