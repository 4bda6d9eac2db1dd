"""What an engine asks of whoever chooses the drafts of `auto`, and what it tells them of what came of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Protocol

from specdec.core.control.explanation import Explanation
from specdec.core.control.types import Candidate, Choice, Member, Outcome


class Chooser(Protocol):
    """Before a step's drafts: `wanted_hints`, then `choose` or `rest`; after them `drafted` and `followed`; `verified`
    when the next step is over. Seconds are those of the step's record."""

    @property
    def members(self) -> Many[Member]:
        """Those that may be chosen."""
        ...

    @property
    def needs_hints(self) -> bool:
        """Whether nobody can be chosen without having been asked for a hint."""
        ...

    def wanted_hints(self, num_sequences: int) -> Many[str]:
        """Who is to be asked for hints before the next choice."""
        ...

    def rest(self, num_sequences: int, rows: int) -> None:
        """A step without a choice: so many sequences are decoded plainly."""
        ...

    def choose(self, candidates: Many[Candidate], rows: int) -> list[Choice]:
        """The step's decision, one for each candidate. `rows` are computed in any case."""
        ...

    def prompt_followers(self, key: Hashable, num_tokens: int) -> Many[str]:
        """Members with KV that follow a sequence's prompt, which is so many tokens."""
        ...

    def hinted(self, member: str, candidates: Iterable[tuple[Hashable, int]], seconds: float) -> None:
        """A member was asked for hints about these sequences, of so many tokens each; it may have failed."""
        ...

    def followed(
        self, member: str, sequences: Iterable[tuple[Hashable, int]], num_missed: int, seconds: float, in_prompt: bool
    ) -> None:
        """A member followed sequences without drafting, which had this many tokens new to it. `in_prompt`: it was
        not just the last few."""
        ...

    def drafted(
        self,
        member: str,
        drafts: Many[tuple[Hashable, int, int]],
        seconds: float,
        read: Mapping[Hashable, int] | None = None,
    ) -> None:
        """A member was asked for the drafts that were chosen: for each sequence the depth and rows of what came. In the
        same call it `read` others, which had so many tokens new to it."""
        ...

    def verified(self, outcomes: Iterable[Outcome], rows: int, seconds: float, propose: float, is_pure: bool) -> None:
        """A step of so many rows was verified. `is_pure`: it computed nothing but candidates' rows and their drafts."""
        ...

    def forget(self, key: Hashable) -> None:
        """A sequence is done."""
        ...

    def explain(self) -> Explanation:
        """What was chosen, and what came of it."""
        ...
