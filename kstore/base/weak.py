"""Callbacks that do not keep the object alive that they belong to."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def weak_method(method: Callable[..., T]) -> Callable[..., T]:
    """The bound method without its hold on the object; it does nothing once the object is collected."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: object) -> T:
        bound = reference()
        return None if bound is None else bound(*arguments)  # type: ignore[return-value]  # unused by then

    return call
