"""The site: every page is in its contents, links lead to pages, words are explained, nothing is from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from environment import ROOT
from tools import site_hooks

FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"'](?:https?:)?//[^\"']*", re.I)
ENTRY = re.compile(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", re.M)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so strictly that any warning is an error."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    build = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert build.returncode == 0, build.stderr
    return folder


def test_contents_have_every_page_once() -> None:
    """The entries of mkdocs.yml are the pages of docs/ and those that are made from other files."""
    contents = ENTRY.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")}
    assert sorted(contents) == sorted(pages | set(site_hooks.PAGES.values())), "see nav in mkdocs.yml"


def test_code_is_shown_as_code(site: Path) -> None:
    """No fence is left in the text of a page: the rest of that page would be turned inside out."""
    for page in sorted(site.glob("**/*.html")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<p>\s*```", text) and "\n```" not in text, page.name
    assert '<div class="highlight"' in (site / "gallery.html").read_text(encoding="utf-8")


def test_nothing_is_fetched(site: Path) -> None:
    """No page and no style asks another host for anything."""
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not FETCHED.findall(page.read_text(encoding="utf-8")), page.name
    for style in site.glob("**/*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name
    assert FETCHED.search('<link rel="stylesheet" href="https://fonts.example/css">')


def test_pages_and_words_are_linked(site: Path) -> None:
    """A link of README.md to a file of docs/ is one between pages, and a word on it leads to its meaning."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="quickstart.html"' in home and 'href="contributing.html"' in home
    assert "docs/" not in "".join(re.findall(r'href="([^"#]*)"', home))
    (anchor,) = re.findall(r'href="glossary.html#(laplace-approximation)"', home)
    assert f'id="{anchor}"' in (site / "glossary.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("here", "link", "expected"),
    [
        ("index.md", "[a](docs/usage.md#data)", "[a](usage.md#data)"),
        ("index.md", "![a](docs/figures/report.png)", "![a](figures/report.png)"),
        ("index.md", "[`a`](examples)", "[`a`](examples/index.md)"),
        ("index.md", "[a](LICENSE)", "a"),
        ("usage.md", "[a](limits.md)", "[a](limits.md)"),
        ("usage.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("usage.md", "[a](../src/peewit/fitting.py)", "a"),
        ("usage.md", "[a](../missing.py)", "[a](../missing.py)"),  # MkDocs complains
        ("usage.md", "[a](https://a.org) [b](#b)", "[a](https://a.org) [b](#b)"),
        ("api/fit.md", "[a](../api.md)", "[a](../api.md)"),
        ("usage.md", "```python\n[a](../LICENSE)\n```", "```python\n[a](../LICENSE)\n```"),
    ],
)
def test_links_lead_to_pages(here: str, link: str, expected: str) -> None:
    """Links are written for the files of the repository, and read on pages."""
    assert site_hooks.with_links(link, here) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a\n\n- b\n  c\n\n  d\n- e", "a\n\n- b\n    c\n\n    d\n\n- e"),  # a second paragraph
        ("a\n\n1. b\n   ```\n   c\n     d\n   ```\n2. e", "a\n\n1. b\n    ```\n    c\n      d\n    ```\n2. e"),
        ("a\n- b\n  - c\nd", "a\n\n- b\n    - c\nd"),
        ("    a\n\n  b", "    a\n\n  b"),  # no list
    ],
)
def test_lists_are_deep_enough(written: str, expected: str) -> None:
    """Git hosts take two or three spaces for what belongs to an item, and MkDocs takes four."""
    assert site_hooks.with_deep_lists(written) == expected


def test_the_first_use_of_a_word_is_explained() -> None:
    """Not in headings, tables, code and links, and only once."""
    entries = site_hooks.glossary_entries("# Glossary\n\n## Last layer\n\nThe last one.\n\n## GGN\n\nA matrix.\n")
    page = "# Last layer\n\n| GGN |\n\n`GGN`, 'GGN', [GGN](a):\nthe last layers, GGN, GGN.\n\n```python\nGGN\n```\n"
    page = page.replace("'", '"')
    expected = page.replace(
        "the last layers, GGN, GGN",
        'the [last layers](glossary.md#last-layer "The last one."), [GGN](glossary.md#ggn "A matrix."), GGN',
    )
    assert site_hooks.with_meanings(page, entries, "usage.md") == expected
    assert "(../glossary.md#ggn " in site_hooks.with_meanings(page, entries, "api/fit.md")
