"""The template environments. HTML escapes by itself; in markdown every text goes through the ``md`` filters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fuseproof.harness.escape import fenced, markdown_code, markdown_text, visible, visible_lines
from fuseproof.harness.report.document import CodeBlock, span_kind, spans


@cache
def environment(*, is_html: bool) -> Environment:
    """Jinja2 over this package's templates."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=is_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    made.filters |= {
        "fenced": _fenced,
        "kind": span_kind,
        "md": markdown_text,
        "md_alone": lambda value: markdown_text(value, is_alone=True),
        "md_code": markdown_code,
        "spans": spans,
        "url": url_path,
        "visible": visible,
        "visible_lines": visible_lines,
    }
    return made


def url_path(path: str) -> str:
    """A relative path as a URL that no markdown or HTML character can escape from."""
    return quote(path, safe="/-._~", errors="surrogateescape")


def _fenced(block: CodeBlock) -> str:
    return fenced(block.text, block.language)
