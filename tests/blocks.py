"""The code blocks of the README and of the documentation."""

from __future__ import annotations

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent

_BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<code>.*?)^ *(?P=fence) *$"
    r"|^<!-- (?P<directive>\w+)(?:: (?P<argument>[^\n]*?))?(?P<hidden>\n.*?\n)? *-->$",
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block, or one in a comment, which only the tests see.

    :param line: of the file, before the first one of the code.
    :param options: comments right before the block, such as ``<!-- file: shop.py -->``.
    """

    language: str
    code: str
    line: int
    options: dict[str, str]
    is_hidden: bool = False


def read_blocks(path: pathlib.Path) -> list[Block]:
    """All blocks of a Markdown file, dedented, in order."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    options: dict[str, str] = {}

    for match in _BLOCK.finditer(text):
        if match["directive"] and not match["hidden"]:
            options[match["directive"]] = match["argument"] or ""
            continue

        code = match["hidden"] or match["code"]
        start = match.start("hidden") + 1 if match["hidden"] else match.start("code")
        blocks.append(
            Block(
                match["directive"] or match["language"].strip(),
                re.sub(rf"^{match['indent'] or ''}", "", code.removeprefix("\n"), flags=re.M),
                text.count("\n", 0, start),
                options,
                bool(match["hidden"]),
            )
        )
        options = {}

    return blocks


def code_of(path: pathlib.Path, language: str) -> list[str]:
    """The code of the blocks of one language that readers see."""
    return [b.code for b in read_blocks(path) if b.language == language and not b.is_hidden]


def commands(code: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it shows as printed."""
    parts = re.split(r"^\$ ", code.replace("\\\n", ""), flags=re.MULTILINE)
    assert not parts[0].strip(), f"This is no command: {parts[0]}"
    pairs = [part.partition("\n") for part in parts[1:]]
    return [(command, shown) for command, _, shown in pairs]
