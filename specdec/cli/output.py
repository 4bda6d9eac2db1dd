"""How answers reach standard output: as text while it comes, as text one answer after another, or as JSON lines."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import click

from specdec.cli.prompts import Prompt
from specdec.types import BONUS, RECOVERED, CompletionOutput, Logprob, RequestOutput, SpeculationStats, TextStream

if TYPE_CHECKING:
    from specdec.tokenizer import Tokenizer

COLOURS = {RECOVERED: "yellow", BONUS: None}
DRAFTED_COLOUR = "green"
LEGEND = "green: drafted and accepted; yellow: recovered after a rejection; plain: bonus, from the model alone"


class Writer(Protocol):
    """Told of every request that moved on, and of each answer when its turn in input order has come."""

    def progress(self, index: int, output: RequestOutput) -> None:
        """The request goes on; its text so far may be shown if nothing can come between."""
        ...

    def answer(self, index: int, output: RequestOutput) -> None:
        """The request is finished, and every earlier one has been written."""
        ...

    def unfinished(self, index: int, output: RequestOutput) -> None:
        """The request was aborted before its end."""
        ...


class JsonWriter:
    """One JSON object a line, one line a prompt."""

    def __init__(self, load_seconds: float) -> None:
        self._load_seconds = load_seconds

    def progress(self, index: int, output: RequestOutput) -> None:
        pass

    def answer(self, index: int, output: RequestOutput) -> None:
        click.echo(json.dumps(as_json(index, output, self._load_seconds)))

    def unfinished(self, index: int, output: RequestOutput) -> None:
        self.answer(index, output)


class StreamWriter:
    """The only answer of a run, shown as it comes."""

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer | None) -> None:
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._text: SampleText | None = None

    def progress(self, index: int, output: RequestOutput) -> None:
        if self._text is None:
            self._text = sample_text(self._prompt, output, self._tokenizer)
        click.echo(self._text.rest(output.outputs[0]), nl=False, color=True)

    def answer(self, index: int, output: RequestOutput) -> None:
        self.progress(index, output)
        click.echo()

    def unfinished(self, index: int, output: RequestOutput) -> None:
        self.answer(index, output)


class AnswerWriter:
    """Whole answers in input order, each under a short header unless `headers` is off."""

    def __init__(self, prompts: Sequence[Prompt], tokenizer: Tokenizer | None, *, headers: bool) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._headers = headers

    def progress(self, index: int, output: RequestOutput) -> None:
        pass

    def answer(self, index: int, output: RequestOutput) -> None:
        prompt = self._prompts[index]
        for sample in output.outputs:
            if self._headers:
                click.echo(header(prompt, index, len(self._prompts), sample, len(output.outputs)))
            text = sample_text(prompt, output, self._tokenizer).rest(sample)
            click.echo(text + "\n" if self._headers else text, color=True)

    def unfinished(self, index: int, output: RequestOutput) -> None:
        pass


def header(prompt: Prompt, index: int, num_prompts: int, sample: CompletionOutput, num_samples: int) -> str:
    """For example `== 2/3 (sample 1/2): Why is the sky blue?`"""
    content = prompt.content
    if isinstance(content, list):
        content = str(content[-1]["content"])
    elif isinstance(content, tuple):
        content = f"{len(content)} token ids"
    title = " ".join(content.split())
    title = title if len(title) <= 60 else title[:59] + "…"
    which = f" (sample {sample.index + 1}/{num_samples})" if num_samples > 1 else ""
    return f"== {index + 1}/{num_prompts}{which}: {title}"


class SampleText:
    """One sample's text, handed out piece by piece; coloured by provenance if `stream` retraces its tokens."""

    def __init__(self, stream: TextStream | None) -> None:
        self._stream = stream
        self._shown = 0
        self._ends: list[int] = []
        """For each token, where its text ends."""

    def rest(self, sample: CompletionOutput) -> str:
        """What of the sample's text has not been handed out yet."""
        start, self._shown = self._shown, len(sample.text)
        return sample.text[start:] if self._stream is None else self._painted(sample, start)

    def _painted(self, sample: CompletionOutput, start: int) -> str:
        assert self._stream is not None
        for token_id in sample.token_ids[len(self._ends) :]:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._stream.push(token_id)))
        pieces = []
        for token in range(bisect_right(self._ends, start), len(self._ends)):
            piece = sample.text[start : self._ends[token]]
            if piece:
                source = sample.provenance[token]
                pieces.append(click.style(piece, fg=COLOURS.get(source, DRAFTED_COLOUR), reset=True))
            start = self._ends[token]
        return "".join(pieces) + sample.text[start:]


