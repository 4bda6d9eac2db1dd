"""Proposers from outside the package: a class by its path, "my_package.module:Class", or by an entry point.

Entry points are those of the group `specdec.proposers`, by which an installed package gives its class a name. The
class is what `Proposer` says, is built as `Class(settings, context)`, and may have an attribute `Settings`, a frozen
dataclass; where drafts are trees, with `num_nodes` (see `Settings`). KV that it makes for itself is not in the memory
plan. Its code may be wrong in any way: whatever is, is said in one line, as a ValueError.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Many
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from specdec.proposers.base import Proposer, ProposerContext, Wants

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "specdec.proposers"
METHODS = ("propose", "forget")
SHAPE = "a proposer is a class, built as Class(settings, context), with propose, forget, kv_caches and wants"


def entry_point_names() -> list[str]:
    """The names that installed packages give their proposers."""
    return sorted({entry.name for entry in _entries()})


def is_outside(method: str) -> bool:
    """Whether `method` is written as a path, or some installed package has a proposer of this name."""
    return ":" in method or method in entry_point_names()


def refuse_namesake(method: str) -> None:
    """ValueError if an installed package gives its proposer the name of a built-in one: who is meant is not clear."""
    for entry in _called(method):
        raise ValueError(
            f"the proposer {method!r} is built in, and {_package(entry)} has one of the same name; uninstall it, or "
            f"ask for its proposer by the class, {entry.value!r}"
        )


def find_outside(method: str) -> tuple[type[Any], type[Any] | None]:
    """The class that `method` names, checked as far as it can be without an instance, and its `Settings`."""
    named, path = _locate(method)
    found = _load(named, path)
    if not isinstance(found, type):
        raise ValueError(f"{named} is no class but a {type(found).__name__}; {SHAPE}")
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise ValueError(f"{named} has no method {' and no '.join(missing)}; {SHAPE}")
    _check_signature(named, found)
    return found, _settings_class(named, found)


def build_outside(method: str, cls: type[Any], settings: Any, context: ProposerContext | None) -> Proposer:
    """An instance that has all that a proposer must have."""
    named = f"the proposer {method!r}"
    try:
        proposer: Proposer = cls(settings, context)
    except Exception as error:
        raise ValueError(f"{named} cannot be built: {one_line(error)}") from error
    _check_instance(named, proposer)
    return proposer


def one_line(error: BaseException) -> str:
    """What an error of someone else's code says, whatever its shape, and where it cannot even say it."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "its message cannot be read"
    return f"{name}: {text}".removesuffix(": ")


def _locate(method: str) -> tuple[str, str]:
    """How messages call it, and the path to its class."""
    if ":" in method:
        return f"the proposer {method!r}", method
    first, *others = _called(method)
    if others:
        packages = " and ".join(_package(entry) for entry in (first, *others))
        raise ValueError(f"{packages} each have a proposer {method!r}; ask for one by its class, {first.value!r}")
    path = first.value.partition("[")[0].replace(" ", "")
    return f"the proposer {method!r} of {_package(first)} ({path})", path


def _entries() -> list[EntryPoint]:
    """What installed packages name; those that give one name to the same place, once."""
    from importlib.metadata import entry_points  # slow to import, and hardly ever needed

    return list({(entry.name, entry.value): entry for entry in entry_points(group=GROUP)}.values())


def _called(name: str) -> list[EntryPoint]:
    return [entry for entry in _entries() if entry.name == name]


def _package(entry: EntryPoint) -> str:
    return "an installed package" if entry.dist is None else f"the package {entry.dist.name!r}"


def _load(named: str, path: str) -> object:
    """What the path leads to."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ValueError(f"{named} is no path to a class; expected one such as 'my_package.module:Class'")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"{named}: there is no module {error.name!r}; is its folder in PYTHONPATH?") from None
        raise ValueError(f"{named}: its module cannot be imported: {one_line(error)}") from error
    return _attribute(named, module, attribute)


def _attribute(named: str, module: ModuleType, attribute: str) -> object:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            names = [name for name, value in vars(module).items() if isinstance(value, type) and _is_proposer(value)]
            there = f"its proposers are {', '.join(names)}" if names else f"nor any other proposer; {SHAPE}"
            raise ValueError(f"{named}: the module {module.__name__!r} has no {attribute!r}; {there}") from error
    return found


def _is_proposer(cls: type[Any]) -> bool:
    return all(callable(getattr(cls, name, None)) for name in METHODS)


def _check_signature(named: str, cls: type[Any]) -> None:
    try:
        inspect.signature(cls).bind(None, None)
    except TypeError as error:
        raise ValueError(f"{named} cannot be built as {cls.__name__}(settings, context): {error}") from None
    except ValueError:
        return  # the signature of a class written in C may be unknown


def _settings_class(named: str, cls: type[Any]) -> type[Any] | None:
    settings: Any = getattr(cls, "Settings", None)
    if settings is None:
        return None
    parameters: Any = getattr(settings, "__dataclass_params__", None)
    if not isinstance(settings, type) or parameters is None or not parameters.frozen:
        raise ValueError(f"{named}: its Settings must be a frozen dataclass")
    return settings


def _check_instance(named: str, proposer: Proposer) -> None:
    from specdec.step.kv_cache import KVCache  # the command line names proposers, and must not wait for torch

    caches = _member(named, proposer, "kv_caches", "kv_caches = () says that it keeps no KV of its own")
    if not isinstance(caches, Many) or not all(isinstance(cache, KVCache) for cache in caches):
        raise ValueError(f"{named}: kv_caches must be a sequence of KVCache, () where it keeps no KV of its own")
    wants = _member(named, proposer, "wants", "wants = NOTHING, of specdec.proposers.base, says that ids are enough")
    if not isinstance(wants, Wants) or not all(type(layer) is int for layer in wants.aux_layers):
        raise ValueError(f"{named}: wants must be specdec.proposers.base.Wants, or its NOTHING; got {wants!r:.60}")


def _member(named: str, proposer: Proposer, name: str, hint: str) -> object:
    try:
        return getattr(proposer, name)
    except Exception as error:
        raise ValueError(f"{named} has no {name}; {hint}") from error
