"""Where the schemas of framed values come from: a mapping, a schema registry, or the topic `_schemas`."""

from __future__ import annotations

import base64
import json
import os
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from kstore.base import arguments
from kstore.errors import ConfigError
from kstore.store.store import Store

TOPIC = "_schemas"  # where Confluent's registry keeps schemas
SECONDS = 10  # that an answer of a registry may take
MOST_BYTES = 16 << 20  # of an answer

Schemas = Mapping[int, Any] | str | os.PathLike[str] | Store


class Registered(NamedTuple):
    """A schema and those that it refers to, which come first."""

    text: str
    references: tuple[str, ...] = ()


class UnknownSchemaError(Exception):
    """No schema has this id; the text says so."""


class KnownSchemas:
    """Looks up schemas by their ids, each once. Thread-safe."""

    def __init__(self, schemas: Schemas) -> None:
        self._found: dict[int, Registered | UnknownSchemaError] = {}
        self._lock = threading.Lock()
        self._url: str | None = None
        if isinstance(schemas, Mapping):
            self._found = {
                arguments.integer("a schema's id", number): Registered(
                    text if isinstance(text, str) else json.dumps(text)
                )
                for number, text in schemas.items()
            }
        elif isinstance(schemas, str) and "://" in schemas:
            self._url, self._headers = _registry(schemas)
        elif isinstance(schemas, Store):
            self._found |= _of_topic(schemas)
        else:
            with Store.open(schemas, mode="r") as store:
                self._found |= _of_topic(store)

    def get(self, number: int) -> Registered:
        """Return the schema with an id, or raise `UnknownSchemaError`."""
        with self._lock:
            found = self._found.get(number)
            if found is None and self._url is not None:
                try:
                    found = self._fetched(f"/schemas/ids/{number}", {})
                except UnknownSchemaError as error:
                    found = error
                self._found[number] = found
        if found is None:
            raise UnknownSchemaError(f"no schema has the id {number}")
        if isinstance(found, UnknownSchemaError):
            raise found
        return found

    def _fetched(self, path: str, seen: dict[tuple[str, int], str]) -> Registered:
        """Ask the registry for a schema, and for those that it refers to."""
        answer = self._asked(path)
        text = answer.get("schema")
        if not isinstance(text, str):
            raise ConfigError(f"{self._url}{path} answers without a schema")
        for name in _references(answer, f"{self._url}{path}"):
            if name not in seen:
                seen[name] = ""  # a circle of references ends here
                subject = urllib.parse.quote(name[0], safe="")
                found = self._fetched(f"/subjects/{subject}/versions/{name[1]}", seen)
                del seen[name]
                seen[name] = found.text  # after those that it refers to
        return Registered(text, tuple(seen.values()))

    def _asked(self, path: str) -> dict[str, Any]:
        import urllib.error
        import urllib.request

        request = urllib.request.Request(f"{self._url}{path}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                body = response.read(MOST_BYTES + 1)
            answer = json.loads(body) if len(body) <= MOST_BYTES else None
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise UnknownSchemaError(f"{self._url} has no {path}") from None
                raise ConfigError(f"{self._url}{path}: {error}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._url}{path}: {error}") from None
        if not isinstance(answer, dict):
            raise ConfigError(f"{self._url}{path} answers with no JSON object of at most {MOST_BYTES >> 20} MiB")
        return answer


def _registry(url: str) -> tuple[str, dict[str, str]]:
    """Return a registry's URL without a user's name and password, and the headers that carry them."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("the URL of a schema registry begins with http:// or https:// and has a host")
    user, _, host = parts.netloc.rpartition("@")
    headers = {}
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(urllib.parse.unquote(user).encode()).decode()}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", headers


def _references(answer: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    found = answer.get("references") or []
    try:
        return [(str(one["subject"]), int(one["version"])) for one in found]
    except (TypeError, KeyError, ValueError):
        raise ConfigError(f"{where}: a reference without a subject and a version") from None


def _of_topic(store: Store) -> dict[int, Registered | UnknownSchemaError]:
    """Return the schemas in the topic of a registry, as of now; a schema without readable references is left out."""
    if TOPIC not in store.topics:
        raise ConfigError(f"there is no topic {TOPIC}, where a schema registry keeps its schemas")
    by_id: dict[int, dict[str, Any]] = {}
    by_version: dict[tuple[str, int], dict[str, Any]] = {}
    for record in store.read(TOPIC):
        try:
            key, value = json.loads(record.key or b""), json.loads(record.value or b"null")
            if key["keytype"] == "SCHEMA" and value is not None and isinstance(value["schema"], str):
                by_id[int(value["id"])] = value
                by_version[str(value["subject"]), int(value["version"])] = value
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the topic has other records, too

    def referenced(value: dict[str, Any], seen: dict[tuple[str, int], str]) -> tuple[str, ...]:
        for name in _references(value, TOPIC):
            if name not in seen:
                if name not in by_version:
                    raise UnknownSchemaError(
                        f"the schema {value['id']} refers to {name[0]} {name[1]}, which is not there"
                    )
                seen[name] = ""
                referenced(by_version[name], seen)
                del seen[name]
                seen[name] = by_version[name]["schema"]  # after those that it refers to
        return tuple(seen.values())

    found: dict[int, Registered | UnknownSchemaError] = {}
    for number, value in by_id.items():
        try:
            found[number] = Registered(value["schema"], referenced(value, {}))
        except UnknownSchemaError as error:
            found[number] = error
        except ConfigError as error:
            found[number] = UnknownSchemaError(str(error))
    return found
