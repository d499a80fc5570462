"""Callbacks that do not keep their object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def weak_method(method: Callable[..., T]) -> Callable[..., T]:
    """Return a callback that calls a bound method while its object is alive, and does not keep the object alive."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: object) -> T:
        bound = reference()
        return None if bound is None else bound(*arguments)  # type: ignore[return-value]  # unused by then

    return call
