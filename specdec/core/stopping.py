"""Where a sample ends: the first end-of-sequence, stop token, stop string, or limit, token by token."""

from __future__ import annotations

from specdec.core.committed import commit
from specdec.core.sequence import Sequence
from specdec.types import TextStream


def append_token(sequence: Sequence, token_id: int, max_model_len: int) -> bool:
    """Commit one token and its text; True (with the reason set) if the sample ends with it.

    At one token a stop token comes before a stop string, and both before a limit. Below `min_tokens` only limits bind.
    """
    commit(sequence.token_ids, (token_id,))
    request, params = sequence.request, sequence.request.params
    may_stop = sequence.num_output_tokens >= params.min_tokens
    if may_stop and token_id in request.stop_token_ids:
        if params.include_stop_str_in_output:
            _extend_text(sequence, token_id)
        sequence.finish_reason = "stop"
        sequence.stop_reason = None if token_id in request.eos_token_ids else token_id
        return True
    searched = len(sequence.text)
    _extend_text(sequence, token_id)
    if may_stop and _stop_string(sequence, searched):
        return True
    limit = params.max_tokens is not None and sequence.num_output_tokens >= params.max_tokens
    if limit or sequence.num_tokens >= max_model_len:
        sequence.finish_reason = "length"
        return True
    return False


def begin_text(sequence: Sequence, stream: TextStream | None, num_output_tokens: int) -> None:
    """Give a sample a stream that has turned nothing into text yet, and the text of its first output tokens."""
    text = ""
    if stream is not None:
        text = "".join([stream.push(token_id) for token_id in sequence.output_token_ids[:num_output_tokens]])
    sequence.text_stream, sequence.text = stream, text


def finish_text(sequence: Sequence) -> None:
    """Add what the text stream still holds; not after a stop string, whose cut is final."""
    if sequence.text_stream is not None and not isinstance(sequence.stop_reason, str):
        sequence.text += sequence.text_stream.finish()
    sequence.text_stream = None


def visible_text(sequence: Sequence) -> str:
    """The text that later tokens cannot take back: an unfinished stop string is held back."""
    text, stops = sequence.text, sequence.request.params.stop_strings
    if sequence.is_finished or not stops:
        return text
    longest = min(len(text), max(map(len, stops)) - 1)
    for held in range(longest, 0, -1):
        if any(stop.startswith(text[-held:]) for stop in stops):
            return text[:-held]
    return text


def _extend_text(sequence: Sequence, token_id: int) -> None:
    if sequence.text_stream is not None:
        sequence.text += sequence.text_stream.push(token_id)


def _stop_string(sequence: Sequence, searched: int) -> bool:
    """Cut the text at the stop string that is complete first, if the text after `searched` completed one."""
    params, text = sequence.request.params, sequence.text
    found = []
    for stop in params.stop_strings:
        start = text.find(stop, max(0, searched - len(stop) + 1))
        if start >= 0:
            found.append((start + len(stop), start, stop))
    if not found:
        return False
    end, start, stop = min(found)
    sequence.text = text[: end if params.include_stop_str_in_output else start]
    sequence.finish_reason, sequence.stop_reason = "stop", stop
    return True
