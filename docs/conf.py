"""Sphinx's configuration for the site: `make site` writes it to build/site, without the network."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = f"{PROJECT['urls']['Repository']}/blob/main"

logger = logging.getLogger(__name__)
sys.path.insert(0, str(DOCS))

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
project_copyright = f"{author}; Apache-2.0"
release = version = PROJECT["version"]

extensions = ["myst_parser", "public_names"]
exclude_patterns = ["README.md"]  # index.md includes it
nitpicky = True
# Types of other packages, in signatures. A name of kstore that no page has fails the build.
FOREIGN = """
    AbstractContextManager Any Callable CollectorRegistry D DataFrame FileDescriptorLike Iterable Iterator Mapping
    MeterProvider NamedTuple Path Sequence SparkSession SupportsIndex TracebackType TypedDict Unpack
    date datetime timedelta
"""
nitpick_ignore_regex = [("py:.*", r"(np|npt|os|pa|polars|pyarrow|re|uuid)\..*"), ("py:.*", "|".join(FOREIGN.split()))]

# Links to headings are GitHub's, so that they work in the repository, too.
myst_heading_anchors = 4

smartquotes_action = "D"  # dashes; "a" is a value
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 90
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"kstore {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}


class Anchors(SphinxTransform):
    """Makes `<a id="3.18"></a>` in a page a target, so that a link to it is checked."""

    default_priority = 200

    def apply(self, **_: object) -> None:
        """Replace the anchors of a page."""
        for raw in list(self.document.findall(nodes.raw)):
            if found := re.match('<a id="([^"]+)">$', raw.astext()):
                target = nodes.target(ids=[found[1]], names=[found[1]])
                raw.replace_self(target)
                self.document.note_explicit_target(target)


def link_to_sources(app: Sphinx, page: nodes.document) -> None:
    """Turn links to files that are no pages of the site into links to the repository; a missing file is a warning."""
    for link in [*page.findall(addnodes.download_reference), *page.findall(addnodes.pending_xref)]:
        is_file = isinstance(link, addnodes.download_reference)
        if not is_file and (link["refdomain"], link["reftype"]) != ("doc", "myst"):
            continue
        found = (DOCS / app.env.docname).parent / link["reftarget"] if is_file else DOCS / f"{link['reftarget']}.md"
        path = found.resolve()
        if path.is_relative_to(DOCS) and not is_file:
            continue
        if not path.exists():
            logger.warning("no such file: %s", path, location=link)
        anchor = "" if is_file or not link["reftargetid"] else f"#{link['reftargetid']}"
        target = f"{SOURCES}/{path.relative_to(REPOSITORY)}{anchor}"
        link.replace_self(nodes.reference("", "", *link.children, refuri=target, internal=False))


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.add_transform(Anchors)
    app.connect("doctree-read", link_to_sources)
