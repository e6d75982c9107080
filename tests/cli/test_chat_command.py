"""`holdfast chat` through a pipe: turns, commands, a context that overflows."""

QUICK = ("--max-tokens", "5", "-t", "0")


def test_each_turn_reports_its_mode(holdfast, model):
    result = holdfast("chat", model, *QUICK, "-d", stdin="the dog\nthe fox\n")
    assert result.exit_code == 0, result.stderr
    modes = [line for line in result.stderr.splitlines() if "seed" in line]
    assert len(modes) == 2
    assert all("certified" in line or "verified" in line for line in modes)


def test_turns_are_kept_until_reset(holdfast, model):
    def last_answer(lines):
        return holdfast("chat", model, "-n", "12", "-t", "0", "-d", stdin=lines).stdout.splitlines()[-1]

    fresh = last_answer("the fox\n")
    assert last_answer("the lazy dog\n/reset\nthe fox\n") == fresh
    assert last_answer("the lazy dog\nthe fox\n") != fresh


def test_exit_command_ends_the_chat(holdfast, model):
    result = holdfast("chat", model, *QUICK, stdin="/exit\nthe dog\n")
    assert result.exit_code == 0
    assert result.stdout == ""


def test_unknown_command_shows_the_known_ones(holdfast, model):
    result = holdfast("chat", model, *QUICK, stdin="/sing\n")
    assert "/reset" in result.stderr
    assert result.stdout == ""


def test_full_context_drops_the_oldest_turn_with_a_note(holdfast, model):
    turn = "the quick brown fox jumps over the lazy dog\n"
    result = holdfast("chat", model, *QUICK, "--max-model-len", "96", stdin=turn * 6)
    assert result.exit_code == 0, result.stderr
    assert "the context is full: dropped the oldest" in result.stderr
    assert sum("seed" in line for line in result.stderr.splitlines()) == 6


def test_too_long_message_is_refused_and_the_chat_continues(holdfast, model):
    result = holdfast("chat", model, *QUICK, "--max-model-len", "64", stdin=f"{'dog ' * 200}\nthe dog\n")
    assert result.exit_code == 0
    assert "this message takes" in result.stderr
    assert sum("seed" in line for line in result.stderr.splitlines()) == 1


def test_system_message_changes_the_answer(holdfast, model):
    plain = holdfast("chat", model, "-n", "12", "-t", "0", stdin="the dog\n").stdout
    told = holdfast(
        "chat", model, "-n", "12", "-t", "0", "--system", "the quick brown fox", stdin="the dog\n"
    ).stdout
    assert plain != told


def test_penalties_and_token_lists_change_the_answer(holdfast, model):
    def say(*more):
        asked = ("-n", "24", "-t", "0", "--ignore-eos", "--logit-bias", "70=20")
        result = holdfast("chat", model, *asked, *more, stdin="the dog\n")
        assert result.exit_code == 0, result.stderr
        return result.stdout.rstrip("\n")

    favourite = say()
    assert set(favourite) == {favourite[0]}
    assert set(say("--frequency-penalty", "2")) > {favourite[0]}
    assert favourite[0] not in say("--bad-token-id", "70")


def test_chat_does_not_offer_batch_options(holdfast, model):
    for option in ("--n", "--echo", "--max-num-seqs"):
        result = holdfast("chat", model, option, "2", stdin="")
        assert result.exit_code == 2
        assert "No such option" in result.stderr
