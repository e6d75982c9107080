"""Turns: equal cost for every client, whatever the number and size of its items."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.tenants.work_queue import FairQueue

Item = tuple[str, int]


def filled(costs: dict[str, list[float]]) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for client, items in costs.items():
        for index, cost in enumerate(items):
            queue.push(client, (client, index), cost)
    return queue


def test_one_client_is_served_in_order() -> None:
    queue = filled({"a": [5.0, 0.1, 2.0]})
    assert [queue.pop() for _ in range(3)] == [("a", 0), ("a", 1), ("a", 2)]
    assert queue.pop() is None and len(queue) == 0


def test_many_items_of_one_client_do_not_delay_another() -> None:
    queue = filled({"flood": [1.0] * 1000, "honest": [1.0] * 5})
    order = [queue.pop() for _ in range(12)]
    assert sum(one is not None and one[0] == "honest" for one in order) == 5


def test_large_items_get_no_larger_share() -> None:
    queue = filled({"large": [10.0] * 100, "small": [1.0] * 1000})
    served: Counter[str] = Counter()
    for _ in range(330):
        item = queue.pop()
        assert item is not None
        served[item[0]] += 10 if item[0] == "large" else 1
    assert abs(served["large"] - served["small"]) <= 20


def test_cost_that_is_known_afterwards_is_paid_back() -> None:
    """Items said to be free that take 50 each: while the debt is paid, the other client has all turns."""
    queue = filled({"liar": [0.0] * 10, "honest": [1.0] * 200})
    order: list[str] = []
    while order.count("honest") < 200:
        item = queue.pop()
        assert item is not None
        order.append(item[0])
        if item[0] == "liar":
            queue.charge("liar", 50.0)
    assert order.count("liar") <= 5


def test_client_that_comes_back_starts_with_the_others() -> None:
    """It has neither saved its turns nor owes any."""
    queue = filled({"a": [1.0] * 6, "b": [50.0]})
    assert {queue.pop(), queue.pop()} == {("a", 0), ("b", 0)}
    assert [queue.pop() for _ in range(3)] == [("a", 1), ("a", 2), ("a", 3)]
    for index in (1, 2):
        queue.push("b", ("b", index), 1.0)
    assert {queue.pop(), queue.pop()} == {("a", 4), ("b", 1)}


def test_client_that_may_not_run_is_passed_over() -> None:
    queue = filled({"a": [1.0], "b": [1.0]})
    assert queue.pop(lambda client: client != "a") == ("b", 0)
    assert queue.pop(lambda client: client != "a") is None and len(queue) == 1


def test_newest_item_of_the_longest_queue_is_dropped() -> None:
    queue = filled({"a": [1.0], "flood": [1.0] * 3, "b": [1.0]})
    assert queue.pop_last_of_longest() == ("flood", 2)
    assert len(queue) == 4


def test_removed_item_never_comes() -> None:
    queue: FairQueue[list[int]] = FairQueue()
    one, other = [1], [1]  # equal, but not the same
    queue.push("a", one, 1.0)
    queue.push("a", other, 1.0)
    for client, item in (("a", other), ("a", other), ("b", one)):
        queue.remove(client, item)
    assert queue.pop() is one and queue.pop() is None


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.floats(0, 5), min_size=1, max_size=8), min_size=1),
    st.integers(0, 20),
)
def test_every_item_comes_once_and_in_its_clients_order(costs: dict[str, list[float]], charge: int) -> None:
    queue = filled(costs)
    queue.charge("a", charge)
    popped = [item for _ in range(len(queue)) if (item := queue.pop()) is not None]
    for client, items in costs.items():
        assert [index for one, index in popped if one == client] == list(range(len(items)))
    assert queue.pop() is None and queue.cost == 0
