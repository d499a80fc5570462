"""The pages about the whole directory: partitions, groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.errors import KStoreError
from kstore.explained import disk_picture
from kstore.explained.explained_disk import DiskExplanation
from kstore.ui import query_values
from kstore.ui.directory_facts import Asked, Paged, directory_rows
from kstore.ui.page_templates import USER, Templates
from kstore.ui.viewed_store import Committed, ViewedStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["DirectoryPages", "asked_rows", "disk_version"]

MAX_PAGE = 10_000_000


def asked_rows(request: Request) -> Asked:
    """Return which rows of the directory a request asks for."""
    return Asked(
        query_values.text(request, "topic").strip(),
        query_values.choice(request, "sort", "name", "size"),
        query_values.whole(request, "page", 1, 1, MAX_PAGE),
    )


def disk_version(viewed: ViewedStore) -> str:
    """Return a text that changes when it is found out what takes the space; empty until then."""
    found = viewed.disk_found()
    return "" if found is None else str(found.at_ms) if isinstance(found, DiskExplanation) else "problem"


class DirectoryPages:
    """The endpoints of these pages. Thread-safe."""

    def __init__(self, viewed: ViewedStore, templates: Templates) -> None:
        self._viewed = viewed
        self._templates = templates
        self._response = optional.starlette(USER, "starlette.responses").HTMLResponse

    def _page(self, name: str, here: str, **facts: Any) -> Response:
        now = self._viewed.clock()
        body = self._templates.render(name, here=here, now=now, store=self._viewed.title, **facts)
        return self._response(body)  # type: ignore[no-any-return]

    def listing(self, request: Request) -> Response:
        """Show the partitions, a page of them at a time."""
        asked = asked_rows(request)
        return self._page("directory", "directory", asked=asked, found=directory_rows(self._viewed, asked))

    def groups(self, request: Request) -> Response:
        """Show the positions of groups, a page of them at a time."""
        wanted = query_values.text(request, "group")
        number = query_values.whole(request, "page", 1, 1, MAX_PAGE)
        found = self._viewed.groups()
        positions = [each for each in found.positions if wanted in each.group] if found is not None else []
        paged = Paged.of(len(positions), number)
        rows = [(position, *self._end(position)) for position in positions[paged.first : paged.end]]
        errors = found.errors if found is not None else ()
        return self._page(
            "groups", "groups", paged=paged, rows=rows, wanted=wanted, is_known=found is not None, errors=errors
        )

    def disk(self, request: Request) -> Response:
        """Show what takes the space of the directories, what holds it, and what would free it."""
        page = query_values.whole(request, "page", 1, 1, MAX_PAGE)
        found = self._viewed.disk()
        problem = str(found) if isinstance(found, KStoreError) else None
        facts: dict[str, Any] = {"found": None, "problem": problem, "progress": self._viewed.disk_progress}
        if isinstance(found, DiskExplanation):
            paged = Paged.of(len(found.partitions), page)
            facts |= {
                "found": found,
                "paged": paged,
                "partitions": found.partitions[paged.first : paged.end],
                "picture": self._templates.svg(disk_picture.picture(found, styled=False, prefix="drawn-disk")),
            }
        return self._page("disk", "disk", version=disk_version(self._viewed), **facts)

    def _end(self, position: Committed) -> tuple[int | None, str | None]:
        """Return the log end of the partition that a position is in, or None and why it is not known."""
        try:
            place = self._viewed.place(*position.place)
            return self._viewed.view(place).log_end_offset, None
        except KStoreError as error:
            return None, str(error)
