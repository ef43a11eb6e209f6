"""XML as a tree of elements with their lines; rejects entities and files too large or too deep for a network."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax import ContentHandler, ErrorHandler, SAXException, SAXParseException
from xml.sax.saxutils import escape, quoteattr

from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, read_bytes, read_text
from certimap.io.numbers import Numbers, is_number, read_numbers

MAX_BYTES = 2**28
MAX_DEPTH = 50
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_UNWRITABLE = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass
class Element:
    """One element: its tag, attributes, own text, the elements inside, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int | None
    children: list[Element] = field(default_factory=list["Element"])
    text: str = ""

    def all(self, tag: str) -> Iterator[Element]:
        """Yield the elements inside with a tag."""
        return (child for child in self.children if child.tag == tag)

    def words(self, tag: str) -> list[str]:
        """Return the words in the text of all elements inside with a tag."""
        return [word for child in self.all(tag) for word in child.text.split()]


def read_xml(path: AnyPath, encoding: str | None = None) -> Element:
    """Return the outermost element; ParseError for other than XML, entities, over 256 MiB, or a depth above 50."""
    try:
        n_bytes = Path(path).stat().st_size
    except (OSError, ValueError):
        n_bytes = 0  # reading it reports the error
    if n_bytes <= MAX_BYTES:
        data = read_bytes(path)
        n_bytes = len(data)
    else:
        data = b""
    if n_bytes > MAX_BYTES:
        raise ParseError(f"has {n_bytes:,} bytes of XML; expected at most {MAX_BYTES:,}", path)
    if encoding is not None:
        data = _DECLARATION.sub("", read_text(path, encoding), count=1).encode("utf-8", "replace")
    sax: Any = importlib.import_module("defusedxml.sax")
    defused: Any = importlib.import_module("defusedxml")
    tree = _Tree(path)
    try:
        sax.parseString(data, tree, ErrorHandler(), forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except ParseError:
        raise
    except defused.DefusedXmlException:
        raise ParseError("declares entities or refers to other files; expected XML without them", path) from None
    except SAXParseException as error:
        raise ParseError(f"is no XML: {error.getMessage()}", path, error.getLineNumber()) from None
    except (SAXException, LookupError, ValueError) as error:
        raise ParseError(f"is no XML: {error}", path) from None
    return tree.root()


class _Tree(ContentHandler):
    """Builds the tree."""

    def __init__(self, path: AnyPath) -> None:
        super().__init__()
        self._path = path
        self._locator: Any = None
        self._open: list[tuple[Element, list[str]]] = []
        self._outermost: Element | None = None

    def root(self) -> Element:
        if self._outermost is None:
            raise ParseError("has no element; expected XML", self._path)
        return self._outermost

    def setDocumentLocator(self, locator: Any) -> None:  # noqa: N802
        self._locator = locator

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802
        line = None if self._locator is None else self._locator.getLineNumber()
        if len(self._open) >= MAX_DEPTH:
            raise ParseError(f"has elements in one another more than {MAX_DEPTH} deep", self._path, line)
        element = Element(name, {str(key): str(value) for key, value in attrs.items()}, line)
        if self._open:
            self._open[-1][0].children.append(element)
        else:
            self._outermost = element
        self._open.append((element, []))

    def endElement(self, name: str) -> None:  # noqa: N802
        element, parts = self._open.pop()
        element.text = "".join(parts)

    def characters(self, content: str) -> None:
        if self._open:
            self._open[-1][1].append(content)


def numbers_of(path: AnyPath, words: list[str], what: str, line: int | None) -> Numbers:
    """Return words as finite nonnegative numbers; ParseError names the first that is not."""
    values = read_numbers(words)
    if values is not None and not any("_" in word for word in words):
        return values
    wrong = next(word for word in words if "_" in word or not is_number(word))
    raise ParseError(
        f"{cut(wrong)} in the table of {what} is no probability; expected numbers that are finite and not "
        "negative",
        path,
        line,
    )


def xml_text(text: str) -> str:
    """Return a text as the content of an element; ModelError for text that XML cannot hold or would trim."""
    return escape(_checked(text))


def xml_attribute(text: str) -> str:
    """Return a text as the value of an attribute, with its quotes; ModelError for text that XML cannot hold."""
    return quoteattr(_checked(text))


def _checked(text: str) -> str:
    if not text or _UNWRITABLE.search(text) or text != " ".join(text.split()):
        raise ModelError(
            f"the name {cut(text)} cannot be written as XML; expected text without control characters, and with "
            "single blanks inside"
        )
    return text
