"""What the site has beside the pages of docs/: MkDocs calls the functions whose names begin with `on_` (mkdocs.yml).

- Files elsewhere in the repository become pages: README.md is the first one, and every example has one.
- Links between files become links between pages. A link to a file that has no page becomes plain text.
- The first use of a word of the glossary on a page links to its meaning.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the tests read this file where MkDocs is not installed
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
}


def scripts(folder: str) -> list[str]:
    """The scripts of a folder of examples, by their paths in the repository."""
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples" / folder).glob("*.py"))]


EXAMPLES = {
    **{
        source: source.removesuffix(".py") + ".md"
        for source in [*scripts("."), *scripts("huggingface"), *scripts("serving")]
    },
    "src/peewit/demo.py": "examples/demo.md",
}
SCRIPTS = "examples/index.md"
PAGES = {**OUTSIDE, **EXAMPLES, "examples/huggingface": SCRIPTS, "examples/serving": SCRIPTS, "examples": SCRIPTS}
SOURCES = {page: source for source, page in PAGES.items()}

SKIPPED = re.compile(r"^( *```python) no-run$", re.M)  # a word for the tests, which MkDocs would not read
FENCED = re.compile(r"(^ *```.*?^ *```[ ]*$)", re.M | re.S)
ITEM = re.compile(r"(?:[-*]|\d+\.) +")
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:`[^`]*`|\\.|[^\[\]\\])*)\]\((?P<target>[^)\s]+)\)")
HOST = re.compile(r"^([a-z]+:|#)")
# What is no prose: fenced and indented code, headings, tables; then code, links and tags within a line.
KEPT = re.compile(
    r"(^ *```.*?^ *```[ ]*$|^(?: *\||#|    |<)[^\n]*$"
    r"|`+[^`]*`+|!?\[(?:`[^`]*`|[^\[\]])*\]\([^)]*\)|<[^>\n]*>)",
    re.M | re.S,
)
WITHOUT_WORDS = {"glossary.md", "contributing.md", "changelog.md", "conduct.md", "security.md", "releasing.md"}
# The spellings of a word, where they are not those of its entry. Words that everybody knows are not explained.
ALSO: dict[str, tuple[str, ...]] = {
    "95 % interval": (),
    "Aleatoric uncertainty": ("aleatoric",),
    "Calibrated": ("calibrated",),
    "Calibration error (ECE)": ("calibration error", "ECE"),
    "Confidence": (),
    "Curvature": ("curvature",),
    "Epistemic uncertainty": ("epistemic",),
    "Interval": (),
    "Likelihood": (),
    "Link": (),
    "Log evidence": ("evidence",),
    "Noise": (),
    "Precision": (),
    "Prior": ("prior",),
    "Structure": (),
    "Validation data": (),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from files outside docs/."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in OUTSIDE.items()}
    texts |= {page: script_page(ROOT / source) for source, page in EXAMPLES.items()}
    for page, text in {**texts, SCRIPTS: scripts_page()}.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Follow the links, and explain words where they first appear."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # the tabs are enough
    markdown = with_deep_lists(with_links(SKIPPED.sub(r"\1", markdown), here))
    if here in WITHOUT_WORDS:
        return markdown
    return with_meanings(markdown, glossary_entries((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")), here)


def script_page(path: Path) -> str:
    """An example as a page: its docstring, then the code."""
    code = path.read_text(encoding="utf-8")
    return f"# {path.name}\n\n{docstring(path)}\n\n```python\n{code}```\n"


def scripts_page() -> str:
    """The list of the examples, each with the first sentence of its docstring."""
    lines = ["# Examples", "", "Scripts that run as they stand, from data to predictions.", ""]
    for source, page in EXAMPLES.items():
        first = docstring(ROOT / source).partition("\n\n")[0]
        target = posixpath.relpath(page, posixpath.dirname(SCRIPTS))
        lines.append(f"- [{posixpath.basename(source)}]({target}): {' '.join(first.split())}")
    return "\n".join(lines) + "\n"


def docstring(path: Path) -> str:
    """What a script says about itself."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def with_links(markdown: str, here: str) -> str:
    """The links outside fenced code, as they are written on the page `here`."""
    parts = FENCED.split(markdown)  # text and code, in turn
    parts[::2] = [LINK.sub(lambda match: moved_link(match, here), part) for part in parts[::2]]
    return "".join(parts)


def moved_link(match: re.Match[str], here: str) -> str:
    """A link of a file of the repository, as it is written on the page `here`."""
    if HOST.match(match["target"]):
        return match[0]
    path, _, anchor = match["target"].partition("#")
    source = SOURCES.get(here, f"docs/{here}")
    aim = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = PAGES.get(aim) or (aim.removeprefix("docs/") if aim.startswith("docs/") else "")
    if not page:
        return match["text"] if (ROOT / aim).exists() else match[0]
    target = posixpath.relpath(page, posixpath.dirname(here) or ".") + (f"#{anchor}" if anchor else "")
    return f"{match['picture']}[{match['text']}]({target})"


def with_deep_lists(markdown: str) -> str:
    """What belongs to an item of a list, four spaces deep, and an empty line where a list would not begin without.

    MkDocs wants both. Our files have two or three spaces, as git hosts read them.
    """
    lines: list[str] = []
    depth, paragraphs = 0, False
    for line in markdown.split("\n"):
        item = ITEM.match(line)
        if item:
            if lines and lines[-1] and (not depth or paragraphs):
                lines.append("")
            depth, paragraphs = len(item[0]), False
        elif line and not line.startswith(" "):
            depth = 0
        paragraphs |= not line
        inside = depth and not item and line.startswith(" " * depth)
        lines.append(" " * (4 - depth) + line if inside else line)
    return "\n".join(lines)


def glossary_entries(page: str) -> list[tuple[re.Pattern[str], str, str]]:
    """For each word of the glossary: what to look for, the anchor of its entry, and the meaning."""
    entries = []
    for heading, meaning in re.findall(r"^## (.*)\n\n(.*)$", page, re.M):
        names = ALSO.get(heading, tuple(re.sub(r"[()]", ",", heading).split(",")))
        spelled = [spelling(name.strip()) for name in names if name.strip()]
        if spelled:
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            entries.append((re.compile(rf"(?<![\"\w])(?:{'|'.join(spelled)})\b"), anchor, meaning))
    return entries


def spelling(name: str) -> str:
    """A pattern: abbreviations exactly, other words in either case, both in the plural too."""
    exact = any(letter.isupper() for letter in name[1:])
    return f"{re.escape(name)}s?" if exact else f"(?i:{re.escape(name)}s?)"


def with_meanings(markdown: str, entries: list[tuple[re.Pattern[str], str, str]], here: str) -> str:
    """The first use of each word in prose, as a link to the glossary."""
    glossary = posixpath.relpath("glossary.md", posixpath.dirname(here) or ".")
    parts = KEPT.split(markdown)  # prose and what is kept, in turn
    for pattern, anchor, meaning in entries:
        for index in range(0, len(parts), 2):
            if match := pattern.search(parts[index]):
                title = meaning.replace('"', "'")
                link = f'[{match[0]}]({glossary}#{anchor} "{title}")'
                parts[index : index + 1] = [match.string[: match.start()], link, match.string[match.end() :]]
                break
    return "".join(parts)
