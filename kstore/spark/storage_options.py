"""`StorageOptions`: the options of an object store, which Spark hands to its tasks and nothing may print.

In the spelling of Spark's options they begin with `storage.`: `storage.endpoint` is obstore's `endpoint`. Invariant:
text made of the options has names, but no values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kstore.errors import ConfigError

STORAGE_PREFIX = "storage."

_SECRET = re.compile(r"storage|secret|password|token|credential|key|sas", re.IGNORECASE)


class StorageOptions(dict[str, Any]):
    """Options for `open_objects`. Shows only their names. Can be pickled."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(map(str, self)))})"

    __str__ = __repr__


def storage_of(options: Mapping[str, Any]) -> StorageOptions:
    """Return the options that begin with `storage.`, without the prefix and in lower case; raise `ConfigError`."""
    found = StorageOptions()
    for name, value in options.items():
        low = name.lower()
        if not low.startswith(STORAGE_PREFIX):
            continue
        if not low.removeprefix(STORAGE_PREFIX):
            raise ConfigError(f"{name} names no option of an object store; storage.region is one")
        found[low.removeprefix(STORAGE_PREFIX)] = str(value).strip()
    return found


def shown_value(name: str, value: object) -> str:
    """Return the value of an option for an error, unless the name looks like that of a secret."""
    return "a value that is not shown" if _SECRET.search(name) else repr(value)
