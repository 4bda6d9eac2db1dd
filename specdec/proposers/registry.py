"""Which proposers there are: the built-in ones, and those from outside (see `specdec.proposers.outside`).

A proposer is built as `Class(settings, context)`. Its settings are a frozen dataclass made of the method's own keys in
`speculative_config`; a class from outside may have none, and then its `settings` are None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Any

from specdec.config import AUTO, SpeculativeConfig, unknown_name
from specdec.proposers.base import Proposer, ProposerContext
from specdec.proposers.outside import (
    build_outside,
    entry_point_names,
    find_outside,
    is_outside,
    one_line,
    refuse_namesake,
)
from specdec.types import MAX_DRAFT_NODES

PROPOSERS = {
    "none": ("specdec.proposers.base", "NoSettings", "NoProposer"),
    "draft": ("specdec.proposers.draft_model", "DraftModelSettings", "DraftModelProposer"),
    "eagle": ("specdec.proposers.eagle", "HeadSettings", "EagleProposer"),
    "eagle3": ("specdec.proposers.eagle", "HeadSettings", "EagleProposer"),
    "medusa": ("specdec.proposers.medusa", "HeadSettings", "MedusaProposer"),
    "ngram": ("specdec.proposers.ngram", "NgramSettings", "NgramProposer"),
    "recycling": ("specdec.proposers.recycling", "RecyclingSettings", "RecyclingProposer"),
    "suffix": ("specdec.proposers.suffix", "SuffixSettings", "SuffixProposer"),
}
"""The built-in ones: method name -> module, settings dataclass, proposer class; imported when first asked for."""

_WITH_KV = ("draft", "eagle", "eagle3")

PORTFOLIO = ("specdec.proposers.auto", "AutoSettings")
"""Of `auto`, which chooses among proposers and is none: the module and class of its settings."""

METHODS = (AUTO, *PROPOSERS)
"""The names that a request or a configuration may give without anything from outside."""

COMMON_KEYS = ("method", "num_speculative_tokens", "rejection_sample_method", "verifier")
"""Keys of `speculative_config` that every method has."""


def check_settings(config: SpeculativeConfig) -> Any:
    """The method's own settings object (None for a class without), or a ValueError that says in one line what is wrong.

    A name that is not built in is looked for, and its module imported; no model is needed.
    """
    if config.method in METHODS:
        refuse_namesake(config.method)
    return _settings(_find(config.method), config)


def num_nodes(config: SpeculativeConfig) -> int:
    """The most nodes of a draft of the longest depth. Settings from outside that do not tell are those of a chain."""
    settings, depth = check_settings(config), config.num_speculative_tokens
    if config.method not in METHODS and not hasattr(settings, "num_nodes"):
        return depth
    with _blaming(config.method):
        nodes = settings.num_nodes(depth)
    if type(nodes) is not int or not 0 <= nodes <= MAX_DRAFT_NODES:
        raise ValueError(
            f"the proposer {config.method!r} means to draft {nodes!r} nodes; a draft has at most {MAX_DRAFT_NODES}"
        )
    return nodes


def keeps_kv(method: str) -> bool:
    """Whether a proposer has KV of its own. One from outside may, unless its class says that it has not."""
    if method in METHODS:
        return method in _WITH_KV
    cls, _ = find_outside(method)
    return getattr(cls, "kv_caches", None) != ()


def build_proposer(config: SpeculativeConfig, context: ProposerContext | None = None) -> Proposer:
    """The proposer that `config` describes, for the engine of `context`; one without a model needs no context."""
    kind = _find(config.method)
    settings = _settings(kind, config)
    assert kind.proposer is not None, "a portfolio drafts nothing itself"
    if config.method not in PROPOSERS:
        return build_outside(config.method, kind.proposer, settings, context)
    proposer: Proposer = kind.proposer(settings, context)
    return proposer


@dataclass(frozen=True)
class _Kind:
    """A method's classes."""

    proposer: type[Any] | None
    """None for `auto`."""
    settings: type[Any] | None


def _find(method: str) -> _Kind:
    if method == AUTO:
        module_name, settings_name = PORTFOLIO
        return _Kind(None, getattr(import_module(module_name), settings_name))
    if method in PROPOSERS:
        module_name, settings_name, class_name = PROPOSERS[method]
        module = import_module(module_name)
        return _Kind(getattr(module, class_name), getattr(module, settings_name))
    if is_outside(method):
        return _Kind(*find_outside(method))
    raise ValueError(f"{unknown_name('proposer', method, [*METHODS, *entry_point_names()])}; {_path_hint(method)}")


def _path_hint(method: str) -> str:
    """How a class of one's own is named, `method` itself where its colon was forgotten."""
    if "." in method and all(part.isidentifier() for part in method.split(".")):
        return f"a class is named {':'.join(method.rsplit('.', 1))!r}"
    return "a class of your own is named 'package.module:Class'"


def _settings(kind: _Kind, config: SpeculativeConfig) -> Any:
    declared = [] if kind.settings is None else [field for field in fields(kind.settings) if field.init]
    names = [field.name for field in declared]
    for key in config.settings:
        if key not in names:
            kinds = f"key of speculative_config for {config.method!r}:"
            raise ValueError(unknown_name(kinds, key, [*COMMON_KEYS, *names]))
    for field in declared:
        if field.default is MISSING and field.default_factory is MISSING and field.name not in config.settings:
            raise ValueError(f"the proposer {config.method!r} needs the key {field.name!r} in speculative_config")
    if kind.settings is None:
        return None
    with _blaming(config.method):
        return kind.settings(**config.settings)


@contextmanager
def _blaming(method: str) -> Iterator[None]:
    """Say in one line whose settings fail. A ValueError is what settings are to raise, and says it itself."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"the settings of the proposer {method!r} are wrong: {one_line(error)}") from error
