"""The first end wins, token by token; stop strings cross token borders; nothing is shown that may be taken back."""

import pytest

from specdec.core.sequence import Status
from specdec.core.stopping import append_token, finish_text, visible_text
from tests.core.helpers import make_sequence


class Pieces:
    """A text stream over a table of pieces; holds back one trailing "~" as if it were half a character."""

    def __init__(self, pieces: dict[int, str]) -> None:
        self.pieces, self.held = pieces, ""

    def push(self, token_id: int) -> str:
        text = self.held + self.pieces[token_id]
        self.held = "~" if text.endswith("~") else ""
        return text.removesuffix("~")

    def finish(self) -> str:
        return self.held and "\ufffd"


def sample(pieces: dict[int, str], **options):
    sequence = make_sequence([0], detokenize=True, **options)
    sequence.text_stream = Pieces(pieces)
    return sequence


def feed(sequence, tokens, limit: int = 100) -> int:
    """Append until the sample ends; how many tokens were taken."""
    for taken, token in enumerate(tokens, 1):
        if append_token(sequence, token, limit):
            sequence.status = Status.FINISHED
            finish_text(sequence)
            return taken
    return len(tokens)


def test_a_stop_string_across_token_borders() -> None:
    sequence = sample({1: "ab", 2: "cS", 3: "TO", 4: "Pde"}, stop=["STOP"])
    assert feed(sequence, [1, 2, 3, 4, 1]) == 4
    assert (sequence.text, sequence.finish_reason, sequence.stop_reason) == ("abc", "stop", "STOP")


def test_the_stop_string_that_is_complete_first_wins_whatever_the_order() -> None:
    for stops in (["xyz", "y"], ["y", "xyz"]):
        sequence = sample({1: "axyzb"}, stop=stops)
        feed(sequence, [1])
        assert (sequence.text, sequence.stop_reason) == ("ax", "y")


def test_stop_strings_may_be_kept() -> None:
    sequence = sample({1: "abSTOPcd"}, stop=["STOP"], include_stop_str_in_output=True)
    feed(sequence, [1])
    assert sequence.text == "abSTOP"


def test_a_stop_string_of_the_prompt_does_not_count() -> None:
    sequence = sample({1: "a"}, stop=["0"])
    assert feed(sequence, [1, 1]) == 2
    assert sequence.finish_reason is None


@pytest.mark.parametrize(
    ("eos", "stop_ids", "reason"), [((9,), (), None), ((), (9,), 9)], ids=["end of sequence", "stop token"]
)
def test_stop_tokens_end_without_their_text(eos, stop_ids, reason) -> None:
    sequence = sample({1: "a", 9: "Z"}, eos=eos, stop_token_ids=stop_ids)
    assert feed(sequence, [1, 9, 1]) == 2
    assert (sequence.text, sequence.finish_reason, sequence.stop_reason) == ("a", "stop", reason)
    assert sequence.output_token_ids == [1, 9]


def test_at_one_token_stop_comes_before_length() -> None:
    sequence = sample({1: "a"}, stop=["aa"], max_tokens=2)
    assert feed(sequence, [1, 1, 1]) == 2
    assert sequence.finish_reason == "stop"
    sequence = sample({1: "a", 9: ""}, eos=(9,), max_tokens=2)
    feed(sequence, [1, 9])
    assert sequence.finish_reason == "stop"


def test_the_model_limit_ends_a_sample() -> None:
    sequence = sample({1: "a"}, max_tokens=None)
    assert feed(sequence, [1] * 10, limit=5) == 4
    assert sequence.finish_reason == "length"


def test_below_min_tokens_only_limits_end() -> None:
    sequence = sample({1: "a", 9: "z"}, eos=(9,), stop=["a"], min_tokens=3)
    assert feed(sequence, [9, 1, 1, 1]) == 3
    assert sequence.stop_reason == "a"


def test_a_half_character_at_the_end_is_shown_as_one_replacement() -> None:
    sequence = sample({1: "a~"}, max_tokens=2)
    append_token(sequence, 1, 100)
    assert visible_text(sequence) == "a"
    feed(sequence, [1])
    assert sequence.text == "a~a\ufffd"


def test_what_may_become_a_stop_string_is_held_back() -> None:
    sequence = sample({1: "xS", 2: "T", 3: "!"}, stop=["STOP", "!?"])
    append_token(sequence, 1, 100)
    assert visible_text(sequence) == "x"
    append_token(sequence, 2, 100)
    assert visible_text(sequence) == "x"
    append_token(sequence, 3, 100)
    assert visible_text(sequence) == "xST"
    sequence.status = Status.FINISHED
    assert visible_text(sequence) == "xST!"
