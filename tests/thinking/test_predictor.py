"""Predicted thoughts: from what the chunk, and chunks that agreed with it, thought before."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.thinking.predictor import ThoughtPredictor

HEADS, TAILS, NOTHING = (1,), (2,), ()


def test_unseen_chunk_has_no_prediction() -> None:
    predictor = ThoughtPredictor()
    assert predictor.predict(3, NOTHING) is None
    predictor.learn(3, NOTHING, (), [HEADS])
    assert predictor.predict(4, NOTHING) is None
    assert predictor.predict(3, HEADS) is None


def test_predicts_the_latest_thought_after_the_same_previous() -> None:
    predictor = ThoughtPredictor()
    predictor.learn(0, NOTHING, (TAILS,), [TAILS, HEADS])
    assert predictor.predict(0, NOTHING) == TAILS
    assert predictor.predict(1, TAILS) == HEADS
    predictor.learn(1, TAILS, (), [TAILS])
    assert predictor.predict(1, TAILS) == TAILS  # the last time counts


def test_trivial_thoughts_keep_the_previous_thought() -> None:
    predictor = ThoughtPredictor()
    predictor.learn(0, HEADS, (NOTHING, NOTHING), [NOTHING, NOTHING, TAILS])
    assert predictor.predict(2, HEADS) == TAILS
    assert predictor.predict(2, NOTHING) is None


def test_chunk_with_trivial_thoughts_only_is_predicted_trivial() -> None:
    predictor = ThoughtPredictor()
    predictor.learn(5, HEADS, (), [NOTHING])
    assert predictor.predict(5, TAILS) == NOTHING
    predictor.learn(5, NOTHING, (), [HEADS])
    assert predictor.predict(5, TAILS) is None


def test_predicts_by_analogy_with_a_chunk_that_agreed() -> None:
    predictor = ThoughtPredictor()
    predictor.learn(5, HEADS, (), [TAILS])
    predictor.learn(9, HEADS, (), [TAILS])
    assert predictor.predict(9, TAILS) is None
    predictor.learn(5, TAILS, (), [HEADS])
    assert predictor.predict(9, TAILS) == HEADS
    predictor.learn(7, TAILS, (), [HEADS])
    assert predictor.predict(7, HEADS) == TAILS  # and the other way round


def test_forgotten_chunk_keeps_its_analogies() -> None:
    predictor = ThoughtPredictor()
    for previous, thought in ((HEADS, TAILS), (TAILS, HEADS)):
        predictor.learn(5, previous, (), [thought])
    predictor.forget(5)
    predictor.forget(6)
    assert predictor.predict(5, HEADS) is None
    predictor.learn(9, HEADS, (), [TAILS])
    assert predictor.predict(9, TAILS) == HEADS


@given(st.lists(st.sampled_from(["flip", "leave", "say"]), min_size=40, max_size=40))
def test_a_coin_needs_few_rounds(events: list[str]) -> None:
    """Each round learns what the chunks think previous the round's guesses, as a pass does."""

    def think(event: str, previous: tuple[int, ...]) -> tuple[int, ...]:
        if event == "flip":
            return TAILS if previous in (NOTHING, HEADS) else HEADS
        return NOTHING if event == "say" else previous

    predictor, done, last, rounds = ThoughtPredictor(), 0, NOTHING, 0
    latest: dict[int, tuple[int, ...]] = {}
    while done < len(events):
        rounds += 1
        guesses, thoughts, previous = [], [], last
        for chunk in range(done, len(events)):
            predicted = predictor.predict(chunk, previous)
            guess = latest.get(chunk, NOTHING) if predicted is None else predicted
            thoughts.append(think(events[chunk], previous))
            guesses.append(guess)
            previous = guess or previous
        predictor.learn(done, last, guesses[:-1], thoughts)
        latest.update(enumerate(thoughts, done))
        right = 0
        while right < len(guesses) - 1 and guesses[right] == thoughts[right]:
            right += 1
        for thought in thoughts[: right + 1]:
            last = thought or last
        done += right + 1
    assert rounds <= 8
