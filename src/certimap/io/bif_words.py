"""The words of BIF text: patterns of its statements, comments, names and lists of names."""

from __future__ import annotations

import re

QUOTED = r'"[^"]*"'
COMMENT = re.compile(rf"{QUOTED}|/\*.*?\*/|(?<![^\s,;(){{}}\[\]|])//[^\n]*", re.DOTALL)
BLANK = re.compile(r"[\s,;]*")
KEYWORD = re.compile(r"(network|variable|probability|property)\b")
PROPERTY = re.compile(rf"property\b(?:(?:{QUOTED}|[^;\"])*;|[^;]*;)")
NETWORK = re.compile(rf"network\b((?:{QUOTED}|[^{{\"])*)\{{")
VARIABLE = re.compile(rf"variable\s*({QUOTED}|[^\s{{\"]+)\s*\{{")
TYPE = re.compile(
    rf"type\s+discrete\s*(?:\[\s*(\d+)\s*\])?\s*\{{((?:{QUOTED}|[^}}\"])*)\}}\s*;?",
)
PROBABILITY = re.compile(rf"probability\s*\(((?:{QUOTED}|[^()\"]|\([^()]*\))*)\)\s*\{{")
ROW = re.compile(rf"\(((?:{QUOTED}|[^()\"]|\([^()\"]*\))*)\)([^;()}}]*);")
TABLE = re.compile(r"(table|default)\b([^;()}]*);")
END = re.compile(r"\}")
ITEM = re.compile(rf"\s*({QUOTED}|[^\s,\"]+)\s*")


BLOCK_TOKEN = re.compile(rf"{QUOTED}|\((?:{QUOTED}|[^()\"]|\([^()\"]*\))*\)|\}}")


def _kept(found: re.Match[str]) -> str:
    """Keep quoted text, and of a comment the ends of its lines."""
    return found[0] if found[0].startswith('"') else " " + "\n" * found[0].count("\n")


def unquoted(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def items(text: str, count: int | None) -> list[str]:
    """Split names at commas, or at blanks too when that is what gives `count` of them."""
    if '"' not in text:
        by_comma = [" ".join(part.split()) for part in text.split(",")]
        by_comma = [part for part in by_comma if part]
        return by_comma if len(by_comma) == count else text.replace(",", " ").split()
    by_comma = [part for part in re.findall(rf"(?:{QUOTED}|[^,\"])+", text) if part.strip()]
    if len(by_comma) == count:
        return [unquoted(part.strip()) for part in by_comma]
    return [unquoted(item) for item in ITEM.findall(text)]


def header_names(header: str) -> list[str]:
    """Return the variable and then its parents; a bar, commas or blanks may separate them."""
    return [unquoted(item) for item in re.findall(rf"{QUOTED}|[^\s,|\"]+", header)]


def without_comments(text: str) -> str:
    """Blank the comments of a text; its lines keep their numbers."""
    return COMMENT.sub(_kept, text)
