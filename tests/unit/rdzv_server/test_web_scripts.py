"""Scripts of the pages: they share one global scope, in which a second declaration of a name stops a whole script.

page.js opens the stream, whose first answer may come before the browser has run a script behind it.
"""

import re
from collections import Counter
from pathlib import Path

import rdzv_server

WEB = Path(rdzv_server.__file__).parent / "web"
SCRIPTS = sorted((WEB / "static").glob("*.js"))
DECLARATION = re.compile(r"^(?:const|let|var|class|(?:async )?function\*?) (\w+)", re.MULTILINE)


def test_no_name_is_declared_by_two_scripts():
    names = Counter(name for script in SCRIPTS for name in DECLARATION.findall(script.read_text()))
    assert len(names) > 100
    assert [name for name, times in names.items() if times > 1] == []


def test_page_js_is_loaded_after_the_scripts_that_its_stream_calls():
    loaded = re.compile(r"static\('(\w+\.js)'\)")
    base, *pages = sorted((WEB / "templates").glob("*.html"), key=lambda path: path.name != "base.html")
    assert base.read_text().index("{% block first_script %}") < base.read_text().index("static('page.js')")
    first: list[str] = []
    for page in pages:
        blocks = re.findall(r"{% block first_script %}(.*?){% endblock %}", page.read_text(), re.DOTALL)
        scripts = loaded.findall("".join(blocks))
        assert scripts == loaded.findall(page.read_text()), page.name
        first += scripts
    assert {*first, "page.js"} == {script.name for script in SCRIPTS}
