"""Registries: a decorator next to the code gives a class or function its public name."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from simplicia.errors import unknown
from simplicia.settings import Option, current_name, options_of

T = TypeVar("T")
Entry = TypeVar("Entry")


class Registry(Generic[T]):
    """The registered entries of one kind, such as methods or data sets.

    METHODS: Registry[type[Method]] = Registry("method", arguments=3)

    @METHODS.register("byol")
    class BYOL(TargetMethod): ...

    The first ``arguments`` parameters of an entry are arguments of ``create``; the others are its options.
    """

    def __init__(self, kind: str, arguments: int = 0):
        self.kind, self.arguments = kind, arguments
        self._entries: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorate a class or function to register it under ``name``."""

        def add(entry: Entry) -> Entry:
            present = self._entries.get(name)
            if present is not None and present.__module__ != entry.__module__:
                raise ValueError(
                    f"{self.kind} {name!r} is taken by {present.__module__}; choose another name"
                )
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """The registered names, sorted."""
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """The entry registered under ``name``; a UserError suggests the nearest name."""
        if name not in self._entries:
            raise unknown(self.kind, name, self.names())
        return self._entries[name]

    def options(self, name: str) -> dict[str, Option]:
        """The options of an entry with their types, defaults, help texts and ranges."""
        return options_of(self.get(name), skip=self.arguments)

    def create(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call an entry with its arguments and options; option names and ranges are checked."""
        known = self.options(name)
        current = self._current(name, options, known)
        for option, value in current.items():
            known[option].check(value, f"{name}.{option}")
        return self._entries[name](*arguments, **current)

    def converted(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options from a file or a command line under their current names, typed and in range."""
        known = self.options(name)
        current = self._current(name, options, known)
        return {option: known[option].convert(value, f"{name}.{option}") for option, value in current.items()}

    def _current(self, name: str, options: Mapping[str, Any], known: dict[str, Option]) -> dict[str, Any]:
        current = {}
        for option, value in options.items():
            new = current_name(option, known)
            if new is None:
                raise unknown(f"option of {self.kind} {name!r}:", option, known)
            current[new] = value
        return current
