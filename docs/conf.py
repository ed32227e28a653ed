"""The site of the documentation, which `make docs` builds into build/site.

Sphinx reads the whole checkout, so that the pages outside `docs` and links to them are part of the site. The lists of
the README.md of each folder are its tables of contents: GitHub shows them too, and each page is named once.
"""

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
SECTIONS = ("tutorials", "how-to", "reference", "explanation", "development")
LISTED = re.compile(r"^- \[(.+?)\]\(([^):#]+\.md)\)(?:: (.+(?:\n  .+)*))?", re.MULTILINE)
"""A line of a list: the title of a page, its path, and what it is about."""
QUOTED = "alert haproxy metrics node-agent page prometheus rdzv-server readyz status why"
"""Labels of code blocks in no language of a highlighter: mostly the outputs of programs."""

project = "rdzv-server"
release = re.search(r'VERSION = "(.+)"', (ROOT / "protocol/rdzv_protocol/__init__.py").read_text())[1]  # type: ignore[index]
copyright = "the contributors, Apache-2.0"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**/*.md",
    "deploy/*.md",
    "deploy/**/*.md",
    "examples/**/*.md",
    "benchmarks/**/*.md",
    "protocol/*.md",
]
exclude_patterns = [".*", "build", "docs/architecture.md"]  # it names where the page has moved
nitpicky = True
smartquotes = False

myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"{project} {release}"
html_additional_pages = {"index": "to-readme.html"}
templates_path = ["templates"]


def setup(app: Sphinx) -> None:
    for name in QUOTED.split():
        app.add_lexer(name, TextLexer)
    app.connect("source-read", add_contents)
    app.connect("build-finished", write_llms_txt)


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Add a hidden table of contents to the page of a folder."""
    folder, _, page = name.rpartition("/")
    if name == root_doc:
        pages = [f"docs/{section}/README" for section in SECTIONS]
    elif name == "docs/development/adr/README":
        pages = sorted(path.stem for path in (ROOT / folder).glob("0*.md"))
    elif page == "README" and folder.startswith("docs/"):
        pages = [path for _, path, _ in LISTED.findall(source[0])]
    else:
        return
    source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt: every page with what it is about, linked to its Markdown source."""
    if error or app.builder.name != "html":
        return
    title, about = (ROOT / "README.md").read_text().split("\n\n")[:2]
    lines = [title, "", "> " + " ".join(about.split()), ""]
    for section in SECTIONS:
        folder = ROOT / "docs" / section
        text = (folder / "README.md").read_text()
        lines += [f"## {text.splitlines()[0].removeprefix('# ')}", ""]
        for page, path, description in LISTED.findall(text):
            source = (folder / path).resolve().relative_to(ROOT)
            lines.append(f"- [{page}](_sources/{source}.txt): {' '.join(description.split())}")
        lines.append("")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines))