def sample_text(prompt: Prompt, output: RequestOutput, tokenizer: Tokenizer | None) -> SampleText:
    """The text of a sample of `output`; in colour if there is a tokenizer to retrace its tokens with."""
    if tokenizer is None:
        return SampleText(None)
    return SampleText(tokenizer.stream(prompt.params.skip_special_tokens, output.prompt_token_ids))


def as_json(index: int, output: RequestOutput, load_seconds: float) -> dict[str, Any]:
    """The object that `--json` prints. `prompt_logprobs` and `error` are in it only where there are any."""
    fields: dict[str, Any] = {
        "index": index,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [
            {
                "text": sample.text,
                "token_ids": sample.token_ids,
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
                "logprobs": None if sample.logprobs is None else [_logprobs(entry) for entry in sample.logprobs],
                **({} if sample.error is None else {"error": sample.error}),
            }
            for sample in output.outputs
        ],
        "num_cached_tokens": output.num_cached_tokens,
        "speculation": _speculation(output),
        "timing": _timing(output, load_seconds),
    }
    if output.prompt_logprobs is not None:
        fields["prompt_logprobs"] = [None if entry is None else _logprobs(entry) for entry in output.prompt_logprobs]
    return fields


def _logprobs(entry: Mapping[int, Logprob]) -> dict[str, dict[str, Any]]:
    """JSON has no infinities: the logprob of an impossible token is null."""
    return {
        str(token_id): asdict(found) | {"logprob": found.logprob if math.isfinite(found.logprob) else None}
        for token_id, found in entry.items()
    }


def total_speculation(outputs: Sequence[RequestOutput]) -> SpeculationStats:
    """The counts of every sample, summed."""
    total = SpeculationStats()
    for output in outputs:
        for sample in output.outputs:
            total.add(sample.speculation)
    return total


def num_generated(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)


def _speculation(output: RequestOutput) -> dict[str, Any]:
    """The counts of all samples together; `provenance` has one list for each sample."""
    total = total_speculation([output])
    return {
        "proposer": output.proposer,
        "num_speculative_tokens": output.num_speculative_tokens,
        "verifier": output.verifier,
        "exactness": output.exactness,
        "num_drafts": total.num_drafts,
        "num_draft_tokens": total.num_draft_tokens,
        "num_accepted_tokens": total.num_accepted_tokens,
        "accepted_per_position": total.accepted_per_position,
        "mean_acceptance_length": total.mean_acceptance_length,
        "provenance": [sample.provenance for sample in output.outputs],
    }


def _timing(output: RequestOutput, load_seconds: float) -> dict[str, float | None]:
    """Seconds. The first token belongs to the prompt's time, so decoding made one token less than there are."""
    metrics = output.metrics
    ttft = decode = rate = None
    if metrics is not None and metrics.first_token_time is not None:
        ttft = metrics.first_token_time - metrics.arrival_time
        if metrics.finished_time is not None:
            decode = metrics.finished_time - metrics.first_token_time
            rate = (num_generated([output]) - 1) / decode if decode > 0 else None
    return {"load_s": load_seconds, "ttft_s": ttft, "decode_s": decode, "decode_tokens_per_s": rate}


def statistics(outputs: Sequence[RequestOutput], seconds: float) -> str:
    """The one line at the end of a run: how much, how fast, and how well the drafts were accepted."""
    tokens, total = num_generated(outputs), total_speculation(outputs)
    rate = f", {tokens / seconds:.1f} tok/s" if seconds > 0 else ""
    proposers = dict.fromkeys(_proposer(output) for output in outputs)
    line = f"{tokens} tokens in {seconds:.2f} s{rate}; proposer {' and '.join(proposers) or 'none'}"
    if any(output.proposer != "none" for output in outputs):
        line += f"; acceptance rate {100 * total.acceptance_rate:.1f} % of {total.num_draft_tokens} drafted tokens"
        line += f", mean acceptance length {total.mean_acceptance_length:.2f}"
    lossy = dict.fromkeys(output.verifier for output in outputs if output.exactness == "lossy")
    if lossy:
        line += f"; lossy: the verifier {' and '.join(lossy)} does not keep the model's distribution"
    return line


def _proposer(output: RequestOutput) -> str:
    return "none" if output.proposer == "none" else f"{output.proposer}, k = {output.num_speculative_tokens}"
