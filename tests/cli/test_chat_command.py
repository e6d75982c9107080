"""`holdfast chat` through a pipe: turns, commands, a context that overflows."""

from support.tiny import tiny_model

QUICK = ("--max-tokens", "5", "-t", "0")


def test_unknown_command_shows_the_known_ones(holdfast, model):
    result = holdfast("chat", model, *QUICK, stdin="/sing\n")
    assert "/reset" in result.stderr
    assert result.stdout == ""


def test_full_context_drops_the_oldest_turn_with_a_note(holdfast, model):
    turn = "the quick brown fox jumps over the lazy dog\n"
    result = holdfast("chat", model, *QUICK, "--max-model-len", "96", stdin=turn * 6)
    assert "the context is full: dropped the oldest" in result.stderr
    assert sum("seed" in line for line in result.stderr.splitlines()) == 6


def test_too_long_message_is_refused_and_the_chat_continues(holdfast, model):
    result = holdfast("chat", model, *QUICK, "--max-model-len", "64", stdin=f"{'dog ' * 200}\nthe dog\n")
    assert "this message takes" in result.stderr
    assert sum("seed" in line for line in result.stderr.splitlines()) == 1


def test_chat_does_not_offer_batch_options(holdfast, model):
    for option in ("--n", "--echo", "--max-num-seqs"):
        result = holdfast("chat", model, option, "2", stdin="", code=2)
        assert "No such option" in result.stderr


def test_interrupt_cancels_the_answer_and_the_chat_continues(interrupted_chat, tmp_path):
    """The context is long: the answer is still streaming when the signal comes."""
    model = str(tiny_model(tmp_path / "long", max_position_embeddings=40_000))
    endless = ["-n", "39000", "-t", "0.9", "--min-p", "0", "--ignore-eos"]
    _, noted = interrupted_chat([model, *endless], b"/reset\n/exit\n")
    assert b"cleared" in noted
