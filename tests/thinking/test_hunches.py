"""What a chunk is taken to think, judged by what it and others like it thought behind something else."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.thinking.thought_predictor import ThoughtPredictor

HEADS, TAILS, NOTHING = (1,), (2,), ()


def test_nothing_is_known_of_a_chunk_that_was_not_seen() -> None:
    hunches = ThoughtPredictor()
    assert hunches.guess(3, NOTHING) is None
    hunches.learn(3, NOTHING, (), [HEADS])
    assert hunches.guess(4, NOTHING) is None
    assert hunches.guess(3, HEADS) is None


def test_a_chunk_is_taken_to_think_what_it_thought_behind_the_same() -> None:
    hunches = ThoughtPredictor()
    hunches.learn(0, NOTHING, (TAILS,), [TAILS, HEADS])
    assert hunches.guess(0, NOTHING) == TAILS
    assert hunches.guess(1, TAILS) == HEADS
    hunches.learn(1, TAILS, (), [TAILS])
    assert hunches.guess(1, TAILS) == TAILS  # the last time counts


def test_trivial_thoughts_leave_what_was_thought_before() -> None:
    hunches = ThoughtPredictor()
    hunches.learn(0, HEADS, (NOTHING, NOTHING), [NOTHING, NOTHING, TAILS])
    assert hunches.guess(2, HEADS) == TAILS
    assert hunches.guess(2, NOTHING) is None


def test_a_chunk_that_never_thought_anything_is_taken_to_think_nothing() -> None:
    hunches = ThoughtPredictor()
    hunches.learn(5, HEADS, (), [NOTHING])
    assert hunches.guess(5, TAILS) == NOTHING
    hunches.learn(5, NOTHING, (), [HEADS])
    assert hunches.guess(5, TAILS) is None


def test_chunks_that_thought_alike_are_taken_to_think_alike() -> None:
    hunches = ThoughtPredictor()
    hunches.learn(5, HEADS, (), [TAILS])
    hunches.learn(9, HEADS, (), [TAILS])
    assert hunches.guess(9, TAILS) is None
    hunches.learn(5, TAILS, (), [HEADS])
    assert hunches.guess(9, TAILS) == HEADS
    hunches.learn(7, TAILS, (), [HEADS])
    assert hunches.guess(7, HEADS) == TAILS  # and the other way round


def test_a_settled_chunk_is_forgotten_and_what_it_taught_is_not() -> None:
    hunches = ThoughtPredictor()
    for behind, thought in ((HEADS, TAILS), (TAILS, HEADS)):
        hunches.learn(5, behind, (), [thought])
    hunches.forget(5)
    hunches.forget(6)
    assert hunches.guess(5, HEADS) is None
    hunches.learn(9, HEADS, (), [TAILS])
    assert hunches.guess(9, TAILS) == HEADS


@given(st.lists(st.sampled_from(["flip", "leave", "say"]), min_size=40, max_size=40))
def test_a_coin_needs_few_rounds(events: list[str]) -> None:
    """Each round learns what the chunks think behind the round's guesses, as a pass does."""

    def think(event: str, behind: tuple[int, ...]) -> tuple[int, ...]:
        if event == "flip":
            return TAILS if behind in (NOTHING, HEADS) else HEADS
        return NOTHING if event == "say" else behind

    hunches, done, last, rounds = ThoughtPredictor(), 0, NOTHING, 0
    latest: dict[int, tuple[int, ...]] = {}
    while done < len(events):
        rounds += 1
        guesses, found, behind = [], [], last
        for chunk in range(done, len(events)):
            hunch = hunches.guess(chunk, behind)
            guess = latest.get(chunk, NOTHING) if hunch is None else hunch
            found.append(think(events[chunk], behind))
            guesses.append(guess)
            behind = guess or behind
        hunches.learn(done, last, guesses[:-1], found)
        latest.update(enumerate(found, done))
        right = 0
        while right < len(guesses) - 1 and guesses[right] == found[right]:
            right += 1
        for thought in found[: right + 1]:
            last = thought or last
        done += right + 1
    assert rounds <= 8
