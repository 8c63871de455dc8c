"""Escaping for markdown: nothing that a prompt, a path or a log line holds may become markup.

GitHub's markdown is HTML with extras, so a character reference (``&#124;`` for ``|``) is the one escape that holds in a
table cell, a paragraph and an HTML block alike. What can never start markup is left readable: an underscore inside a
word, the brackets of an interval, ``~/`` at the start of a path, the dashes of a ``--flag``. Fenced blocks need no
escape, only a fence longer than any run of backticks inside.
"""

from __future__ import annotations

import re

_SPECIAL = re.compile(
    r"""(?P<readable>
      \[[−+]?[\d.]+(?:\ %)?,\ [−+]?[\d.]+(?:\ %)?\](?![\[(:])    # an interval
    | (?<=[A-Za-z0-9])_(?=[A-Za-z0-9])            # a name_with_underscores
    | (?<!\S)~(?=/)                               # a path in a home folder
    ) | (?P<markup>[&<|`*_\[\]~$\\])""",
    re.VERBOSE,
)
_BLOCK_START = re.compile(r"^(?:>|#+(?=\s|$)|[+-](?=\s|$)|-(?=[\s-]*$)|(?=\d+[.)](?:\s|$)))")
_TILDE = "&#126;"
_LIVE = re.compile(r"(?<![A-Za-z0-9])@(?=[A-Za-z0-9])|(?<!&)#(?=\d)|\bGH-(?=\d)", re.IGNORECASE)
_NO_WIDTH = "&#8203;"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ud800-\udfff]")
_LINE_BREAKS = re.compile(r"[\t\r\n\x0b\x0c\x85\u2028\u2029]+")


def visible(text: str) -> str:
    """``text`` with control and direction characters spelled out, so that no text can hide or reorder another."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group(0)):04x}", text)


def markdown_text(value: object, *, is_alone: bool = False) -> str:
    """Any value as inert text on one line, safe at the start of a paragraph and inside a table cell.

    ``is_alone``: nothing else stands in its paragraph or cell, so that a single tilde (``HEAD~1``) starts nothing and
    stays readable; only two of them strike out what is between. ``@name``, ``#1`` and ``GH-1`` notify nobody and link
    to nothing: a space without width stands inside, because GitHub reads them in text however they are escaped.
    """
    text = _LIVE.sub(lambda match: match.group(0) + _NO_WIDTH, _inert(value))
    if is_alone and text.count(_TILDE) == 1 and "~" not in text:
        text = text.replace(_TILDE, "~")
    return _reference(text[0]) + text[1:] if _BLOCK_START.match(text) else text


def _inert(value: object) -> str:
    return _SPECIAL.sub(_escaped, visible(_LINE_BREAKS.sub(" ", str(value))))


def _escaped(match: re.Match[str]) -> str:
    markup = match["markup"]
    return _reference(markup) if markup else match.group(0)


def _reference(character: str) -> str:
    return f"&#{ord(character)};"


def markdown_code(value: object) -> str:
    """Any value as inline code: between backticks, where nothing needs an escape, or as an HTML element.

    A backtick span cannot hold a backtick, a pipe in a table, or spaces at its ends; and what could be HTML is spelled
    so that it is none in any reader.
    """
    text = visible(_LINE_BREAKS.sub(" ", str(value)))
    if text and text == text.strip() and not {*"`|<&"} & {*text}:
        return f"`{text}`"
    return f"<code>{_inert(value)}</code>"


def fenced(text: str, language: str = "") -> str:
    """``text`` as a fenced code block whose fence is longer than any run of backticks inside."""
    lines = visible_lines(text)
    longest = max((len(run) for run in re.findall(r"`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def visible_lines(text: str) -> str:
    """``text`` with its line breaks kept and every other control character spelled out."""
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.splitlines())
